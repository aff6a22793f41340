// XXH3-64 (seed 0, default secret) and parametrised BLAKE2b (RFC 7693).

const MASK64 = (1n << 64n) - 1n;
const PRIME32_1 = 0x9e3779b1n;
const PRIME32_2 = 0x85ebca77n;
const PRIME32_3 = 0xc2b2ae3dn;
const PRIME64_1 = 0x9e3779b185ebca87n;
const PRIME64_2 = 0xc2b2ae3d27d4eb4fn;
const PRIME64_3 = 0x165667b19e3779f9n;
const PRIME64_4 = 0x85ebca77c2b2ae63n;
const PRIME64_5 = 0x27d4eb2f165667c5n;
const PRIME_MX1 = 0x165667919e3779f9n;
const PRIME_MX2 = 0x9fb21c651e98df25n;

const SECRET = Buffer.from(
  "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f" +
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c" +
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364" +
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e" +
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e",
  "hex",
);
const STRIPE = 64;
const SECRET_STEP = 8;
const STRIPES_PER_BLOCK = (SECRET.length - STRIPE) / SECRET_STEP;

const u64 = (bytes, at) => bytes.readBigUInt64LE(at);
const u32 = (bytes, at) => BigInt(bytes.readUInt32LE(at));
const secret64 = (at) => SECRET.readBigUInt64LE(at);
const xorshift = (x, by) => x ^ (x >> by);

function swap64(x) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(x);
  return bytes.readBigUInt64BE();
}

function rotl64(x, by) {
  return ((x << by) | (x >> (64n - by))) & MASK64;
}

function fold128(a, b) {
  const product = a * b;
  return (product & MASK64) ^ (product >> 64n);
}

function avalanche64(x) {
  x = (xorshift(x, 33n) * PRIME64_2) & MASK64;
  x = (xorshift(x, 29n) * PRIME64_3) & MASK64;
  return xorshift(x, 32n);
}

function avalanche3(x) {
  return xorshift((xorshift(x, 37n) * PRIME_MX1) & MASK64, 32n);
}

function rrmxmx(x, length) {
  x ^= rotl64(x, 49n) ^ rotl64(x, 24n);
  x = (x * PRIME_MX2) & MASK64;
  x ^= (x >> 35n) + length;
  x = (x * PRIME_MX2) & MASK64;
  return xorshift(x, 28n);
}

const mix16 = (bytes, at, secretAt) =>
  fold128(u64(bytes, at) ^ secret64(secretAt), u64(bytes, at + 8) ^ secret64(secretAt + 8));

function upTo16(bytes) {
  const n = bytes.length;
  const length = BigInt(n);
  if (n > 8) {
    const low = u64(bytes, 0) ^ secret64(24) ^ secret64(32);
    const high = u64(bytes, n - 8) ^ secret64(40) ^ secret64(48);
    return avalanche3((length + swap64(low) + high + fold128(low, high)) & MASK64);
  }
  if (n >= 4) {
    const both = u32(bytes, n - 4) + (u32(bytes, 0) << 32n);
    return rrmxmx(both ^ secret64(8) ^ secret64(16), length);
  }
  if (n > 0) {
    const word =
      (BigInt(bytes[0]) << 16n) | (BigInt(bytes[n >> 1]) << 24n) | BigInt(bytes[n - 1]) | (length << 8n);
    return avalanche64(word ^ u32(SECRET, 0) ^ u32(SECRET, 4));
  }
  return avalanche64(secret64(56) ^ secret64(64));
}

function upTo128(bytes) {
  const n = bytes.length;
  let sum = BigInt(n) * PRIME64_1;
  for (let i = (n - 1) >> 5; i >= 0; i--) {
    sum += mix16(bytes, 16 * i, 32 * i) + mix16(bytes, n - 16 * (i + 1), 32 * i + 16);
  }
  return avalanche3(sum & MASK64);
}

function upTo240(bytes) {
  const n = bytes.length;
  let sum = BigInt(n) * PRIME64_1;
  for (let i = 0; i < 8; i++) sum += mix16(bytes, 16 * i, 16 * i);
  sum = avalanche3(sum & MASK64);
  for (let i = 8; i < n >> 4; i++) sum += mix16(bytes, 16 * i, 16 * (i - 8) + 3);
  sum += mix16(bytes, n - 16, 136 - 17);
  return avalanche3(sum & MASK64);
}

// The accumulators are pairs of 32-bit words: BigInt is too slow for whole payloads.
function accumulate(acc, bytes, at, secretAt) {
  for (let lane = 0; lane < 8; lane++) {
    const low = bytes.readUInt32LE(at + 8 * lane);
    const high = bytes.readUInt32LE(at + 8 * lane + 4);
    const a = (low ^ SECRET.readUInt32LE(secretAt + 8 * lane)) >>> 0;
    const b = (high ^ SECRET.readUInt32LE(secretAt + 8 * lane + 4)) >>> 0;
    add64(acc, lane ^ 1, low, high);
    add64(acc, lane, Math.imul(a, b) >>> 0, mulHigh32(a, b));
  }
}

function add64(acc, lane, low, high) {
  const sum = acc[2 * lane] + low;
  acc[2 * lane] = sum;
  acc[2 * lane + 1] += high + (sum > 0xffffffff ? 1 : 0);
}

/** High 32 bits of the product of two unsigned 32-bit words. */
export function mulHigh32(a, b) {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const other = aLow * bHigh + (middle % 0x10000);
  return aHigh * bHigh + Math.floor(middle / 0x10000) + Math.floor(other / 0x10000);
}

function scramble(acc) {
  for (let lane = 0; lane < 8; lane++) {
    const low = acc[2 * lane];
    const high = acc[2 * lane + 1];
    const secretAt = SECRET.length - STRIPE + 8 * lane;
    // x ^= x >> 47 touches the low word only.
    const a = (low ^ (high >>> 15) ^ SECRET.readUInt32LE(secretAt)) >>> 0;
    const b = (high ^ SECRET.readUInt32LE(secretAt + 4)) >>> 0;
    const prime = Number(PRIME32_1);
    acc[2 * lane] = Math.imul(a, prime);
    acc[2 * lane + 1] = Math.imul(b, prime) + mulHigh32(a, prime);
  }
}

function long(bytes) {
  const n = bytes.length;
  const acc = new Uint32Array(16);
  const start = [
    PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
  ];
  start.forEach((value, lane) => {
    acc[2 * lane] = Number(value & 0xffffffffn);
    acc[2 * lane + 1] = Number(value >> 32n);
  });
  const stripes = Math.floor((n - 1) / STRIPE);
  for (let stripe = 0; stripe < stripes; stripe++) {
    const inBlock = stripe % STRIPES_PER_BLOCK;
    accumulate(acc, bytes, stripe * STRIPE, inBlock * SECRET_STEP);
    if (inBlock === STRIPES_PER_BLOCK - 1) scramble(acc);
  }
  accumulate(acc, bytes, n - STRIPE, SECRET.length - STRIPE - 7);
  const lane = (i) => (BigInt(acc[2 * i + 1]) << 32n) | BigInt(acc[2 * i]);
  let sum = BigInt(n) * PRIME64_1;
  for (let i = 0; i < 4; i++) {
    sum += fold128(lane(2 * i) ^ secret64(11 + 16 * i), lane(2 * i + 1) ^ secret64(19 + 16 * i));
  }
  return avalanche3(sum & MASK64);
}

/** XXH3-64 of a Buffer, as a BigInt. */
export function xxh3(bytes) {
  if (bytes.length <= 16) return upTo16(bytes);
  if (bytes.length <= 128) return upTo128(bytes);
  if (bytes.length <= 240) return upTo240(bytes);
  return long(bytes);
}

const IV = new Uint32Array([
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
  0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
]);
const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const BLOCK = 128;
const PARAMETERS = Buffer.alloc(64);
const LAST = Buffer.alloc(BLOCK);
const V = new Uint32Array(32);
const M = new Uint32Array(32);

function addInto(a, low, high) {
  const sum = V[a] + low;
  V[a] = sum;
  V[a + 1] += high + (sum > 0xffffffff ? 1 : 0);
}

function mixG(a, b, c, d, x, y) {
  addInto(a, V[b], V[b + 1]);
  addInto(a, M[x], M[x + 1]);
  let low = V[d] ^ V[a];
  let high = V[d + 1] ^ V[a + 1];
  V[d] = high; // rotate right by 32
  V[d + 1] = low;
  addInto(c, V[d], V[d + 1]);
  low = V[b] ^ V[c];
  high = V[b + 1] ^ V[c + 1];
  V[b] = (low >>> 24) | (high << 8);
  V[b + 1] = (high >>> 24) | (low << 8);
  addInto(a, V[b], V[b + 1]);
  addInto(a, M[y], M[y + 1]);
  low = V[d] ^ V[a];
  high = V[d + 1] ^ V[a + 1];
  V[d] = (low >>> 16) | (high << 16);
  V[d + 1] = (high >>> 16) | (low << 16);
  addInto(c, V[d], V[d + 1]);
  low = V[b] ^ V[c];
  high = V[b + 1] ^ V[c + 1];
  V[b] = (high >>> 31) | (low << 1); // rotate right by 63
  V[b + 1] = (low >>> 31) | (high << 1);
}

function compress(h, block, counted, last) {
  for (let i = 0; i < 32; i++) M[i] = block.readUInt32LE(4 * i);
  V.set(h);
  V.set(IV, 16);
  V[24] ^= counted;
  V[25] ^= Math.floor(counted / 2 ** 32);
  if (last) {
    V[28] = ~V[28];
    V[29] = ~V[29];
  }
  for (let round = 0; round < 12; round++) {
    const s = SIGMA[round % 10];
    for (let i = 0; i < 4; i++) {
      mixG(2 * i, 8 + 2 * i, 16 + 2 * i, 24 + 2 * i, 2 * s[2 * i], 2 * s[2 * i + 1]);
    }
    for (let i = 0; i < 4; i++) {
      const b = 8 + 2 * ((i + 1) % 4);
      const c = 16 + 2 * ((i + 2) % 4);
      const d = 24 + 2 * ((i + 3) % 4);
      mixG(2 * i, b, c, d, 2 * s[8 + 2 * i], 2 * s[9 + 2 * i]);
    }
  }
  for (let i = 0; i < 16; i++) h[i] ^= V[i] ^ V[i + 16];
}

const EMPTY = Buffer.alloc(0);

/** BLAKE2b of a Buffer; key of 0..64 bytes, person (a string or Buffer) of 0..16, zero padded. */
export function blake2b(message, size, { person = "", key = EMPTY } = {}) {
  PARAMETERS.fill(0);
  PARAMETERS.set([size, key.length, 1, 1]);
  PARAMETERS.set(typeof person === "string" ? Buffer.from(person) : person, 48);
  const h = new Uint32Array(16);
  for (let i = 0; i < 16; i++) h[i] = IV[i] ^ PARAMETERS.readUInt32LE(4 * i);
  const block = LAST.fill(0);
  let counted = 0;
  if (key.length) {
    key.copy(block);
    counted = BLOCK;
    if (message.length) compress(h, block, counted, false);
  }
  let at = 0;
  for (; message.length - at > BLOCK; at += BLOCK) {
    counted += BLOCK;
    compress(h, message.subarray(at, at + BLOCK), counted, false);
  }
  if (message.length || !key.length) {
    block.fill(0);
    message.copy(block, 0, at);
    counted += message.length - at;
  }
  compress(h, block, counted, true);
  const digest = Buffer.alloc(64);
  for (let i = 0; i < 16; i++) digest.writeUInt32LE(h[i], 4 * i);
  return digest.subarray(0, size);
}
