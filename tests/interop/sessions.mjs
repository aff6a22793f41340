// The sessions of one agreed link: generations, steps with their kept replies, commits.

import { CODE, Fault } from "./codes.mjs";
import { blake2b, xxh3 } from "./hashes.mjs";
import { KIND, PREFIX_TOKENS_MAX, encodeBody } from "./messages.mjs";
import { proposalTicket } from "./philox.mjs";
import { Prefix } from "./prefix.mjs";
import { DENSE, SPARSE, allocate, draw, rowBytes } from "./proposal.mjs";

const TEMPERATURE_MIN = 0.01;
const TEMPERATURE_MAX = 100;
const REPLIES_KEPT = 2;
const KEYS_KEPT = 64;

const hex = (bytes) => bytes.toString("hex");

function expect(holds, code, field, wanted, got) {
  if (!holds) throw new Fault(code, field, wanted, got);
}

export class Sessions {
  #engine;
  #terms;
  #frames;
  #bySlot = new Map(); // at most one session a slot, so at most requests_max
  #replies = new Map(); // step -> { body, messages }
  #newestStep = -1n;

  /** `frames(kind, body, payload)` makes the frames of a message on this link. */
  constructor(engine, terms, frames) {
    this.#engine = engine;
    this.#terms = terms;
    this.#frames = frames;
  }

  #find(sessionId) {
    return [...this.#bySlot.values()].find((session) => session.id.equals(sessionId));
  }

  /** The session of an entry, in the entry's generation. */
  #current({ session_id: sessionId, generation }) {
    const session = this.#find(sessionId);
    expect(session, CODE.SESSION_UNKNOWN, "session_id", "a session held here", hex(sessionId));
    const { generation: wanted } = session;
    expect(generation >= wanted, CODE.GENERATION_STALE, "generation", wanted, generation);
    expect(generation <= wanted, CODE.GENERATION_AHEAD, "generation", wanted, generation);
    return session;
  }

  /** Begin a generation; the fields of the Ready. */
  reset(message, body) {
    const { session_id: id, generation, slot, round, key, context, digest } = message;
    const held = this.#find(id);
    const bodyDigest = blake2b(body, 32);
    if (held && generation <= held.generation) {
      const wanted = `above ${held.generation}`;
      const repeated = bodyDigest.equals(held.resetDigest);
      expect(repeated, CODE.GENERATION_STALE, "generation", wanted, generation);
      return held.ready;
    }
    const slots = this.#terms.requests_max;
    expect(slot < slots, CODE.SLOT_RANGE, "slot", `below ${slots}`, slot);
    const prefix = this.#newPrefix(message, held);
    const ready = { session_id: id, generation, length: prefix.length, digest };
    if (held) this.#bySlot.delete(held.slot);
    this.#bySlot.set(slot, {
      id, generation, slot, key, context, prefix, ready,
      resetDigest: bodyDigest,
      round, // the last one that a step or a commit used
      chain: [], // its drafts, until it is committed
      // The last round committed, with what its commit named. The round of a Reset may have
      // begun without this worker, its commit still to come.
      settled: { round: round - 1 },
      drawn: held?.drawn ?? new Map(), // RNG key -> the last round drawn under it
    });
    return ready;
  }

  #newPrefix(message, held) {
    const { session_id: id, suffix, base_length: baseLength, base_digest: baseDigest } = message;
    expect(suffix.length % 4 === 0, CODE.PREFIX_RANGE, "suffix", "whole tokens", suffix.length);
    const known = baseLength === 0 || (held && baseLength <= held.prefix.length);
    const base = baseLength === 0 ? new Prefix(id) : known && held.prefix.first(baseLength);
    const wanted = base ? hex(base.digest) : "a prefix held here";
    const same = base && base.digest.equals(baseDigest);
    expect(same, CODE.PREFIX_UNKNOWN, "base_digest", wanted, hex(baseDigest));
    const length = baseLength + suffix.length / 4;
    const fits = length >= 1 && length <= PREFIX_TOKENS_MAX;
    expect(fits, CODE.PREFIX_RANGE, "suffix", `1..${PREFIX_TOKENS_MAX} tokens in all`, length);
    const tokens = new Int32Array(suffix.length / 4);
    for (let i = 0; i < tokens.length; i++) tokens[i] = suffix.readInt32LE(4 * i);
    this.#expectLegal(tokens, "suffix");
    base.append(tokens);
    const { digest } = message;
    expect(base.digest.equals(digest), CODE.PREFIX_MISMATCH, "digest", hex(base.digest), hex(digest));
    return base;
  }

  #expectLegal(tokens, field) {
    const illegal = tokens.find((token) => token < 0 || token >= this.#engine.size);
    const wanted = `ids below ${this.#engine.size}`;
    expect(illegal === undefined, CODE.TOKEN_RANGE, field, wanted, illegal);
  }

  /** End a session, if it is held. */
  cancel({ session_id: sessionId }) {
    const session = this.#find(sessionId);
    if (session) this.#bySlot.delete(session.slot);
  }

  /** Apply one entry of a Commit; also of a round that had no step, and so no drafts. */
  commit(entry) {
    const session = this.#current(entry);
    const { round, accepted, last, position, digest } = entry;
    const { settled, prefix } = session;
    if (round === settled.round && settled.digest) {
      const repeated = position === settled.position && digest.equals(settled.digest);
      expect(repeated, CODE.COMMIT_MISMATCH, "digest", hex(settled.digest), hex(digest));
    }
    if (round <= settled.round) return;
    expect(round >= session.round, CODE.COMMIT_MISMATCH, "round", session.round, round);
    const chain = round === session.round ? session.chain : [];
    expect(accepted <= chain.length, CODE.COMMIT_MISMATCH, "accepted", chain.length, accepted);
    this.#expectLegal(last, "last");
    const tokens = [...chain.slice(0, accepted), ...last];
    const length = prefix.length + tokens.length;
    expect(position === length, CODE.COMMIT_MISMATCH, "position", length, position);
    expect(length <= PREFIX_TOKENS_MAX, CODE.PREFIX_RANGE, "position", PREFIX_TOKENS_MAX, length);
    const wanted = prefix.digestWith(tokens);
    expect(wanted.equals(digest), CODE.COMMIT_MISMATCH, "digest", hex(wanted), hex(digest));
    prefix.append(tokens);
    session.round = round;
    session.chain = [];
    session.settled = { round, position, digest };
  }

  /** The messages that answer a Step, as frames. */
  step({ step, entries }, body) {
    const known = this.#replies.get(step);
    if (known) {
      expect(body.equals(known.body), CODE.STEP_CHANGED, "step", "the same step again", "another");
      return known.messages;
    }
    expect(step > this.#newestStep, CODE.ROUND_STALE, "step", `above ${this.#newestStep}`, step);
    this.#checkBatch(entries);
    for (const entry of entries) this.#checkEntry(entry);
    const messages = this.#reply(step, entries);
    this.#newestStep = step;
    this.#replies.set(step, { body, messages });
    if (this.#replies.size > REPLIES_KEPT) this.#replies.delete(this.#replies.keys().next().value);
    return messages;
  }

  /** V01 to V03. */
  #checkBatch(entries) {
    const most = this.#terms.requests_max;
    const size = entries.length;
    expect(size >= 1 && size <= most, CODE.BATCH_RANGE, "entries", `1..${most}`, size);
    const slots = new Set(entries.map((entry) => entry.slot));
    expect(slots.size === size, CODE.SLOT_DUPLICATE, "slot", "one each", [...slots]);
    const sessions = new Set(entries.map((entry) => hex(entry.session_id)));
    expect(sessions.size === size, CODE.SESSION_DUPLICATE, "session_id", "one each", [...sessions]);
  }

  /** V04 to V08. */
  #checkEntry({ slot, depth, temperature, representation, support }) {
    const terms = this.#terms;
    const { size } = this.#engine;
    expect(slot < terms.requests_max, CODE.SLOT_RANGE, "slot", `below ${terms.requests_max}`, slot);
    expect(depth <= terms.depth_max, CODE.DEPTH_RANGE, "depth", `0..${terms.depth_max}`, depth);
    const usable = temperature >= TEMPERATURE_MIN && temperature <= TEMPERATURE_MAX;
    const range = `${TEMPERATURE_MIN}..${TEMPERATURE_MAX}`;
    expect(usable, CODE.TEMPERATURE_RANGE, "temperature", range, temperature);
    const agreed = terms.representations.includes(representation);
    const wanted = terms.representations;
    expect(agreed, CODE.REPRESENTATION_MISMATCH, "representation", wanted, representation);
    const most = representation === SPARSE ? Math.min(size, terms.support_max) : size;
    expect((support || size) <= most, CODE.SUPPORT_RANGE, "support", `1..${most}`, support);
  }

  /** V16 to V21; the session. */
  #checkSession(entry) {
    const session = this.#current(entry);
    const { slot, context, round, position, digest } = entry;
    const { prefix } = session;
    expect(slot === session.slot, CODE.SLOT_RANGE, "slot", session.slot, slot);
    expect(context === session.context, CODE.CONTEXT_MISMATCH, "context", session.context, context);
    const last = Math.max(session.round, session.drawn.get(hex(session.key)) ?? 0);
    expect(round > last, CODE.ROUND_STALE, "round", `above ${last}`, round);
    expect(round === session.round + 1, CODE.ROUND_AHEAD, "round", session.round + 1, round);
    expect(position === prefix.length, CODE.POSITION_MISMATCH, "position", prefix.length, position);
    const same = digest.equals(prefix.digest);
    expect(same, CODE.PREFIX_MISMATCH, "digest", hex(prefix.digest), hex(digest));
    return session;
  }

  /** Draw for every entry; the frames of all messages that answer the step. */
  #reply(step, entries) {
    const messages = [];
    const completions = [];
    let rows = [];
    let payloads = [];
    let bytes = 0;
    const flush = () => {
      if (!rows.length) return;
      const body = encodeBody(KIND.Rows, { step, rows });
      messages.push(this.#frames(KIND.Rows, body, Buffer.concat(payloads)));
      [rows, payloads, bytes] = [[], [], 0];
    };
    entries.forEach((entry, index) => {
      const { chain, status } = this.#propose(entry);
      for (const { row, payload } of chain) {
        const alone = entry.representation === DENSE;
        if (alone || bytes + payload.length > this.#terms.frame_bytes_max) flush();
        rows.push({ entry: index, ...row });
        payloads.push(payload);
        bytes += payload.length;
        if (alone) flush();
      }
      completions.push(completionEntry(entry, chain, status));
    });
    flush();
    const body = encodeBody(KIND.Completion, { step, entries: completions });
    messages.push(this.#frames(KIND.Completion, body));
    return messages;
  }

  /** The rows of one request: all of its depth or, with a status, none. */
  #propose(entry) {
    try {
      const session = this.#checkSession(entry);
      session.round = entry.round;
      session.chain = [];
      const chain = this.#drawChain(session, entry);
      session.chain = chain.map(({ row }) => row.token);
      return { chain, status: 0 };
    } catch (fault) {
      if (!(fault instanceof Fault)) throw fault;
      return { chain: [], status: fault.code };
    }
  }

  #drawChain(session, entry) {
    const { depth, round, support, representation } = entry;
    if (depth) {
      session.drawn.set(hex(session.key), round);
      if (session.drawn.size > KEYS_KEPT) session.drawn.delete(session.drawn.keys().next().value);
    }
    const chain = [];
    const drafts = [];
    for (let i = 0; i < depth; i++) {
      const position = entry.position + i;
      const counts = allocate(this.#engine.weights(drafts.at(-1) ?? session.prefix.last), support);
      const token = draw(counts, proposalTicket(session.key, round, position));
      const { payload, entries } = rowBytes(counts, representation);
      const row = { position, token, representation, entries, byte_length: payload.length };
      row.checksum = rowChecksum(entry, row, drafts, payload);
      chain.push({ row, payload });
      drafts.push(token);
    }
    return chain;
  }
}

function packed(method, size, values) {
  const bytes = Buffer.alloc(size * values.length);
  values.forEach((value, i) => bytes[method](value, size * i));
  return bytes;
}

const u32 = (...values) => packed("writeUInt32LE", 4, values);
const i32 = (...values) => packed("writeInt32LE", 4, values);
const u64 = (...values) => packed("writeBigUInt64LE", 8, values);

function rowChecksum(entry, row, drafts, payload) {
  return xxh3(Buffer.concat([
    entry.session_id, u32(entry.slot), u64(entry.generation),
    u32(entry.round, row.position, drafts.length), i32(row.token),
    u32(row.representation, row.entries), i32(...drafts), payload,
  ]));
}

function completionEntry(entry, chain, status) {
  const { session_id, slot, generation, round } = entry;
  const replyBytes = BigInt(chain.reduce((sum, { payload }) => sum + payload.length, 0));
  const checksum = xxh3(Buffer.concat([
    session_id, u32(slot), u64(generation), u32(round, status, chain.length), u64(replyBytes),
    u64(...chain.map(({ row }) => row.checksum)),
  ]));
  return {
    session_id, generation, round, status, row_count: chain.length, reply_bytes: replyBytes,
    checksum,
  };
}
