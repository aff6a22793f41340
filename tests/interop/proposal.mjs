// From weights to integer counts, a drawn token and the bytes of its row.

import { CODE, Fault } from "./codes.mjs";

export const MASS = 2 ** 24;
export const DENSE = 1;
export const SPARSE = 2;
const SUM_TOLERANCE = 1e-9;

function checkWeights(weights) {
  let sum = 0;
  for (const weight of weights) {
    if (!(weight >= 0 && weight < Infinity)) {
      throw new Fault(CODE.WEIGHTS_INVALID, "weights", "finite values from 0 on", weight);
    }
    sum += weight;
  }
  if (!(Math.abs(sum - 1) <= SUM_TOLERANCE)) {
    throw new Fault(CODE.WEIGHTS_INVALID, "weights", "a sum of 1", sum);
  }
}

/** The ids, ascending, of the k largest positive weights; the lowest id among equal ones. */
function largest(weights, k) {
  const ids = Array.from(weights.keys()).filter((id) => weights[id] > 0);
  ids.sort((a, b) => weights[b] - weights[a] || a - b);
  return ids.slice(0, k).sort((a, b) => a - b);
}

/** Integer counts of total MASS, one an id, for FP64 weights; `support` is 0 or the k of top-k. */
export function allocate(weights, support) {
  checkWeights(weights);
  const ids = support ? largest(weights, support) : Array.from(weights.keys());
  const total = support ? ids.reduce((sum, id) => sum + weights[id], 0) : 1;
  const counts = new Uint32Array(weights.length);
  const rests = new Map();
  let left = MASS;
  for (const id of ids) {
    const exact = (weights[id] / total) * MASS;
    counts[id] = Math.floor(exact);
    left -= counts[id];
    if (exact > counts[id]) rests.set(id, exact - counts[id]);
  }
  if (left < 0 || left > rests.size) {
    throw new Fault(CODE.ALLOCATION_INCONSISTENT, "weights", `0..${rests.size} tickets left`, left);
  }
  const order = [...rests.keys()].sort((a, b) => rests.get(b) - rests.get(a) || a - b);
  for (const id of order.slice(0, left)) counts[id] += 1;
  return counts;
}

/** The first id whose cumulative count is strictly greater than the ticket. */
export function draw(counts, ticket) {
  let cumulative = 0;
  return counts.findIndex((count) => (cumulative += count) > ticket);
}

/** The row's payload and its number of entries. */
export function rowBytes(counts, representation) {
  if (representation === DENSE) {
    const payload = Buffer.alloc(4 * counts.length);
    counts.forEach((count, id) => payload.writeFloatLE(count / MASS, 4 * id));
    return { payload, entries: counts.length };
  }
  const ids = Array.from(counts.keys()).filter((id) => counts[id]);
  const payload = Buffer.alloc(8 * ids.length);
  ids.forEach((id, j) => {
    payload.writeInt32LE(id, 4 * j);
    payload.writeFloatLE(counts[id] / MASS, 4 * (ids.length + j));
  });
  return { payload, entries: ids.length };
}
