// Header, message schemas and their canonical bodies: wire version 2.

import { CODE, Fault } from "./codes.mjs";
import { xxh3 } from "./hashes.mjs";
import { Reader, Writer, WrongType } from "./msgpack.mjs";

export const WIRE_VERSION = 2;
export const HEADER_BYTES = 64;
export const BODY_BYTES_MAX = 1048576;
export const PAYLOAD_BYTES_MAX = 4194304;
export const PREFIX_TOKENS_MAX = 131072;
export const REQUESTS_MAX = 4;
export const DEPTH_MAX = 5;
export const SUPPORT_MAX = 16160;
const MAGIC = Buffer.from("PP1q");

// A type reads one value (or throws) and writes one.

function int(least, most) {
  return {
    read(reader, field) {
      const value = reader.int();
      if (value < least || value > most) throw malformed(field, `${least}..${most}`, value);
      return typeof most === "bigint" ? BigInt(value) : Number(value);
    },
    write: (writer, value) => writer.int(value),
  };
}

function sized(method, unit, least, most) {
  return {
    read(reader, field) {
      const value = reader[method]();
      const length = unit(value);
      if (length < least || length > most) throw malformed(field, `${least}..${most} long`, length);
      return value;
    },
    write: (writer, value) => writer[method](value),
  };
}

const bin = (least, most = least) => sized("bin", (value) => value.length, least, most);
const str = (most) => sized("str", (value) => [...value].length, 0, most);
const LENGTH = { read: (reader) => reader.array() };
const BOOL = { read: (reader) => reader.bool(), write: (writer, value) => writer.bool(value) };
const FLOAT = { read: (reader) => reader.float(), write: (writer, value) => writer.float(value) };

function array(item, most, least = 0) {
  return {
    read(reader, field) {
      const length = reader.array();
      if (length < least || length > most) {
        throw malformed(field, `${least}..${most} elements`, length);
      }
      return Array.from({ length }, () => item.read(reader, field));
    },
    write(writer, values) {
      writer.array(values.length);
      for (const value of values) item.write(writer, value);
    },
  };
}

function record(fields) {
  const all = Object.entries(fields);
  return {
    read(reader, field) {
      const length = reader.array();
      if (length !== all.length) throw malformed(field, `${all.length} elements`, length);
      return readFields(reader, all);
    },
    write(writer, value) {
      writer.array(all.length);
      for (const [name, type] of all) type.write(writer, value[name]);
    },
  };
}

function readFields(reader, all) {
  const value = {};
  for (const [name, type] of all) {
    try {
      value[name] = type.read(reader, name);
    } catch (error) {
      throw error instanceof WrongType ? malformed(name, "its type", error.message) : error;
    }
  }
  return value;
}

function malformed(field, wanted, got) {
  return new Fault(CODE.MALFORMED, field, wanted, got);
}

const U8 = int(0, 255);
const U31 = int(0, 2 ** 31 - 1);
const U32 = int(0, 2 ** 32 - 1);
const U64 = int(0n, 2n ** 64n - 1n);
const I32 = int(-(2 ** 31), 2 ** 31 - 1);
const GENERATION = int(1n, 2n ** 63n - 1n);
const GENERATION_OR_ZERO = int(0n, 2n ** 63n - 1n);
const ROUND = int(1, 2 ** 32 - 1);
const ID = bin(16);
const DIGEST = bin(16);
const NAME = str(200);
const TEXT = str(400);
const PREFIX = bin(0, 4 * PREFIX_TOKENS_MAX);
const STOP_TOKENS = array(I32, 64);
const ENTRIES_MAX = REQUESTS_MAX;

const REFUSAL = { code: U32, field: TEXT, wanted: TEXT, got: TEXT };
const PREPARE = {
  step: U64,
  entries: array(
    record({ session_id: ID, generation: GENERATION, round: ROUND, status: U32, digest: DIGEST }),
    ENTRIES_MAX,
  ),
};
const INVALIDATE = {
  step: U64,
  entries: array(record({ session_id: ID, generation: GENERATION, reason: U32 }), ENTRIES_MAX),
};
const STEP_ENTRY = record({
  session_id: ID, slot: U8, generation: GENERATION, round: ROUND, position: U31, digest: DIGEST,
  depth: U8, temperature: FLOAT, representation: U8, support: U32, context: U64,
});
const ROW = record({
  entry: U8, position: U31, token: I32, representation: U8, entries: U32, byte_length: U32,
  checksum: U64,
});
const COMPLETION_ENTRY = record({
  session_id: ID, generation: GENERATION, round: ROUND, status: U32, row_count: U8,
  reply_bytes: U64, checksum: U64,
});
const COMMIT_ENTRY = record({
  session_id: ID, generation: GENERATION, round: ROUND, accepted: U8, last: array(I32, 1),
  position: U31, digest: DIGEST,
});
const VERDICT_ENTRY = record({
  session_id: ID, generation: GENERATION, round: ROUND, status: U32, accepted: U8, rejected: U8,
  unverified: U8, last: U8, finish: U8, tokens: bin(0, 24),
});
const DECISION_ENTRY = record({
  kind: U8, session_id: ID, generation: GENERATION_OR_ZERO, round: U32, reason: U32, depth: U8,
  accepted: U8, rejected: U8, unverified: U8, last: U8, finish: U8, token_count: U8,
  tokens: bin(24), position: U31, digest: DIGEST,
});

export const KIND = {
  Hello: 1, TermsAgreed: 2, Refuse: 3, Ping: 4, Pong: 5, Nak: 6, Reset: 10, Ready: 11, Step: 12,
  Rows: 13, Completion: 14, Commit: 15, Cancel: 16,
};

const SCHEMAS = new Map(
  Object.entries({
    1: {
      role: U8, wire_min: U8, wire_max: U8, nonce: ID, semantics: NAME, verifier: NAME,
      rng_abi: NAME, representations: array(U8, 16), vocabulary_size: U32, legal_size: U32,
      vocabulary_hash: bin(32), draft_checkpoint: NAME, draft_native: BOOL,
      target_checkpoint: NAME, processors: NAME, precision: NAME, requests_max: U32,
      depth_max: U32, support_max: U32, frame_bytes_max: U32, staging_bytes: U64,
    },
    2: { nonce: ID, digest: bin(32) },
    3: REFUSAL,
    4: { token: U64 },
    5: { token: U64 },
    6: { ...REFUSAL, step: U64, session_id: bin(0, 16) },
    10: {
      session_id: ID, request_id: U64, slot: U8, generation: GENERATION, round: U32, reason: U32,
      base_length: U31, base_digest: DIGEST, suffix: PREFIX, digest: DIGEST, key: bin(8),
      context: U64,
    },
    11: { session_id: ID, generation: GENERATION, length: U31, digest: DIGEST },
    12: { step: U64, entries: array(STEP_ENTRY, ENTRIES_MAX) },
    13: { step: U64, rows: array(ROW, 20) },
    14: { step: U64, entries: array(COMPLETION_ENTRY, ENTRIES_MAX) },
    15: { entries: array(COMMIT_ENTRY, ENTRIES_MAX) },
    16: { session_id: ID, generation: GENERATION, reason: U32 },
    20: {
      session_id: ID, request_id: U64, slot: U8, owner: U8, session_seed: bin(32), prompt: PREFIX,
      temperature: FLOAT, stop_tokens: STOP_TOKENS, tokens_max: U32, context: U64, digest: DIGEST,
    },
    21: PREPARE,
    22: PREPARE,
    23: INVALIDATE,
    24: INVALIDATE,
    25: { step: U64, uses: array(BOOL, ENTRIES_MAX) },
    26: { step: U64, entries: array(VERDICT_ENTRY, ENTRIES_MAX) },
    27: { step: U64, entries: array(DECISION_ENTRY, 4, 4) },
    28: { step: U64, digest: DIGEST },
    40: {},
    41: {
      target_checkpoint: NAME, processors: NAME, vocabulary_size: U32, legal_size: U32,
      vocabulary_hash: bin(32), context_tokens_max: U32, stop_tokens: STOP_TOKENS,
      requests_max: U32, pair_ready: BOOL, worker_ready: BOOL,
    },
    42: {
      key: U64, prompt: PREFIX, tokens_max: U32, temperature: FLOAT, draft_temperature: FLOAT,
      seed: bin(0, 32), stop_tokens: STOP_TOKENS, depth: U8, representation: U8, support: U32,
    },
    43: { key: U64, index: U32, tokens: bin(0, 24), depth: U8, accepted: U8, reason: U32 },
    44: {
      key: U64, finish: U8, token_count: U32, rounds_speculative: U32, rounds_target_only: U32,
      drafted: U32, accepted: U32, rejected: U32, unverified: U32, accepted_at: array(U32, 5),
      drafted_at: array(U32, 5),
    },
    45: { key: U64, ...REFUSAL },
    46: { key: U64 },
  }).map(([kind, fields]) => [Number(kind), Object.entries(fields)]),
);

/** The canonical body of a message. */
export function encodeBody(kind, message) {
  const fields = SCHEMAS.get(kind);
  const writer = new Writer();
  writer.array(1 + fields.length);
  writer.int(kind);
  for (const [name, type] of fields) type.write(writer, message[name]);
  return writer.bytes();
}

/** The message of a body whose header named `kind`, a registered one. Throws a `Fault`. */
export function decodeBody(kind, body) {
  const fields = SCHEMAS.get(kind);
  const reader = new Reader(body);
  const { elements, found } = readFields(reader, [["elements", LENGTH], ["found", U32]]);
  if (elements !== 1 + fields.length) {
    throw malformed("body", `${1 + fields.length} elements`, elements);
  }
  const message = readFields(reader, fields);
  if (found !== kind) throw new Fault(CODE.KIND_MISMATCH, "kind", kind, found);
  if (!reader.canonical || !reader.atEnd) {
    throw new Fault(CODE.NOT_CANONICAL, "body", "the shortest encoding", "another");
  }
  return message;
}

/** The frames of a message: header, body and, with Rows, a payload. */
export function encodeFrames(kind, body, bootId, epoch, payload = null) {
  const header = Buffer.alloc(HEADER_BYTES);
  MAGIC.copy(header);
  header[4] = WIRE_VERSION;
  header[5] = kind;
  header[6] = payload ? 1 : 0;
  header.writeUInt32LE(body.length, 8);
  header.writeUInt32LE(payload ? payload.length : 0, 12);
  bootId.copy(header, 16);
  header.writeBigUInt64LE(epoch, 32);
  header.writeBigUInt64LE(xxh3(body), 40);
  header.writeBigUInt64LE(xxh3(header.subarray(0, 56)), 56);
  return payload ? [header, body, payload] : [header, body];
}

/**
 * The envelope of a message of `count` frames, of which the first come as `{length, bytes}`.
 * Frames longer than their bound, and payloads, come without all of their bytes.
 * Throws a `Fault`; its `kind` says what kind a message of another wire version has.
 */
export function openEnvelope(frames, count, payloadMax) {
  const { length, bytes: header } = frames[0];
  const fault = (code, field, wanted, got) => new Fault(CODE[code], field, wanted, got);
  if (!header.subarray(0, 4).equals(MAGIC)) throw fault("NOT_OURS", "magic", "PP1q", "other bytes");
  if (header.length > 4 && header[4] !== WIRE_VERSION) {
    const found = fault("WIRE_VERSION", "wire_version", WIRE_VERSION, header[4]);
    throw Object.assign(found, { kind: header[5] });
  }
  if (length !== HEADER_BYTES) throw fault("HEADER_LENGTH", "header", HEADER_BYTES, length);
  if (header.readBigUInt64LE(56) !== xxh3(header.subarray(0, 56))) {
    throw fault("HEADER_CHECKSUM", "header", "its checksum", "another");
  }
  if (header[7] !== 0 || header.readBigUInt64LE(48) !== 0n) {
    throw fault("NOT_CANONICAL", "reserved", 0, "other bytes");
  }
  const kind = header[5];
  if (!SCHEMAS.has(kind)) throw fault("KIND_UNKNOWN", "kind", "a registered kind", kind);
  const payloads = header[6];
  if (payloads > (kind === KIND.Rows ? 1 : 0)) {
    throw fault("FRAME_COUNT", "payload_frames", "one with Rows only", payloads);
  }
  const bodyLength = header.readUInt32LE(8);
  const payloadLength = header.readUInt32LE(12);
  if (bodyLength > BODY_BYTES_MAX) throw fault("BODY_LENGTH", "body", BODY_BYTES_MAX, bodyLength);
  if (payloadLength > (payloads ? payloadMax : 0)) {
    throw fault("PAYLOAD_LENGTH", "payload", payloads ? payloadMax : 0, payloadLength);
  }
  if (count !== 2 + payloads) {
    throw fault("FRAME_COUNT", "frames", 2 + payloads, count);
  }
  if (frames[1].length !== bodyLength) {
    throw fault("BODY_LENGTH", "body", bodyLength, frames[1].length);
  }
  if (header.readBigUInt64LE(40) !== xxh3(frames[1].bytes)) {
    throw fault("BODY_CHECKSUM", "body", "its checksum", "another");
  }
  if (payloads && frames[2].length !== payloadLength) {
    throw fault("PAYLOAD_LENGTH", "payload", payloadLength, frames[2].length);
  }
  return {
    kind,
    bootId: Buffer.from(header.subarray(16, 32)),
    epoch: header.readBigUInt64LE(32),
    body: frames[1].bytes,
  };
}
