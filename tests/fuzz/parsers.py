"""The cheap targets: bytes to header, message, q, proposal and terms, or a code."""

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from proto_v2 import limits
from proto_v2.binding import row_checksum
from proto_v2.codec import decode, encode
from proto_v2.envelope import seal, unseal
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import (
    Completion,
    CompletionEntry,
    Hello,
    Message,
    Refuse,
    Role,
    Row,
    Rows,
    Step,
    TermsAgreed,
    kind_of_type,
)
from proto_v2.negotiate import Agreed, Handshake, derive_terms
from proto_v2.representation import Representation
from proto_v2.representation import encode as encode_q
from proto_v2.rng import Domain
from proto_v2.slots import SlotTable
from proto_v2.validate import check_row, read_row, split_payload
from spark_rank.collector import Collector
from tests import proto_samples as samples
from tests.proto_samples import VOCABULARY, preceding

from .fields import at, other, places, put
from .frames import check_error, split

# --- envelope and codec ----------------------------------------------------------------------


def envelope(data: bytes) -> None:
    """Frames to header, body and payload. What is read gives the same frames again."""
    frames = split(data)
    try:
        header, body, payload = unseal(frames)
    except ProtocolError as error:
        check_error(error)
        return
    again = seal(header.kind, header.boot_id, header.link_epoch, bytes(body), payload)
    assert list(again) == frames


def codec(data: bytes) -> None:
    """Frames to a message. What is read is canonical: it gives the same frames again."""
    frames = split(data)
    try:
        received = decode(frames)
    except ProtocolError as error:
        check_error(error)
        return
    message, payload = received.message, received.payload
    again = encode(message, received.boot_id, received.link_epoch, payload)
    if len(frames) == 2 and isinstance(message, Rows):
        assert again[1:] == (frames[1], b"")  # the one thing with two forms, see W-1
    else:
        assert list(again) == frames


# --- one row ---------------------------------------------------------------------------------

TERMS: Final = samples.terms()
DENSE: Final = samples.step_entry()
SPARSE: Final = samples.sparse_entry()
STEP: Final = Step(1, (DENSE, SPARSE))
ROW_PREFIX: Final = 4
_PRECEDING: Final = [preceding(index) for index in range(limits.DEPTH_MAX + 1)]


def rows(data: bytes) -> None:
    """A descriptor and its payload to a categorical.

    Four bytes describe the row, the rest is the payload: flags, index in the
    chain, token, number of entries. Flag 1 is sparse; 2 takes the number of entries from
    the byte instead of the payload; 4 spoils the checksum, 8 the representation,
    16 the position, 32 the byte length.
    """
    if len(data) < ROW_PREFIX:
        return
    flags, index, token, entries = data[:ROW_PREFIX]
    payload = memoryview(data)[ROW_PREFIX:]
    entry = SPARSE if flags & 1 else DENSE
    representation = entry.representation ^ (flags >> 3 & 1)
    index %= limits.DEPTH_MAX + 1
    if not flags & 2:
        entries = len(payload) // limits.SPARSE_ENTRY_BYTES if flags & 1 else VOCABULARY.size
    token = token - 256 if token > 127 else token
    checksum = 0
    if not flags & 4:
        earlier = _PRECEDING[index]
        checksum = row_checksum(entry, index, earlier, token, representation, entries, payload)
    row = Row(
        entry=0,
        position=entry.position + index + (flags >> 4 & 1),
        token=token,
        representation=representation,
        entries=entries,
        byte_length=len(payload) + (flags >> 5 & 1),
        checksum=checksum,
    )
    try:
        (part,) = split_payload(STEP, Rows(1, (row,)), payload)
        check_row(TERMS, entry, index, row)
        q = read_row(TERMS, entry, index, _PRECEDING[index], row, part)
    except ProtocolError as error:
        check_error(error)
        return
    assert int(q.counts.sum()) == limits.MASS
    assert q.count_of(token) > 0
    assert q.token_at(0) < VOCABULARY.legal_size
    assert q.token_at(limits.MASS - 1) < VOCABULARY.legal_size
    assert encode_q(q, Representation(representation)) == payload, "one byte string for each q"


# --- proposals and their slots ---------------------------------------------------------------

_CHAIN: Final = (
    samples.step_entry(depth=2, slot=0),
    samples.sparse_entry(depth=2, slot=1, session_id=bytes(16)),
)
_CHAINS: Final = [samples.chain(entry, place=place) for place, entry in enumerate(_CHAIN)]
_BASE: Final = [
    (row, payload)
    for descriptors, payloads in _CHAINS
    for row, payload in zip(descriptors, payloads, strict=True)
]
_COMPLETIONS: Final = tuple(
    samples.completion(entry, [row.checksum for row in descriptors], sum(map(len, payloads)))
    for entry, (descriptors, payloads) in zip(_CHAIN, _CHAINS, strict=True)
)
_TICKET: Final = samples.SampleTickets().ticket(limits.MASS_BITS, Domain.PROPOSAL, 0, 0)
_OP: Final = struct.Struct("<BBBB")
_STAGING: Final = [bytearray(TERMS.slot_bytes) for _ in range(TERMS.slots)]


def operations(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """The records of an input: operation, which, where, and up to 255 bytes."""
    place = 0
    while place + _OP.size <= len(data):
        operation, which, where, size = _OP.unpack_from(data, place)
        place += _OP.size
        yield operation, which, where, data[place : place + size]
        place += size


class _Rank:
    """The collectors of one rank, step after step, over one slot table."""

    def __init__(self) -> None:
        self.slots = SlotTable(TERMS.slots)
        self.number = 0
        self.held: list[tuple[Collector, int]] = []
        self.begin()

    def begin(self) -> None:
        self.number += 1
        self.step = Step(self.number, _CHAIN)
        self.collector = Collector(
            TERMS, self.step, samples.DRAWS, self.slots, lambda slot: memoryview(_STAGING[slot])
        )

    def check(self) -> None:
        for index, proposal in enumerate(self.collector.proposals):
            finding = self.collector.finding(index)
            assert finding.status == 0 or Code(finding.status)
            if proposal.fault is not None:
                check_error(proposal.fault)
            elif proposal.complete:
                assert len(proposal.tokens) == len(proposal.rows) == proposal.entry.depth
                for token, q in zip(proposal.tokens, proposal.rows, strict=True):
                    assert int(q.counts.sum()) == limits.MASS
                    assert q.count_of(token) > 0
                    assert q.token_at(_TICKET) == token
            else:
                assert len(proposal.tokens) <= proposal.entry.depth

    def end(self) -> None:
        self.check()
        self.collector.close()

    def hold(self, index: int) -> None:
        proposal = self.collector.proposals[index]
        if proposal.complete and proposal.fault is None:
            self.collector.hold(index)
            self.held.append((self.collector, index))

    def release(self) -> None:
        collector, index = self.held.pop(0)
        collector.release(index)


def proposal(data: bytes) -> None:
    """Rows and completions, right and wrong, over several steps: slots always return."""
    rank = _Rank()
    for operation, which, where, blob in operations(data[:1024]):
        row, payload = _BASE[which % len(_BASE)]
        index = which % len(_CHAIN)
        match operation % 12:
            case 0:
                rank.collector.on_rows(Rows(rank.number, (row,)), payload)
            case 1:
                patched = patch(payload, where, blob)
                spoiled = msgspec.structs.replace(row, byte_length=len(patched))
                rank.collector.on_rows(Rows(rank.number, (spoiled,)), patched)
            case 2:
                patched = patch(payload, where, blob)
                rank.collector.on_rows(Rows(rank.number, (_resealed(row, patched),)), patched)
            case 3:
                message = _changed(Rows(rank.number, (row,)), where, which, blob)
                if isinstance(message, Rows):
                    rank.collector.on_rows(message, payload)
            case 4:
                descriptors, payloads = _CHAINS[index]
                rank.collector.on_rows(Rows(rank.number, tuple(descriptors)), b"".join(payloads))
            case 5:
                rank.collector.on_completion(Completion(rank.number, _COMPLETIONS))
            case 6:
                changed = _changed(Completion(rank.number, _COMPLETIONS), where, which, blob)
                if isinstance(changed, Completion):
                    rank.collector.on_completion(changed)
            case 7:
                rank.collector.on_completion(_as_it_came(rank))
            case 8:
                rank.collector.discard(index, ProtocolError(Code.GENERATION_STALE, "", "", ""))
            case 9:
                rank.hold(index)
            case 10:
                if rank.held:
                    rank.release()
            case 11:
                rank.end()
                rank.begin()
    rank.end()
    while rank.held:
        rank.release()
    assert rank.slots.free() == len(rank.slots), "every slot returns"


def patch(payload: bytes, where: int, blob: bytes) -> bytes:
    """The payload with the blob written over it; beyond its end it grows."""
    where %= len(payload) + 1
    return payload[:where] + blob + payload[where + len(blob) :]


def _resealed(row: Row, payload: bytes) -> Row:
    """The descriptor of other bytes in the same place, as a worker that lies would send it."""
    entry = _CHAIN[row.entry]
    return samples.row(entry, row.position - entry.position, payload, place=row.entry)


def _changed(message: Message, where: int, choice: int, blob: bytes) -> Message | None:
    """The message with another value in one place, if it still is one."""
    plain = samples.plain(message)
    spots = places(plain)
    spot = spots[where % len(spots)]
    body = msgspec.msgpack.encode(put(plain, spot, other(at(plain, spot), choice, blob)))
    payload = b"" if isinstance(message, Rows) else None
    try:
        return samples.decode_body(kind_of_type(type(message)), body, payload).message
    except ProtocolError as error:
        check_error(error)
        return None


def _as_it_came(rank: _Rank) -> Completion:
    """The completion of whatever rows have been taken."""
    entries: list[CompletionEntry] = [
        samples.completion(proposal.entry, proposal.checksums, proposal.reply_bytes)
        for proposal in rank.collector.proposals
    ]
    return Completion(rank.number, tuple(entries))


# --- negotiation -----------------------------------------------------------------------------

_CALLER: Final = samples.hello(Role.RANK_ZERO)
_CALLED: Final = samples.hello(Role.WORKER)
_ITEM: Final = struct.Struct("<BH")
ITEMS_MOST: Final = 5
_KINDS: Final = (Hello, TermsAgreed, Refuse)
HANDSHAKE_KINDS: Final = tuple(kind_of_type(kind) for kind in _KINDS)


class _Side:
    """One side, and everything that it has been told."""

    def __init__(self, hello: Hello, *, calling: bool) -> None:
        self.handshake = Handshake(hello, calling=calling)
        self.heard: list[Hello] = []
        self.digests: list[bytes] = []
        self.outcome: Agreed | ProtocolError | None = None

    def take(self, message: Message) -> list[Message]:
        answers: list[Message] = []
        if isinstance(message, Hello):
            self.heard.append(message)
            answers += self.handshake.on_hello(samples.BOOT, message)
        elif isinstance(message, TermsAgreed):
            if message.nonce == self.handshake.hello.nonce:
                self.digests.append(message.digest)
            answers += self.handshake.on_terms(message)
        elif isinstance(message, Refuse) and not self.handshake.over:
            self.handshake.on_refuse(message)
        self._check()
        return answers

    def _check(self) -> None:
        agreed, refused = self.handshake.agreed, self.handshake.refused
        assert agreed is None or refused is None
        if self.outcome is not None:
            assert self.outcome in (agreed, refused), "nothing changes the outcome"
            return
        self.outcome = agreed or refused
        if refused is not None:
            check_error(refused)
        if agreed is not None:
            terms, ours = agreed.terms, self.handshake.hello
            assert terms.digest() in self.digests, "the peer said the same digest"
            assert terms in [_terms(ours, theirs) for theirs in self.heard]
            assert agreed.link_epoch > 0
            assert terms.slots * terms.slot_bytes <= ours.staging_bytes
            assert terms.row_bytes_max <= terms.frame_bytes_max <= ours.frame_bytes_max
            assert 1 <= terms.depth_max <= min(ours.depth_max, limits.DEPTH_MAX)
            assert 1 <= terms.requests_max <= min(ours.requests_max, limits.REQUESTS_MAX)


def _terms(ours: Hello, theirs: Hello) -> object:
    try:
        return derive_terms(ours, theirs)
    except ProtocolError:
        return None


def negotiation(data: bytes) -> None:
    """Two handshakes, told each other's messages or the input's.

    An item is an operation (a byte), a length (u16) and a body. Bit 1 says who is told; bits 2
    and 4 what: the oldest untold message of the other (0), the last one told (2), or
    the body (the rest), whose kind the higher bits give.
    """
    caller, called = _Side(_CALLER, calling=True), _Side(_CALLED, calling=False)
    queues: tuple[deque[Message], deque[Message]] = (deque(), deque([_CALLER]))
    last: list[Message | None] = [None, None]
    place = items = 0
    while place + _ITEM.size <= len(data) and items < ITEMS_MOST:
        operation, size = _ITEM.unpack_from(data, place)
        place += _ITEM.size
        items += 1
        whom = operation & 1
        message: Message | None
        match operation >> 1 & 3:
            case 0:
                message = queues[whom].popleft() if queues[whom] else None
            case 1:
                message = last[whom]
            case _:
                kind = HANDSHAKE_KINDS[(operation >> 3) % len(HANDSHAKE_KINDS)]
                body = data[place : place + size]
                place += size
                try:
                    message = samples.decode_body(kind, body).message
                except ProtocolError as error:
                    check_error(error)
                    message = None
        if message is None:
            continue
        last[whom] = message
        for answer in (caller, called)[whom].take(message):
            if len(queues[1 - whom]) < ITEMS_MOST:
                queues[1 - whom].append(answer)
    mine, theirs = caller.handshake.agreed, called.handshake.agreed
    honest = (caller.heard, called.heard) == ([_CALLED], [_CALLER])
    if honest and mine is not None and theirs is not None:
        assert (mine.terms, mine.link_epoch) == (theirs.terms, theirs.link_epoch)
