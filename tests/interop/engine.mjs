// The order-one Markov test law as a drafter: the weights depend on the last token only.

import { blake2b } from "./hashes.mjs";

const WEIGHT_MAX = 32n;

function lawRow(seed, size, last) {
  const words = [];
  for (let token = 0; token < size; token++) {
    const message = Buffer.alloc(32);
    [seed, BigInt(size), BigInt(last), BigInt(token)].forEach((value, i) =>
      message.writeBigUInt64LE(value, 8 * i),
    );
    const digest = blake2b(message, 24, { person: "PP1-markov-v1" });
    words.push([0, 8, 16].map((at) => digest.readBigUInt64LE(at)));
  }
  const weight = (word) => 1 + Number(word % WEIGHT_MAX);
  const draft = words.map((word) => (weight(word[1]) + weight(word[2]) + 1) >> 1);
  const order = [...words.keys()].sort((a, b) => {
    if (words[a][0] !== words[b][0]) return words[a][0] < words[b][0] ? -1 : 1;
    return a - b;
  });
  const zeros = Math.max(1, size >> 3);
  for (const token of order.slice(zeros, 2 * zeros)) draft[token] = 0;
  return draft;
}

export class MarkovDraft {
  #weights;

  constructor(size, seed) {
    this.size = size;
    this.draftCheckpoint = `markov-draft-v1/V${size}/seed${seed}`;
    this.targetCheckpoint = `markov-target-v1/V${size}/seed${seed}`;
    this.processors = "none";
    this.vocabularyHash = vocabularyHash(size);
    this.#weights = Array.from({ length: size }, (_, last) => {
      const row = lawRow(seed, size, last);
      const total = row.reduce((sum, weight) => sum + weight, 0);
      return Float64Array.from(row, (weight) => weight / total);
    });
  }

  /** Draft probabilities after a context that ends in `last`. */
  weights(last) {
    return this.#weights[last];
  }
}

function vocabularyHash(size) {
  const parts = [Buffer.alloc(4)];
  parts[0].writeUInt32LE(size);
  for (let id = 0; id < size; id++) {
    const token = Buffer.from(`m${id}`);
    const length = Buffer.alloc(4);
    length.writeUInt32LE(token.length);
    parts.push(length, token);
  }
  return blake2b(Buffer.concat(parts), 32, { person: "PP1-vocab-v2" });
}
