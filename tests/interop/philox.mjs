// The RNG ABI philox4x32-10/blake2b-v1: the block function and the worker's tickets.

import { mulHigh32 } from "./hashes.mjs";

const MULTIPLIER_0 = 0xd2511f53;
const MULTIPLIER_1 = 0xcd9e8d57;
const WEYL_0 = 0x9e3779b9;
const WEYL_1 = 0xbb67ae85;
const PROPOSAL = 1;

/** The four output words of Philox4x32-10 for a counter of four words and a key of two. */
export function philox(counter, key) {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < 10; round++) {
    const high0 = mulHigh32(MULTIPLIER_0, c0);
    const low0 = Math.imul(MULTIPLIER_0, c0) >>> 0;
    const high1 = mulHigh32(MULTIPLIER_1, c2);
    const low1 = Math.imul(MULTIPLIER_1, c2) >>> 0;
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1, (high0 ^ c3 ^ k1) >>> 0, low0];
    k0 = (k0 + WEYL_0) >>> 0;
    k1 = (k1 + WEYL_1) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/** The 24-bit ticket of a draft at an absolute position; `key` is the worker's, 8 bytes. */
export function proposalTicket(key, round, position) {
  const words = [key.readUInt32LE(0), key.readUInt32LE(4)];
  return philox([PROPOSAL * 2 ** 24, position, round, 0], words)[0] >>> 8;
}
