// What two hellos agree on, or why they cannot.

import { CODE, Fault } from "./codes.mjs";
import { blake2b } from "./hashes.mjs";
import {
  DEPTH_MAX, PAYLOAD_BYTES_MAX, REQUESTS_MAX, SUPPORT_MAX, WIRE_VERSION,
} from "./messages.mjs";
import { Writer } from "./msgpack.mjs";
import { DENSE, SPARSE } from "./proposal.mjs";

const RANK_ZERO = 2;
const BATCHES_IN_FLIGHT = 2n;

const IDENTITIES = [
  ["semantics", CODE.SEMANTICS_MISMATCH],
  ["verifier", CODE.VERIFIER_MISMATCH],
  ["rng_abi", CODE.RNG_ABI_MISMATCH],
  ["precision", CODE.PRECISION_MISMATCH],
  ["vocabulary_size", CODE.VOCABULARY_SIZE_MISMATCH],
  ["legal_size", CODE.VOCABULARY_SIZE_MISMATCH],
  ["vocabulary_hash", CODE.VOCABULARY_HASH_MISMATCH],
  ["draft_checkpoint", CODE.DRAFT_MISMATCH],
  ["draft_native", CODE.DRAFT_MISMATCH],
  ["target_checkpoint", CODE.TARGET_MISMATCH],
  ["processors", CODE.PROCESSORS_MISMATCH],
];
const BOUNDS = [
  ["requests_max", 1, REQUESTS_MAX],
  ["depth_max", 1, DEPTH_MAX],
  ["support_max", 1, SUPPORT_MAX],
  ["frame_bytes_max", 8, PAYLOAD_BYTES_MAX],
  ["staging_bytes", 8n, 2n ** 64n - 1n],
];

/** Bytes of the largest row that the representations can give. */
export function largestRow(representations, vocabularySize, supportMax) {
  return Math.max(
    representations.includes(DENSE) ? 4 * vocabularySize : 0,
    representations.includes(SPARSE) ? 8 * Math.min(supportMax, vocabularySize) : 0,
  );
}

/** Staging bytes that two batches of the largest rows need. */
export function stagingNeeded(requestsMax, depthMax, rowBytesMax) {
  return BigInt(requestsMax) * BATCHES_IN_FLIGHT * BigInt(depthMax) * BigInt(rowBytesMax);
}

function differ(a, b) {
  return Buffer.isBuffer(a) ? !a.equals(b) : a !== b;
}

function shown(value) {
  return Buffer.isBuffer(value) ? value.toString("hex") : value;
}

/** The terms of our hello and a caller's. Throws a `Fault` with the first that is wrong. */
export function deriveTerms(own, caller) {
  if (caller.role !== RANK_ZERO) {
    throw new Fault(CODE.ROLE_MISMATCH, "role", RANK_ZERO, caller.role);
  }
  if (caller.wire_min > WIRE_VERSION || caller.wire_max < WIRE_VERSION) {
    const range = `${caller.wire_min}..${caller.wire_max}`;
    throw new Fault(CODE.WIRE_RANGE, "wire_min", WIRE_VERSION, range);
  }
  for (const [field, code] of IDENTITIES) {
    if (differ(own[field], caller[field])) {
      throw new Fault(code, field, shown(own[field]), shown(caller[field]));
    }
  }
  const representations = own.representations.filter((one) => caller.representations.includes(one));
  if (!representations.length) {
    throw new Fault(
      CODE.NO_COMMON_REPRESENTATION, "representations", own.representations, caller.representations,
    );
  }
  const terms = { representations };
  for (const [field, least, most] of BOUNDS) {
    terms[field] = [own[field], caller[field], most].reduce((a, b) => (a < b ? a : b));
    if (terms[field] < least) {
      throw new Fault(CODE.BOUND_TOO_SMALL, field, `at least ${least}`, terms[field]);
    }
  }
  terms.row_bytes_max = largestRow(representations, own.vocabulary_size, terms.support_max);
  if (terms.frame_bytes_max < terms.row_bytes_max) {
    const wanted = `at least ${terms.row_bytes_max}`;
    throw new Fault(CODE.BOUND_TOO_SMALL, "frame_bytes_max", wanted, terms.frame_bytes_max);
  }
  const needed = stagingNeeded(terms.requests_max, terms.depth_max, terms.row_bytes_max);
  if (terms.staging_bytes < needed) {
    throw new Fault(
      CODE.STAGING_TOO_SMALL, "staging_bytes", `at least ${needed}`, terms.staging_bytes,
    );
  }
  return { ...terms, digest: termsDigest(own, terms) };
}

function termsDigest(own, terms) {
  const writer = new Writer();
  writer.array(19);
  writer.int(WIRE_VERSION);
  for (const field of ["semantics", "verifier", "rng_abi", "precision"]) writer.str(own[field]);
  writer.array(terms.representations.length);
  for (const representation of terms.representations) writer.int(representation);
  writer.int(own.vocabulary_size);
  writer.int(own.legal_size);
  writer.bin(own.vocabulary_hash);
  writer.str(own.draft_checkpoint);
  writer.bool(own.draft_native);
  writer.str(own.target_checkpoint);
  writer.str(own.processors);
  for (const [field] of BOUNDS) writer.int(terms[field]);
  writer.int(terms.row_bytes_max);
  return blake2b(writer.bytes(), 32, { person: "PP1-terms-v2" });
}

/** The epoch of a link, from both nonces and the digest of its terms. */
export function linkEpoch(callerNonce, calledNonce, digest) {
  const message = Buffer.concat([callerNonce, calledNonce, digest]);
  return blake2b(message, 8, { person: "PP1-epoch-v2" }).readBigUInt64LE() || 1n;
}
