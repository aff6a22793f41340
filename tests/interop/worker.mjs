// A PP1 worker that serves the Markov test law, written from specs/ alone.
//
//     node tests/interop/worker.mjs --listen tcp://127.0.0.1:0 [--vocabulary-size 16] [--seed 0]
//
// Prints `listening on ADDRESS` once it does. SIGTERM and SIGINT end it with code 0.

import { parseArgs } from "node:util";

import { MarkovDraft } from "./engine.mjs";
import { DEPTH_MAX, REQUESTS_MAX, SUPPORT_MAX } from "./messages.mjs";
import { DENSE, SPARSE } from "./proposal.mjs";
import { FRAME_BOUNDS, Link, Worker } from "./protocol.mjs";
import { Router } from "./zmtp.mjs";

const TICK_MS = 50;
const REPRESENTATIONS = { "dense-f32": DENSE, "sparse-f32": SPARSE };

const { values } = parseArgs({
  options: {
    listen: { type: "string", default: "tcp://127.0.0.1:5701" },
    "vocabulary-size": { type: "string", default: "16" },
    seed: { type: "string", default: "0" },
    representation: { type: "string", multiple: true, default: Object.keys(REPRESENTATIONS) },
    "requests-max": { type: "string", default: String(REQUESTS_MAX) },
    "depth-max": { type: "string", default: String(DEPTH_MAX) },
    "support-max": { type: "string", default: String(SUPPORT_MAX) },
    "ping-ms": { type: "string", default: "1000" },
    "silence-ms": { type: "string", default: "10000" },
  },
});

function stop(message) {
  console.error(`worker: ${message}`);
  process.exit(2);
}

function number(name, least, most) {
  const value = Number(values[name]);
  if (!Number.isInteger(value) || value < least || value > most) {
    stop(`--${name}: wanted ${least}..${most}, got ${values[name]}`);
  }
  return value;
}

function chosenRepresentations() {
  const unknown = values.representation.find((name) => !(name in REPRESENTATIONS));
  if (unknown) stop(`--representation: wanted dense-f32 or sparse-f32, got ${unknown}`);
  return [...new Set(values.representation)].map((name) => REPRESENTATIONS[name]);
}

const address = /^tcp:\/\/([^:]+):(\d+|\*)$/.exec(values.listen);
if (!address) stop(`--listen: wanted tcp://HOST:PORT, got ${values.listen}`);
if (!/^\d{1,20}$/.test(values.seed) || BigInt(values.seed) >> 64n) {
  stop(`--seed: wanted 0..2^64-1, got ${values.seed}`);
}

const worker = new Worker(
  new MarkovDraft(number("vocabulary-size", 4, 64), BigInt(values.seed)),
  {
    representations: chosenRepresentations(),
    requestsMax: number("requests-max", 1, REQUESTS_MAX),
    depthMax: number("depth-max", 1, DEPTH_MAX),
    supportMax: number("support-max", 1, SUPPORT_MAX),
    pingMs: number("ping-ms", 1, 2 ** 31 - 1),
    silenceMs: number("silence-ms", 1, 2 ** 31 - 1),
  },
);

const links = new Map();
const router = new Router(FRAME_BOUNDS, {
  opened(connection) {
    links.set(connection, new Link(worker, (frames) => connection.send(frames)));
  },
  received(connection, frames, count) {
    const link = links.get(connection);
    link.receive(frames, count, performance.now());
    connection.agreed = link.agreed;
  },
  closed(connection) {
    links.delete(connection);
  },
});

setInterval(() => {
  for (const [connection, link] of links) {
    link.tick(performance.now());
    connection.agreed = link.agreed;
  }
}, TICK_MS);

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => {
    router.close();
    process.exit(0);
  });
}

try {
  const port = await router.listen(address[1], address[2] === "*" ? 0 : Number(address[2]));
  console.log(`listening on tcp://${address[1]}:${port}`);
} catch (error) {
  stop(`--listen ${values.listen}: ${error.message}`);
}
