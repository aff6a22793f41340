// A committed prefix: token ids with their chain of digests.

import { blake2b } from "./hashes.mjs";

const MARK_EVERY = 1024;
const PERSON = { person: "PP1-prefix-v2" };

function chained(digest, token) {
  const message = Buffer.alloc(20);
  digest.copy(message);
  message.writeInt32LE(token, 16);
  return blake2b(message, 16, PERSON);
}

export class Prefix {
  #tokens = new Int32Array(0);
  #marks; // the digests at multiples of MARK_EVERY, so that any earlier one is near

  constructor(sessionId) {
    this.length = 0;
    this.digest = blake2b(sessionId, 16, PERSON);
    this.#marks = [this.digest];
  }

  get last() {
    return this.#tokens[this.length - 1];
  }

  /** The digest that these tokens would lead to. */
  digestWith(tokens) {
    return tokens.reduce(chained, this.digest);
  }

  append(tokens) {
    const length = this.length + tokens.length;
    if (length > this.#tokens.length) {
      const grown = new Int32Array(Math.max(length, Math.ceil(this.#tokens.length * 1.25)));
      grown.set(this.#tokens.subarray(0, this.length));
      this.#tokens = grown;
    }
    for (const token of tokens) {
      this.#tokens[this.length++] = token;
      this.digest = chained(this.digest, token);
      if (this.length % MARK_EVERY === 0) this.#marks.push(this.digest);
    }
  }

  /** A prefix of its own with the first `length` tokens, at most as many as there are. */
  first(length) {
    const copy = new Prefix(Buffer.alloc(0));
    const marks = Math.floor(length / MARK_EVERY);
    copy.#tokens = this.#tokens.slice(0, length);
    copy.#marks = this.#marks.slice(0, marks + 1);
    copy.digest = copy.#marks[marks];
    for (let i = marks * MARK_EVERY; i < length; i++) {
      copy.digest = chained(copy.digest, this.#tokens[i]);
    }
    copy.length = length;
    return copy;
  }
}
