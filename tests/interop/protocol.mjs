// One worker and its links: envelope, negotiation, liveness, and who takes which message.

import { randomBytes } from "node:crypto";

import { CODE, Fault } from "./codes.mjs";
import {
  BODY_BYTES_MAX, HEADER_BYTES, KIND, PAYLOAD_BYTES_MAX, WIRE_VERSION, decodeBody, encodeBody,
  encodeFrames, openEnvelope,
} from "./messages.mjs";
import { Sessions } from "./sessions.mjs";
import { deriveTerms, largestRow, linkEpoch, stagingNeeded } from "./terms.mjs";

const WORKER = 1;
const TEXT_CHARS_MAX = 400;
const NO_SESSION = Buffer.alloc(0);
const NEGOTIATING = new Set([KIND.Hello, KIND.TermsAgreed, KIND.Refuse]);

/** Bytes that a link keeps of header, body and payload: a worker needs no payload. */
export const FRAME_BOUNDS = [HEADER_BYTES, BODY_BYTES_MAX, 0];

function refusal({ code, field, wanted, got }) {
  const shorten = (text) => [...text].slice(0, TEXT_CHARS_MAX).join("");
  return { code, field: shorten(field), wanted: shorten(wanted), got: shorten(got) };
}

export class Worker {
  bootId = randomBytes(16);
  /** Rejected messages by code. */
  rejected = new Map();

  constructor(engine, { representations, requestsMax, depthMax, supportMax, pingMs, silenceMs }) {
    this.engine = engine;
    this.pingMs = pingMs;
    this.silenceMs = silenceMs;
    const row = largestRow(representations, engine.size, supportMax);
    this.offer = {
      role: WORKER,
      wire_min: WIRE_VERSION,
      wire_max: WIRE_VERSION,
      semantics: "dyadic24-standard-v1",
      verifier: "standard-int48-v1",
      rng_abi: "philox4x32-10/blake2b-v1",
      representations: [...representations].sort(),
      vocabulary_size: engine.size,
      legal_size: engine.size,
      vocabulary_hash: engine.vocabularyHash,
      draft_checkpoint: engine.draftCheckpoint,
      draft_native: true,
      target_checkpoint: engine.targetCheckpoint,
      processors: engine.processors,
      precision: "f32-le",
      requests_max: requestsMax,
      depth_max: depthMax,
      support_max: supportMax,
      frame_bytes_max: PAYLOAD_BYTES_MAX,
      staging_bytes: stagingNeeded(requestsMax, depthMax, row),
    };
  }

  /** Count a fault; anything else is a defect of ours and goes on up. */
  reject(fault) {
    if (!(fault instanceof Fault)) throw fault;
    this.rejected.set(fault.code, (this.rejected.get(fault.code) ?? 0) + 1);
  }
}

/** One peer on one connection. */
export class Link {
  #worker;
  #send;
  #negotiation = null; // { caller, own, bootId, terms, epoch, answer }
  #sessions = null; // while the terms are agreed
  #heardAt = 0;
  #pingAt = 0;
  #pings = 0n;

  constructor(worker, send) {
    this.#worker = worker;
    this.#send = send;
  }

  get agreed() {
    return this.#sessions !== null;
  }

  /** Take one message: its first frames as `{length, bytes}`, and how many it had. */
  receive(frames, count, nowMs) {
    const payloadMax = this.agreed ? this.#negotiation.terms.frame_bytes_max : PAYLOAD_BYTES_MAX;
    let message;
    try {
      const envelope = openEnvelope(frames, count, payloadMax);
      message = decodeBody(envelope.kind, envelope.body);
      this.#dispatch(envelope, message, nowMs);
    } catch (fault) {
      this.#worker.reject(fault);
      const kind = frames[0].bytes[5];
      if (fault.code === CODE.WIRE_VERSION && kind === KIND.Hello) {
        this.#say("Refuse", refusal(fault));
      } else if (fault.code >= CODE.KIND_UNKNOWN && kind !== KIND.Nak) {
        this.#nak(fault, message);
      }
    }
  }

  /** Let time pass: ping, and notice silence. */
  tick(nowMs) {
    if (!this.agreed) return;
    if (nowMs - this.#heardAt > this.#worker.silenceMs) {
      this.#forget();
    } else if (nowMs >= this.#pingAt) {
      this.#pingAt = nowMs + this.#worker.pingMs;
      this.#say("Ping", { token: (this.#pings += 1n) });
    }
  }

  #nak(fault, message) {
    this.#say("Nak", {
      ...refusal(fault),
      step: message?.step ?? 0n,
      session_id: fault.sessionId ?? message?.session_id ?? NO_SESSION,
    });
  }

  #say(name, message) {
    const kind = KIND[name];
    this.#send(this.#frames(kind, encodeBody(kind, message)));
  }

  #frames(kind, body, payload = null) {
    const epoch = this.agreed && !NEGOTIATING.has(kind) ? this.#negotiation.epoch : 0n;
    return encodeFrames(kind, body, this.#worker.bootId, epoch, payload);
  }

  #forget() {
    this.#negotiation = null;
    this.#sessions = null;
  }

  #dispatch({ kind, bootId, epoch, body }, message, nowMs) {
    switch (kind) {
      case KIND.Hello:
        return this.#hello(bootId, message);
      case KIND.TermsAgreed:
        return this.#termsAgreed(bootId, message, nowMs);
      case KIND.Refuse:
        if (this.#negotiation?.bootId.equals(bootId)) this.#forget();
        return undefined;
    }
    if (!this.agreed) {
      if (kind === KIND.Nak) return undefined;
      throw new Fault(CODE.NOT_NEGOTIATED, "link_epoch", "agreed terms", "none");
    }
    const negotiation = this.#negotiation;
    if (!bootId.equals(negotiation.bootId)) {
      const wanted = negotiation.bootId.toString("hex");
      throw new Fault(CODE.BOOT_CHANGED, "boot_id", wanted, bootId.toString("hex"));
    }
    if (epoch !== negotiation.epoch) {
      throw new Fault(CODE.LINK_UNKNOWN, "link_epoch", negotiation.epoch, epoch);
    }
    this.#heardAt = nowMs;
    switch (kind) {
      case KIND.Ping:
        return this.#say("Pong", message);
      case KIND.Pong:
      case KIND.Nak:
        return undefined;
      case KIND.Reset:
        return this.#say("Ready", this.#sessions.reset(message, body));
      case KIND.Step:
        return this.#sessions.step(message, body).forEach(this.#send);
      case KIND.Commit:
        return this.#commit(message);
      case KIND.Cancel:
        return this.#sessions.cancel(message);
    }
    throw new Fault(CODE.KIND_UNEXPECTED, "kind", "a kind for a worker", kind);
  }

  #hello(bootId, caller) {
    if (this.#negotiation?.caller.nonce.equals(caller.nonce)) {
      return this.#say(...this.#negotiation.answer);
    }
    this.#forget();
    const own = { ...this.#worker.offer, nonce: randomBytes(16) };
    const negotiation = { caller, own, bootId };
    try {
      negotiation.terms = deriveTerms(own, caller);
      negotiation.epoch = linkEpoch(caller.nonce, own.nonce, negotiation.terms.digest);
      negotiation.answer = ["Hello", own];
    } catch (fault) {
      this.#worker.reject(fault);
      negotiation.answer = ["Refuse", refusal(fault)];
    }
    this.#negotiation = negotiation;
    return this.#say(...negotiation.answer);
  }

  #termsAgreed(bootId, message, nowMs) {
    const negotiation = this.#negotiation;
    const awaited = !this.agreed && negotiation?.terms?.digest;
    if (!awaited || !message.nonce.equals(negotiation.own.nonce)) return; // of an earlier one
    if (!bootId.equals(negotiation.bootId)) {
      const wanted = negotiation.bootId.toString("hex");
      throw new Fault(CODE.BOOT_CHANGED, "boot_id", wanted, bootId.toString("hex"));
    }
    if (message.digest.equals(awaited)) {
      negotiation.answer = ["TermsAgreed", { nonce: negotiation.caller.nonce, digest: awaited }];
      this.#sessions = new Sessions(
        this.#worker.engine, negotiation.terms, (...parts) => this.#frames(...parts),
      );
      this.#heardAt = nowMs;
      this.#pingAt = nowMs + this.#worker.pingMs;
    } else {
      const wanted = awaited.toString("hex");
      const got = message.digest.toString("hex");
      const fault = new Fault(CODE.TERMS_DIGEST_MISMATCH, "digest", wanted, got);
      this.#worker.reject(fault);
      negotiation.terms = null;
      negotiation.answer = ["Refuse", refusal(fault)];
    }
    this.#say(...negotiation.answer);
  }

  #commit({ entries }) {
    for (const entry of entries) {
      try {
        this.#sessions.commit(entry);
      } catch (fault) {
        this.#worker.reject(fault);
        this.#nak(fault, entry);
      }
    }
  }
}
