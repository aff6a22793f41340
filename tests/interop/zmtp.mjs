// The ROUTER side of ZMTP 3.1 with the NULL mechanism, over TCP.
//
// Every connection is a peer of its own. What a peer sends is kept only up to
// the bound of its frame, and frames that no message has are not kept at all.

import net from "node:net";

const GREETING_BYTES = 64;
const MORE = 1;
const LONG = 2;
const COMMAND = 4;
const COMMAND_BYTES_MAX = 4096;
const GROWTH_BYTES = 4096;
const CONNECTIONS_MAX = 256;
const HELD_BYTES_MAX = 64 * 2 ** 20;

class Violation extends Error {}

function greeting() {
  const bytes = Buffer.alloc(GREETING_BYTES);
  bytes[0] = 0xff;
  bytes[9] = 0x7f;
  bytes[10] = 3;
  bytes[11] = 1;
  bytes.write("NULL", 12, "latin1");
  return bytes;
}

function frame(flags, body) {
  const long = body.length > 255;
  const head = Buffer.alloc(long ? 9 : 2);
  head[0] = flags | (long ? LONG : 0);
  if (long) head.writeBigUInt64BE(BigInt(body.length), 1);
  else head[1] = body.length;
  return [head, body];
}

function command(name, data) {
  const body = Buffer.concat([Buffer.from([name.length]), Buffer.from(name, "latin1"), data]);
  return Buffer.concat(frame(COMMAND, body));
}

function property(name, value) {
  const head = Buffer.from([name.length, ...Buffer.from(name, "latin1")]);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(value.length);
  return Buffer.concat([head, length, Buffer.from(value, "latin1")]);
}

/** The properties of a READY, by lower-case name. */
function properties(data) {
  const found = new Map();
  for (let at = 0; at < data.length; ) {
    const name = data.subarray(at + 1, at + 1 + data[at]);
    at += 1 + data[at];
    if (at + 4 > data.length) throw new Violation("metadata that ends early");
    const length = data.readUInt32BE(at);
    at += 4;
    if (at + length > data.length) throw new Violation("metadata that ends early");
    found.set(name.toString("latin1").toLowerCase(), data.toString("latin1", at, at + length));
    at += length;
  }
  return found;
}

class Connection {
  agreed = false; // set by the protocol: such a connection is the last to be given up
  #server;
  #socket;
  #script = this.#read();
  #wanted = this.#script.next().value;
  #kept = Buffer.alloc(0);
  #got = 0;
  #rest = null;

  constructor(server, socket) {
    this.#server = server;
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.on("data", (chunk) => this.#feed(chunk));
    socket.on("drain", () => this.#resume());
    socket.on("error", () => socket.destroy());
    socket.on("close", () => {
      this.#drop();
      server.closed(this);
    });
    socket.write(greeting());
  }

  get heldBytes() {
    return this.#kept.length;
  }

  close() {
    this.#socket.destroy();
  }

  /** Send one message of these frames. */
  send(frames) {
    if (this.#socket.destroyed) return;
    const last = frames.length - 1;
    const parts = frames.flatMap((bytes, i) => frame(i < last ? MORE : 0, bytes));
    this.#socket.write(Buffer.concat(parts));
  }

  #feed(chunk) {
    try {
      let at = 0;
      while (!this.#socket.destroyed) {
        const { size, keep } = this.#wanted;
        const taken = Math.min(chunk.length - at, size - this.#got);
        this.#keep(chunk.subarray(at, at + Math.max(0, Math.min(taken, keep - this.#got))));
        at += taken;
        this.#got += taken;
        if (this.#got < size) return;
        const bytes = this.#kept.subarray(0, keep);
        this.#drop();
        this.#wanted = this.#script.next(bytes).value;
        if (this.#socket.writableNeedDrain) {
          // A peer that does not read is not read from.
          this.#rest = chunk.subarray(at);
          this.#socket.pause();
          return;
        }
      }
    } catch (error) {
      if (!(error instanceof Violation)) console.error(`a connection is closed: ${error.stack}`);
      this.close();
    }
  }

  #resume() {
    if (this.#rest === null) return;
    const rest = this.#rest;
    this.#rest = null;
    this.#feed(rest);
    if (this.#rest === null) this.#socket.resume();
  }

  #keep(bytes) {
    const needed = this.#got + bytes.length;
    if (bytes.length && needed > this.#kept.length) {
      const capacity = Math.max(needed, 2 * this.#kept.length, GROWTH_BYTES);
      const grown = Buffer.alloc(Math.min(this.#wanted.keep, capacity));
      this.#kept.copy(grown);
      this.#server.hold(grown.length - this.#kept.length, this);
      this.#kept = grown;
    }
    bytes.copy(this.#kept, this.#got);
  }

  #drop() {
    this.#server.hold(-this.#kept.length, this);
    this.#kept = Buffer.alloc(0);
    this.#got = 0;
  }

  /** The peer's bytes in order; yields how many are wanted and how many of them are kept. */
  *#read() {
    const first = yield { size: GREETING_BYTES, keep: GREETING_BYTES };
    const mechanism = first.toString("latin1", 12, 32).replace(/\0+$/, "");
    if (first[0] !== 0xff || first[9] !== 0x7f || first[10] < 3 || mechanism !== "NULL") {
      throw new Violation("another greeting");
    }
    this.#socket.write(
      command("READY", Buffer.concat([property("Socket-Type", "ROUTER"), property("Identity", "")])),
    );
    let ready = false;
    let frames = [];
    let count = 0;
    for (;;) {
      const [flags] = yield { size: 1, keep: 1 };
      if (flags & ~(MORE | LONG | COMMAND)) throw new Violation("reserved flags");
      const sizeBytes = flags & LONG ? 8 : 1;
      const sized = yield { size: sizeBytes, keep: sizeBytes };
      const size = flags & LONG ? Number(sized.readBigUInt64BE()) : sized[0];
      if (flags & COMMAND) {
        if (flags & MORE || size > COMMAND_BYTES_MAX) throw new Violation("a command too long");
        ready = this.#command(yield { size, keep: size }, ready);
        continue;
      }
      if (!ready) throw new Violation("a message before READY");
      const bound = this.#server.frameBounds[count] ?? 0;
      const bytes = yield { size, keep: Math.min(size, bound) };
      if (count < this.#server.frameBounds.length) frames.push({ length: size, bytes });
      count += 1;
      if (!(flags & MORE)) {
        this.#server.received(this, frames, count);
        frames = [];
        count = 0;
      }
    }
  }

  #command(body, ready) {
    const name = body.toString("latin1", 1, 1 + (body[0] ?? 0));
    const data = body.subarray(1 + name.length);
    if (!ready) {
      if (name !== "READY") throw new Violation("another command than READY");
      if (properties(data).get("socket-type") !== "DEALER") {
        const reason = "the peer must be a DEALER";
        this.#socket.end(command("ERROR", Buffer.from(`${String.fromCharCode(reason.length)}${reason}`)));
        throw new Violation(reason);
      }
      this.#server.opened(this);
    } else if (name === "PING") {
      if (data.length < 2 || data.length > 18) throw new Violation("a PING of another length");
      this.#socket.write(command("PONG", data.subarray(2)));
    } else if (name === "ERROR" || name === "READY") {
      throw new Violation(name);
    }
    return true;
  }
}

export class Router {
  #connections = new Set();
  #held = 0;
  #tcp;

  /**
   * `frameBounds` are the bytes kept of each frame of a message. `opened(connection)`,
   * `received(connection, frames, count)` and `closed(connection)` are told what happens.
   */
  constructor(frameBounds, { opened, received, closed }) {
    this.frameBounds = frameBounds;
    this.opened = opened;
    this.received = received;
    this.closed = (connection) => {
      this.#connections.delete(connection);
      closed(connection);
    };
    this.#tcp = net.createServer((socket) => this.#accept(socket));
  }

  /** Bind; resolves with the port. */
  listen(host, port) {
    return new Promise((resolve, reject) => {
      this.#tcp.once("error", reject);
      this.#tcp.listen(port, host, () => {
        this.#tcp.off("error", reject);
        this.#tcp.on("error", (error) => console.error(`accept: ${error.message}`));
        resolve(this.#tcp.address().port);
      });
    });
  }

  close() {
    this.#tcp.close();
    for (const connection of this.#connections) connection.close();
  }

  #accept(socket) {
    if (this.#connections.size >= CONNECTIONS_MAX) {
      const [oldest] = this.#strangers();
      if (!oldest) {
        socket.destroy();
        return;
      }
      this.#connections.delete(oldest);
      oldest.close();
    }
    this.#connections.add(new Connection(this, socket));
  }

  #strangers() {
    return [...this.#connections].filter((connection) => !connection.agreed);
  }

  /** Account for bytes that a connection begins to keep; who keeps most goes when it is too much. */
  hold(bytes, holder) {
    this.#held += bytes;
    if (bytes <= 0 || this.#held <= HELD_BYTES_MAX) return;
    const strangers = this.#strangers();
    const largest = strangers.reduce((a, b) => (b.heldBytes > a.heldBytes ? b : a), holder);
    largest.close();
  }
}
