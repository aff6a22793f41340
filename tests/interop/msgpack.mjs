// The part of MessagePack that bodies use, in its shortest encoding.
//
// `Reader` takes any encoding of the wanted type and remembers in `canonical`
// whether all of them were the shortest; the type is always the caller's choice,
// so nothing nests and nothing is allocated because the bytes say so.

/** A value that is not of the type that is wanted here, or ends too early. */
export class WrongType extends Error {}

export class Writer {
  #parts = [];

  bytes() {
    return Buffer.concat(this.#parts);
  }

  #head(first, size, value) {
    const part = Buffer.alloc(1 + size);
    part[0] = first;
    if (size === 8) part.writeBigUInt64BE(BigInt.asUintN(64, BigInt(value)), 1);
    else if (size) part.writeUIntBE(value, 1, size);
    this.#parts.push(part);
  }

  int(value) {
    if (value < 0) {
      if (value >= -32) this.#head(256 + Number(value), 0);
      else if (value >= -0x80) this.#head(0xd0, 1, 0x100 + Number(value));
      else if (value >= -0x8000) this.#head(0xd1, 2, 0x10000 + Number(value));
      else if (value >= -0x80000000) this.#head(0xd2, 4, 0x100000000 + Number(value));
      else this.#head(0xd3, 8, value);
    } else if (value < 0x80) this.#head(Number(value), 0);
    else if (value < 0x100) this.#head(0xcc, 1, Number(value));
    else if (value < 0x10000) this.#head(0xcd, 2, Number(value));
    else if (value < 0x100000000) this.#head(0xce, 4, Number(value));
    else this.#head(0xcf, 8, value);
  }

  bool(value) {
    this.#head(value ? 0xc3 : 0xc2, 0);
  }

  float(value) {
    const part = Buffer.alloc(9);
    part[0] = 0xcb;
    part.writeDoubleBE(value, 1);
    this.#parts.push(part);
  }

  #sized(length, heads) {
    const size = length < 0x100 && heads[0] !== null ? 1 : length < 0x10000 ? 2 : 4;
    this.#head(heads[size >> 1], size, length);
  }

  str(value) {
    const bytes = Buffer.from(value, "utf8");
    if (bytes.length < 32) this.#head(0xa0 + bytes.length, 0);
    else this.#sized(bytes.length, [0xd9, 0xda, 0xdb]);
    this.#parts.push(bytes);
  }

  bin(bytes) {
    this.#sized(bytes.length, [0xc4, 0xc5, 0xc6]);
    this.#parts.push(bytes);
  }

  array(length) {
    if (length < 16) this.#head(0x90 + length, 0);
    else this.#sized(length, [null, 0xdc, 0xdd]);
  }
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class Reader {
  canonical = true;
  #bytes;
  #at = 0;

  constructor(bytes) {
    this.#bytes = bytes;
  }

  get atEnd() {
    return this.#at === this.#bytes.length;
  }

  #take(count) {
    if (count > this.#bytes.length - this.#at) throw new WrongType("an early end");
    const taken = this.#bytes.subarray(this.#at, this.#at + count);
    this.#at += count;
    return taken;
  }

  #first() {
    return this.#take(1)[0];
  }

  /** An unsigned number of 1, 2, 4 or 8 bytes; `least` is what does not fit a shorter form. */
  #number(size, least) {
    const bytes = this.#take(size);
    const value = size === 8 ? bytes.readBigUInt64BE() : bytes.readUIntBE(0, size);
    if (value < least) this.canonical = false;
    return value;
  }

  #signed(size, most) {
    const bytes = this.#take(size);
    const value = size === 8 ? bytes.readBigInt64BE() : bytes.readIntBE(0, size);
    if (value > most) this.canonical = false;
    return value;
  }

  /** An integer: a number, or a BigInt where it was written in eight bytes. */
  int() {
    const first = this.#first();
    if (first < 0x80) return first;
    if (first >= 0xe0) return first - 256;
    switch (first) {
      case 0xcc: return this.#number(1, 0x80);
      case 0xcd: return this.#number(2, 0x100);
      case 0xce: return this.#number(4, 0x10000);
      case 0xcf: return this.#number(8, 0x100000000n);
      case 0xd0: return this.#signed(1, -33);
      case 0xd1: return this.#signed(2, -0x81);
      case 0xd2: return this.#signed(4, -0x8001);
      case 0xd3: return this.#signed(8, -0x80000001n);
    }
    throw new WrongType(`type byte ${first}`);
  }

  bool() {
    const first = this.#first();
    if (first !== 0xc2 && first !== 0xc3) throw new WrongType(`type byte ${first}`);
    return first === 0xc3;
  }

  float() {
    const first = this.#first();
    if (first === 0xcb) return this.#take(8).readDoubleBE();
    if (first !== 0xca) throw new WrongType(`type byte ${first}`);
    this.canonical = false;
    return this.#take(4).readFloatBE();
  }

  #length(first, heads, shorter) {
    const which = heads.indexOf(first);
    if (which < 0) throw new WrongType(`type byte ${first}`);
    return this.#number(1 << which, [shorter, heads[0] === null ? shorter : 0x100, 0x10000][which]);
  }

  str() {
    const first = this.#first();
    const short = first >= 0xa0 && first < 0xc0;
    const length = short ? first - 0xa0 : this.#length(first, [0xd9, 0xda, 0xdb], 32);
    const bytes = this.#take(length);
    try {
      return UTF8.decode(bytes);
    } catch {
      throw new WrongType("text that is not UTF-8");
    }
  }

  /** A copy, so that a digest that is kept does not keep the whole message. */
  bin() {
    return Buffer.from(this.#take(this.#length(this.#first(), [0xc4, 0xc5, 0xc6], 0)));
  }

  /** The length of an array whose elements follow. */
  array() {
    const first = this.#first();
    if (first >= 0x90 && first < 0xa0) return first - 0x90;
    return this.#length(first, [null, 0xdc, 0xdd], 16);
  }
}
