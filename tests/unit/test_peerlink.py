"""One side of one connection: against its peer, strangers, restarts, silence and noise."""

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import codec, limits
from proto_v2.effects import Buffer, Count, Effect, Note, Peer, Send
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import (
    KINDS,
    Hello,
    Message,
    Nak,
    Ping,
    Pong,
    Query,
    Refuse,
    Role,
    Rows,
    TermsAgreed,
    kind_of_type,
)
from proto_v2.peerlink import LinkEvent, LinkTiming, PeerLink
from tests.proto_samples import SAMPLES, deterministic, hello, reseal, values_of

MS = 1_000_000
TIMING = LinkTiming(hello_retry_ns=50 * MS, ping_every_ns=100 * MS, silence_max_ns=1_000 * MS)
BOOT_A, BOOT_B, BOOT_C = b"a" * 16, b"b" * 16, b"c" * 16
NAK_KIND = kind_of_type(Nak)
Frames = Sequence[Buffer]


class Side:
    """A link, what it wants to have done, and the hellos that it has offered."""

    def __init__(self, calling: bool, boot_id: bytes, **changes: Any) -> None:
        role = Role.RANK_ZERO if calling else Role.WORKER
        nonces = itertools.count(1)

        def make_hello() -> Hello:
            nonce = boot_id[:8] + next(nonces).to_bytes(8, "big")
            return hello(role, nonce=nonce, **changes)

        self.out: list[Effect] = []
        self.boot_id = boot_id
        self.link = PeerLink(
            Peer("leader"), boot_id, make_hello, self.out, calling=calling, timing=TIMING
        )

    def drain(self) -> list[Effect]:
        """Every effect since the last call."""
        effects, self.out[:] = list(self.out), []
        return effects

    def sent(self) -> list[Frames]:
        """The frames of every Send since the last call; other effects are forgotten."""
        return [effect.frames for effect in self.drain() if isinstance(effect, Send)]

    def says(self) -> list[Message]:
        """The messages of every Send since the last call, which are all canonical."""
        return [codec.decode(frames).message for frames in self.sent()]

    def seal(self, message: Message, **changes: Any) -> Frames:
        """A message as this side would send it on the agreed link, or bent."""
        agreed = self.link.agreed
        fields = {
            "boot_id": self.boot_id,
            "link_epoch": 0 if agreed is None else agreed.link_epoch,
            "payload": b"" if isinstance(message, Rows) else None,
            **changes,
        }
        return codec.encode(message, **fields)


class Pair:
    """A caller and a called side, with a wire between them that loses nothing by itself."""

    def __init__(self, caller: dict[str, Any] | None = None, **called: Any) -> None:
        self.caller = Side(True, BOOT_A, **(caller or {}))
        self.called = Side(False, BOOT_B, **called)
        self.now = 0
        self.events: list[tuple[str, Any]] = []
        self.delivered: list[Message] = []

    def pump(self, *, lose: Sequence[int] = (), most: int = 30) -> None:
        """Deliver until both are quiet, losing the messages with these numbers."""
        while True:
            under_way = [("called", frames) for frames in self.caller.sent()]
            under_way += [("caller", frames) for frames in self.called.sent()]
            if not under_way:
                return
            for name, frames in under_way:
                number = len(self.delivered)
                assert number < most, f"no end of it: {self.delivered[-4:]}"
                self.delivered.append(codec.decode(frames).message)
                if number not in lose:
                    self.deliver(name, frames)

    def deliver(self, name: str, frames: Frames) -> Any:
        """Hand one message to a side, and remember what it reports."""
        side = self.caller if name == "caller" else self.called
        found = side.link.receive(frames, self.now)
        if found is not None:
            self.events.append((name, found))
        return found

    def expire(self, now: int) -> None:
        """Let the time come, on both sides."""
        self.now = now
        for name, side in (("caller", self.caller), ("called", self.called)):
            found = side.link.expire(now)
            if found is not None:
                self.events.append((name, found))

    def check_agreed(self) -> None:
        one, other = self.caller.link.agreed, self.called.link.agreed
        assert one is not None
        assert other is not None
        assert one.terms == other.terms
        assert one.link_epoch == other.link_epoch != 0
        assert (one.peer_boot_id, other.peer_boot_id) == (BOOT_B, BOOT_A)


def agreed_pair() -> Pair:
    pair = Pair()
    pair.caller.link.up(0)
    pair.pump()
    pair.check_agreed()
    pair.events.clear()
    pair.delivered.clear()
    return pair


def rejected(effects: Sequence[Effect]) -> list[str]:
    """The codes that were counted."""
    return [
        dict(effect.labels)["code"]
        for effect in effects
        if isinstance(effect, Count) and effect.name == "pp1_messages_rejected_total"
    ]


def answers(effects: Sequence[Effect]) -> list[Message]:
    return [codec.decode(one.frames).message for one in effects if isinstance(one, Send)]


def only_nak(side: Side) -> tuple[Nak, int]:
    """The one Nak that a side has just sent and counted, and the link epoch it bears."""
    effects = side.drain()
    [send] = [effect for effect in effects if isinstance(effect, Send)]
    received = codec.decode(send.frames)
    assert isinstance(received.message, Nak)
    assert received.boot_id == side.boot_id
    assert rejected(effects) == [Code(received.message.code).name]
    return received.message, received.link_epoch


# --- both sides ------------------------------------------------------------------------------


def test_four_messages_agree() -> None:
    pair = Pair()
    pair.caller.link.up(0)
    assert pair.called.link.next_deadline() is None
    pair.pump()
    assert [type(message) for message in pair.delivered] == [Hello, Hello, TermsAgreed, TermsAgreed]
    assert pair.events == [("called", LinkEvent.AGREED), ("caller", LinkEvent.AGREED)]
    pair.check_agreed()


def test_terms_for_an_earlier_hello_are_passed_over() -> None:
    pair = Pair()
    pair.caller.link.up(0)
    pair.pump(lose=[2])  # the caller's digest
    digest = pair.delivered[2]
    assert isinstance(digest, TermsAgreed)
    late = msgspec.structs.replace(digest, nonce=b"earlier".ljust(16))
    assert pair.deliver("called", pair.caller.seal(late)) is None
    assert pair.called.drain() == []
    assert pair.called.link.agreed is None
    assert pair.deliver("called", pair.caller.seal(digest)) is LinkEvent.AGREED


def test_the_called_side_says_nothing_when_the_connection_stands() -> None:
    called = Side(False, BOOT_B)
    called.link.up(0)
    assert called.drain() == []
    assert called.link.agreed is None


def test_both_sides_send_on_the_agreed_link_only() -> None:
    pair = Pair()
    with pytest.raises(AssertionError):
        pair.caller.link.send(Query())
    pair = agreed_pair()
    for sender, receiver in ((pair.caller, pair.called), (pair.called, pair.caller)):
        frames = sender.link.send(Rows(7, ()), b"payload")
        sender.link.resend(frames)
        first, second = sender.sent()
        assert first is second is frames
        found = receiver.link.receive(first, 0)
        assert found == (Rows(7, ()), b"payload")


@pytest.mark.parametrize("lost", range(4))
def test_any_lost_message_of_a_handshake_is_made_good_in_time(lost: int) -> None:
    pair = Pair()
    pair.caller.link.up(0)
    pair.pump(lose=[lost])
    assert len(pair.delivered) > lost
    if lost == 3:
        assert pair.called.link.agreed is not None
    assert pair.caller.link.agreed is None
    pair.expire(TIMING.hello_retry_ns)
    pair.pump()
    pair.check_agreed()
    assert sorted(pair.events) == [("called", LinkEvent.AGREED), ("caller", LinkEvent.AGREED)]


def test_a_hello_is_repeated_with_its_nonce_until_the_link_is_agreed() -> None:
    caller = Side(True, BOOT_A)
    caller.link.up(5)
    [opening] = caller.says()
    assert isinstance(opening, Hello)
    for repeat in range(1, 4):
        at = caller.link.next_deadline()
        assert at == 5 + repeat * TIMING.hello_retry_ns
        assert caller.link.expire(at - 1) is None
        assert caller.says() == []
        assert caller.link.expire(at) is None
        assert caller.says() == [opening]


@pytest.mark.parametrize("message", [Query(), Ping(1), Pong(1), Rows(1, ())])
@pytest.mark.parametrize("calling", [False, True])
def test_nothing_is_taken_before_the_agreement(message: Message, calling: bool) -> None:
    side = Side(calling, BOOT_B)
    side.link.up(0)
    side.drain()
    stranger = Side(not calling, BOOT_A)
    assert side.link.receive(stranger.seal(message, link_epoch=77), 0) is None
    nak, epoch = only_nak(side)
    assert (nak.code, nak.got, epoch) == (Code.NOT_NEGOTIATED, "77", 0)


def test_a_stranger_leaves_no_state() -> None:
    called = Side(False, BOOT_B)
    stranger = Side(True, BOOT_A)
    noise: list[Frames] = [
        [],
        [b""],
        [b"GET / HTTP/1.1\r\n"],
        [b"\x80\x04."],
        stranger.seal(Query()),
        stranger.seal(TermsAgreed(bytes(16), bytes(32))),
        stranger.seal(Refuse(214, "f", "w", "g")),
        stranger.seal(Nak(217, "f", "w", "g", 0, b"")),
    ]
    for frames in noise:
        assert called.link.receive(frames, 0) is None
    assert not called.link.negotiating
    assert called.link.agreed is None
    assert called.link.next_deadline() is None


# --- identity of every single message --------------------------------------------------------


@pytest.mark.parametrize("receiver", ["caller", "called"])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"link_epoch": 0}, Code.LINK_UNKNOWN),
        ({"link_epoch": 1}, Code.LINK_UNKNOWN),
        ({"boot_id": BOOT_C}, Code.BOOT_CHANGED),
        ({"boot_id": BOOT_C, "link_epoch": 1}, Code.BOOT_CHANGED),
    ],
)
def test_another_epoch_or_another_process_is_refused_and_changes_nothing(
    receiver: str, change: dict[str, Any], code: Code
) -> None:
    pair = agreed_pair()
    side, other = pair.caller, pair.called
    if receiver == "called":
        side, other = other, side
    before, deadline = side.link.agreed, side.link.next_deadline()
    assert before is not None
    for message in (Query(), Rows(1, ()), Ping(3), Pong(3)):
        assert side.link.receive(other.seal(message, **change), 10) is None
        nak, epoch = only_nak(side)
        assert (nak.code, epoch) == (code, before.link_epoch)
    assert side.link.agreed is before
    assert side.link.next_deadline() == deadline
    # They are no sign of life either.
    assert side.link.expire(TIMING.silence_max_ns + 1) is LinkEvent.LOST


def test_both_processes_of_a_reconnect_cannot_share_an_agreement() -> None:
    pair = agreed_pair()
    late = pair.called.seal(Query())
    first = pair.caller.link.agreed
    assert first is not None
    pair.caller.link.up(0)  # the connection was made anew: the called side sees a new hello
    pair.pump()
    pair.check_agreed()
    second = pair.caller.link.agreed
    assert second is not None
    assert second.link_epoch != first.link_epoch
    assert pair.deliver("caller", late) is None
    nak, _ = only_nak(pair.caller)
    assert nak.code == Code.LINK_UNKNOWN


def test_a_nak_of_ours_names_what_it_is_about() -> None:
    pair = agreed_pair()
    error = ProtocolError(Code.ROUND_STALE, "round", 4, 3)
    pair.called.link.nak(error, step=9, session_id=b"s" * 16)
    [frames] = pair.called.sent()
    wanted = Nak(Code.ROUND_STALE, "round", "4", "3", 9, b"s" * 16)
    assert pair.deliver("caller", frames) == (wanted, None)


# --- Nak against Nak -------------------------------------------------------------------------


def foreign_naks(sender: Side) -> list[Frames]:
    """Naks that are not of the agreed link, or are not even understood."""
    nak = Nak(Code.MALFORMED, "f", "w", "g", 0, b"")
    good = sender.seal(nak)
    body = bytes(good[1])
    frames = [sender.seal(nak, link_epoch=1), sender.seal(nak, boot_id=BOOT_C)]
    frames.append(sender.seal(nak, boot_id=BOOT_C, link_epoch=0))
    for bent in (
        body + b"\0",
        b"\x98" + body[1:] + b"\0",
        body[:1] + b"\xcc" + body[1:],
        codec.encode_body(Query()),
        b"",
    ):
        frames.append(repair([good[0], bent]))
    header = bytearray(good[0])
    header[7] = 1  # the reserved byte
    frames.append([reseal(header), body])
    return frames


@pytest.mark.parametrize("receiver", ["caller", "called"])
@pytest.mark.parametrize("agreed", [True, False])
def test_a_nak_is_never_answered_with_a_nak(receiver: str, agreed: bool) -> None:
    pair = agreed_pair() if agreed else Pair()
    side, other = pair.caller, pair.called
    if receiver == "called":
        side, other = other, side
    before = side.link.agreed
    for frames in foreign_naks(other):
        assert side.link.receive(frames, 0) is None
        effects = side.drain()
        assert answers(effects) == []
        assert len(rejected(effects)) == 1
    assert side.link.agreed is before


@pytest.mark.parametrize("code", [Code.NOT_NEGOTIATED, Code.LINK_UNKNOWN])
@pytest.mark.parametrize("boot_id", [BOOT_B, BOOT_C])
def test_a_caller_whose_agreement_is_forgotten_negotiates_again(code: Code, boot_id: bytes) -> None:
    pair = agreed_pair()
    first = pair.caller.link.agreed
    assert first is not None
    nak = Nak(code, "link_epoch", "a hello first", "1", 0, b"")
    frames = pair.called.seal(nak, link_epoch=0, boot_id=boot_id)
    assert pair.deliver("caller", frames) is LinkEvent.LOST
    assert pair.caller.link.agreed is None
    assert pair.deliver("caller", frames) is None  # said twice, lost once
    effects = pair.caller.drain()
    [opening] = answers(effects)
    assert isinstance(opening, Hello)
    assert rejected(effects) == ["NOT_NEGOTIATED"]
    pair.expire(TIMING.hello_retry_ns)
    pair.pump()
    pair.check_agreed()
    second = pair.caller.link.agreed
    assert second is not None
    assert second.link_epoch != first.link_epoch


@pytest.mark.parametrize("code", [Code.NOT_NEGOTIATED, Code.LINK_UNKNOWN])
def test_a_nak_of_the_agreed_link_is_handed_on_whatever_its_code(code: Code) -> None:
    pair = agreed_pair()
    nak = Nak(code, "f", "w", "g", 0, b"")
    assert pair.deliver("caller", pair.called.seal(nak)) == (nak, None)
    pair.check_agreed()


@pytest.mark.parametrize(
    ("receiver", "code", "epoch"),
    [
        ("caller", Code.BOOT_CHANGED, 0),
        ("caller", Code.SESSION_UNKNOWN, 1),
        ("caller", 0, 0),
        ("called", Code.NOT_NEGOTIATED, 0),
        ("called", Code.LINK_UNKNOWN, 0),
    ],
)
def test_no_other_foreign_nak_ends_an_agreement(receiver: str, code: int, epoch: int) -> None:
    pair = agreed_pair()
    sender = pair.called if receiver == "caller" else pair.caller
    frames = sender.seal(Nak(code, "f", "w", "g", 0, b""), link_epoch=epoch)
    assert pair.deliver(receiver, frames) is None
    pair.check_agreed()


def test_a_called_side_that_was_restarted_is_found_by_its_nak() -> None:
    pair = agreed_pair()
    pair.called = Side(False, BOOT_B)  # the same connection, nothing remembered
    pair.caller.link.send(Query())
    pair.pump()
    pair.check_agreed()
    assert [type(message) for message in pair.delivered[:3]] == [Query, Nak, Hello]
    assert [event for _, event in pair.events] == [
        LinkEvent.LOST,
        LinkEvent.AGREED,
        LinkEvent.AGREED,
    ]


# --- other wire versions ---------------------------------------------------------------------


def of_version(frames: Frames, version: int) -> Frames:
    """The message as another version might lay it out: magic, version and kind stay in place."""
    header = bytearray(frames[0])
    header[4] = version
    return [bytes(header[:40]), *frames[1:], b"more"]


@pytest.mark.parametrize("version", [0, 1, 3, 255])
@pytest.mark.parametrize("receiver", ["caller", "called", "stranger"])
def test_a_hello_of_another_version_gets_a_refusal(version: int, receiver: str) -> None:
    pair = agreed_pair()
    side = {
        "caller": pair.caller,
        "called": pair.called,
        "stranger": Side(False, BOOT_B),
    }[receiver]
    before = side.link.agreed
    assert side.link.receive(of_version(Side(True, BOOT_C).seal(hello()), version), 0) is None
    effects = side.drain()
    [refuse] = answers(effects)
    assert refuse == Refuse(Code.WIRE_VERSION, "header.version", "2", str(version))
    assert rejected(effects) == ["WIRE_VERSION"]
    [note] = [effect for effect in effects if isinstance(effect, Note)]
    assert (note.level, note.event, note.fields["link"]) == (30, "peer_refused", "leader")
    assert f"got {version}" in str(note.fields["error"])
    assert side.link.agreed is before
    assert (side.link.negotiating, side.link.refused) == (before is not None, None)


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != 1])
def test_nothing_else_of_another_version_is_answered(version: int, kind: int) -> None:
    pair = agreed_pair()
    frames = of_version(pair.called.seal(SAMPLES[kind]), version)
    assert pair.deliver("caller", frames) is None
    effects = pair.caller.drain()
    assert answers(effects) == []
    assert rejected(effects) == ["WIRE_VERSION"]
    pair.check_agreed()


def test_a_frame_that_ends_after_the_version_is_not_a_hello() -> None:
    called = Side(False, BOOT_B)
    assert called.link.receive([memoryview(b"PP1q\x03")], 0) is None
    effects = called.drain()
    assert answers(effects) == []
    assert rejected(effects) == ["WIRE_VERSION"]


def test_a_caller_takes_a_refusal_for_its_version() -> None:
    caller = Side(True, BOOT_A)
    caller.link.up(0)
    refusal = Refuse(Code.WIRE_VERSION, "header.version", "3", "2")
    assert caller.link.receive(Side(False, BOOT_B).seal(refusal), 0) is LinkEvent.REFUSED
    assert caller.link.refused is not None
    assert (caller.link.refused.code, caller.link.refused.got) == (Code.WIRE_VERSION, "2")


# --- refusal ---------------------------------------------------------------------------------


def test_both_sides_learn_the_field_once() -> None:
    pair = Pair(processors="policy-b")
    pair.caller.link.up(0)
    pair.pump()
    assert [type(message) for message in pair.delivered] == [Hello, Refuse]
    assert pair.events == [("called", LinkEvent.REFUSED), ("caller", LinkEvent.REFUSED)]
    for side in (pair.caller, pair.called):
        assert side.link.agreed is None
        assert side.link.refused is not None
        assert (side.link.refused.code, side.link.refused.field) == (
            Code.PROCESSORS_MISMATCH,
            "processors",
        )
    assert pair.caller.link.next_deadline() is None  # it asks no more


def test_a_refusal_is_counted_and_logged() -> None:
    called = Side(False, BOOT_B, depth_max=0)
    caller = Side(True, BOOT_A)
    assert called.link.receive(caller.seal(hello()), 0) is LinkEvent.REFUSED
    effects = called.drain()
    assert rejected(effects) == ["BOUND_TOO_SMALL"]
    [note] = [effect for effect in effects if isinstance(effect, Note)]
    assert (note.level, note.event, note.fields["link"]) == (30, "negotiation_refused", "leader")
    assert "depth_max" in str(note.fields["error"])


def test_the_caller_refuses_what_the_called_side_took() -> None:
    """Each side compares on its own: a hello changed under way is refused by the caller."""
    pair = Pair()
    pair.caller.link.up(0)
    [opening] = pair.caller.sent()
    pair.deliver("called", opening)
    [answer] = pair.called.sent()
    message = codec.decode(answer).message
    assert isinstance(message, Hello)
    changed = pair.called.seal(msgspec.structs.replace(message, rng_abi="other"))
    assert pair.deliver("caller", changed) is LinkEvent.REFUSED
    pair.pump()
    assert pair.events[-1] == ("called", LinkEvent.REFUSED)
    assert pair.called.link.refused is not None
    assert pair.called.link.refused.field == "rng_abi"


def test_terms_that_differ_are_refused_on_both_sides() -> None:
    pair = Pair()
    pair.caller.link.up(0)
    [opening] = pair.caller.sent()
    message = codec.decode(opening).message
    assert isinstance(message, Hello)
    lower = msgspec.structs.replace(message, depth_max=message.depth_max - 1)
    pair.deliver("called", pair.caller.seal(lower))
    pair.pump()
    assert pair.events == [("called", LinkEvent.REFUSED), ("caller", LinkEvent.REFUSED)]
    assert pair.caller.link.refused is not None
    assert pair.caller.link.refused.code is Code.TERMS_DIGEST_MISMATCH


def test_a_refused_hello_that_is_repeated_gets_the_refusal_again_and_no_event() -> None:
    called = Side(False, BOOT_B, processors="policy-b")
    caller = Side(True, BOOT_A)
    caller.link.up(0)
    [opening] = caller.sent()
    assert called.link.receive(opening, 0) is LinkEvent.REFUSED
    [first] = called.says()
    assert called.link.receive(opening, 1) is None
    assert called.says() == [first]
    assert isinstance(first, Refuse)


def test_nothing_revives_or_repeats_a_refusal() -> None:
    pair = Pair(processors="policy-b")
    pair.caller.link.up(0)
    pair.pump()
    before = pair.caller.link.refused
    late: list[Message] = [
        Refuse(Code.TARGET_MISMATCH, "target_checkpoint", "w", "g"),
        TermsAgreed(bytes(16), bytes(32)),
    ]
    for name in ("caller", "called"):
        for message in late:
            assert pair.deliver(name, Side(False, BOOT_B).seal(message)) is None
    assert pair.deliver("caller", Side(False, BOOT_B).seal(hello(Role.WORKER))) is None
    assert pair.caller.drain() == pair.called.drain() == []
    assert pair.caller.link.refused is before
    pair.expire(TIMING.hello_retry_ns)
    assert pair.caller.drain() == []


def test_a_new_connection_asks_again_after_a_refusal() -> None:
    pair = Pair(processors="policy-b")
    pair.caller.link.up(0)
    pair.pump()
    pair.caller.link.down()
    pair.called = Side(False, BOOT_B)
    pair.caller.link.up(1)
    assert pair.caller.link.refused is None
    pair.pump()
    pair.check_agreed()


def test_a_refusal_after_the_agreement_changes_nothing() -> None:
    pair = agreed_pair()
    for name, side in (("caller", pair.called), ("called", pair.caller)):
        refusal = side.seal(Refuse(Code.TARGET_MISMATCH, "f", "w", "g"))
        assert pair.deliver(name, refusal) is None
        assert pair.deliver(name, side.seal(TermsAgreed(bytes(16), bytes(32)))) is None
    pair.check_agreed()
    assert pair.caller.drain() == pair.called.drain() == []


# --- connections come and go -----------------------------------------------------------------


def test_a_new_hello_ends_what_was_agreed_on_the_connection() -> None:
    pair = agreed_pair()
    again = Side(True, BOOT_C)
    assert pair.deliver("called", again.seal(hello(nonce=b"n" * 16), link_epoch=0)) is None
    assert pair.called.link.agreed is None
    assert pair.called.link.negotiating
    [answer] = pair.called.says()
    assert isinstance(answer, Hello)
    assert pair.deliver("called", pair.caller.seal(Query())) is None
    assert only_nak(pair.called)[0].code == Code.NOT_NEGOTIATED


def test_a_repeated_hello_does_not() -> None:
    pair = agreed_pair()
    agreed = pair.called.link.agreed
    assert agreed is not None
    nonce = BOOT_A[:8] + (1).to_bytes(8, "big")
    assert pair.deliver("called", pair.caller.seal(hello(nonce=nonce), link_epoch=0)) is None
    assert pair.called.link.agreed is agreed
    assert pair.called.says() == [TermsAgreed(nonce, agreed.terms.digest())]


@pytest.mark.parametrize("name", ["caller", "called"])
def test_after_down_nothing_is_left(name: str) -> None:
    pair = agreed_pair()
    side, other = pair.caller, pair.called
    if name == "called":
        side, other = other, side
    side.link.down()
    assert side.link.agreed is None
    assert not side.link.negotiating
    assert side.link.next_deadline() is None
    assert side.link.expire(1 << 60) is None
    assert side.drain() == []
    assert side.link.receive(other.seal(Query()), 0) is None
    assert only_nak(side)[0].code == Code.NOT_NEGOTIATED


def test_a_caller_that_is_down_answers_no_hello() -> None:
    caller = Side(True, BOOT_A)
    assert caller.link.receive(Side(False, BOOT_B).seal(hello(Role.WORKER)), 0) is None
    assert caller.drain() == []
    assert not caller.link.negotiating


def test_every_connection_has_its_own_nonce() -> None:
    caller = Side(True, BOOT_A)
    nonces = set()
    for at in range(5):
        caller.link.up(at)
        [opening] = caller.says()
        assert isinstance(opening, Hello)
        nonces.add(opening.nonce)
    assert len(nonces) == 5


@pytest.mark.parametrize("processors", ["policy-a", "policy-b"], ids=["half open", "refused"])
def test_a_caller_that_does_not_finish_is_forgotten(processors: str) -> None:
    called = Side(False, BOOT_B, processors=processors)
    opening = Side(True, BOOT_A).seal(hello())
    called.link.receive(opening, 100)
    called.link.receive(opening, 200)  # repeats do not prolong it
    called.drain()
    at = called.link.next_deadline()
    assert at == 100 + TIMING.silence_max_ns
    assert called.link.expire(at - 1) is None
    assert called.link.negotiating
    assert called.link.expire(at) is LinkEvent.LOST
    assert not called.link.negotiating
    assert called.link.next_deadline() is None
    assert called.drain() == []


def test_a_forgotten_caller_that_goes_on_agrees_later() -> None:
    pair = Pair()
    pair.caller.link.up(0)
    pair.pump(lose=[2])  # the caller's digest
    for at in range(1, 21):
        pair.now = at * TIMING.hello_retry_ns
        pair.caller.link.expire(pair.now)
        pair.caller.drain()  # lost for a whole second
    assert pair.called.link.expire(pair.now) is LinkEvent.LOST
    pair.expire(21 * TIMING.hello_retry_ns)
    pair.pump()
    pair.check_agreed()


# --- silence ---------------------------------------------------------------------------------


def test_both_sides_ping_and_nobody_is_lost_while_they_answer() -> None:
    pair = agreed_pair()
    agreed = pair.caller.link.agreed
    every = TIMING.ping_every_ns
    for beat in range(1, 31):
        assert pair.caller.link.next_deadline() == pair.called.link.next_deadline() == beat * every
        pair.expire(beat * every)
        pair.delivered.clear()
        pair.pump()
        assert pair.delivered == [Ping(beat * every)] * 2 + [Pong(beat * every)] * 2
    assert pair.events == []  # neither is handed on
    assert pair.caller.link.agreed is agreed


@pytest.mark.parametrize("name", ["caller", "called"])
def test_silence_beyond_the_bound_loses_the_peer(name: str) -> None:
    pair = agreed_pair()
    side = pair.caller if name == "caller" else pair.called
    for at in range(TIMING.ping_every_ns, TIMING.silence_max_ns + 1, TIMING.ping_every_ns):
        assert side.link.expire(at) is None
        assert side.says() == [Ping(at)]
    assert side.link.expire(TIMING.silence_max_ns + TIMING.ping_every_ns) is LinkEvent.LOST
    assert side.link.agreed is None
    effects = side.drain()
    assert [one.event for one in effects if isinstance(one, Note)] == ["peer_silent"]
    if name == "caller":  # it asks again, and the other side remembers nothing it needs
        [opening] = answers(effects)
        assert isinstance(opening, Hello)
        assert side.link.negotiating
        pair.expire(side.link.next_deadline() or 0)
        pair.pump()
        pair.check_agreed()
    else:
        assert answers(effects) == []
        assert not side.link.negotiating
        assert side.link.next_deadline() is None


def test_the_agreement_is_the_first_sign_of_life() -> None:
    pair = Pair()
    pair.now = start = 5 * TIMING.silence_max_ns
    pair.caller.link.up(start)
    pair.pump()
    pair.events.clear()
    pair.expire(start + TIMING.silence_max_ns)
    assert pair.events == []
    pair.check_agreed()


def test_any_message_of_the_link_is_a_sign_of_life() -> None:
    pair = agreed_pair()
    message = pair.called.seal(Query())
    pair.caller.link.receive(message, TIMING.silence_max_ns)
    assert pair.caller.link.expire(2 * TIMING.silence_max_ns) is None
    assert pair.caller.link.expire(3 * TIMING.silence_max_ns) is LinkEvent.LOST


# --- nothing escapes -------------------------------------------------------------------------


def repair(frames: Frames) -> Frames:
    """Lengths and checksums made right for whatever the frames are, where a header fits."""
    if not frames or len(frames[0]) != limits.HEADER_BYTES:
        return frames
    header = bytearray(frames[0])
    sizes = [len(frame) for frame in frames[1:3]] + [0, 0]
    struct.pack_into("<II", header, 8, *sizes[:2])
    header[6] = max(len(frames) - 2, 0) & 1
    if len(frames) > 1:
        struct.pack_into("<Q", header, 40, xxhash.xxh3_64_intdigest(frames[1]))
    return [reseal(header), *frames[1:]]


MESSAGES = {kind: values_of(message) for kind, message in KINDS.items()}
STATES = st.sampled_from(["caller", "called", "stranger", "half open", "refused"])


def in_state(state: str) -> tuple[Side, Side]:
    """A side in that state, and its peer."""
    if state in ("caller", "called"):
        pair = agreed_pair()
        sides = (pair.caller, pair.called)
        return sides if state == "caller" else sides[::-1]
    called = Side(False, BOOT_B, **({"processors": "b"} if state == "refused" else {}))
    peer = Side(True, BOOT_A)
    if state != "stranger":
        peer.link.up(0)
        called.link.receive(peer.sent()[0], 0)
        called.drain()
    return called, peer


def check_received(side: Side, frames: Frames) -> None:
    """Receive: a declared outcome, at most one answer, and no agreement ended for no reason."""
    before = side.link.agreed
    found = side.link.receive(frames, 5)
    effects = side.drain()
    assert found is None or isinstance(found, (LinkEvent, tuple))
    if isinstance(found, tuple):
        assert before is not None
        message, payload = found
        assert not isinstance(message, (Hello, TermsAgreed, Refuse, Ping, Pong))
        assert (payload is not None) == isinstance(message, Rows)
    sends = answers(effects)
    assert len(sends) <= 1
    if any(isinstance(answer, Nak) for answer in sends):
        assert frames[0][5] != NAK_KIND
    try:
        may_end = isinstance(codec.decode(frames).message, Hello | Nak)
    except ProtocolError:
        may_end = False
    assert may_end or side.link.agreed is before
    assert side.link.expire(1 << 62) in (None, LinkEvent.LOST)
    side.drain()


def frames_of(least: int) -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.binary(max_size=90), min_size=least, max_size=4)


@deterministic
@given(STATES, frames_of(0))
def test_random_frames_end_nothing(state: str, frames: list[bytes]) -> None:
    side, _ = in_state(state)
    check_received(side, [memoryview(frame) for frame in frames])


@deterministic
@given(
    STATES,
    st.integers(0, 255) | st.sampled_from(sorted(KINDS)),
    st.binary(max_size=60)
    | st.recursive(
        st.integers(0, (1 << 64) - 1) | st.binary(max_size=33) | st.text(max_size=5) | st.none(),
        lambda inner: st.lists(inner, max_size=6),
    ).map(msgspec.msgpack.encode),
    st.lists(st.binary(max_size=20), max_size=2),
    st.booleans(),
    st.booleans(),
)
def test_random_bodies_in_a_right_envelope_end_nothing(
    state: str, kind: int, body: bytes, rest: list[bytes], ours: bool, boot: bool
) -> None:
    side, peer = in_state(state)
    epoch = side.link.agreed.link_epoch if ours and side.link.agreed else 12
    header = bytearray(limits.HEADER_BYTES)
    header[:6] = b"PP1q\x02" + bytes([kind])
    header[16:32] = peer.boot_id if boot else BOOT_C
    struct.pack_into("<Q", header, 32, epoch)
    frames = repair([bytes(header), body, *rest])
    check_received(side, [memoryview(frame) for frame in frames])


@deterministic
@given(STATES, st.sampled_from(sorted(KINDS)), st.data())
def test_bent_messages_end_nothing_but_by_their_meaning(
    state: str, kind: int, data: st.DataObject
) -> None:
    """Any valid message, then some bytes of any frame changed, cut or added."""
    side, peer = in_state(state)
    message = data.draw(MESSAGES[kind])
    agreed = side.link.agreed
    good = peer.seal(
        message,
        link_epoch=data.draw(st.sampled_from([0, 12, agreed.link_epoch if agreed else 0])),
        boot_id=data.draw(st.sampled_from([peer.boot_id, BOOT_C])),
    )
    frames = [bytearray(frame) for frame in good]
    for _ in range(data.draw(st.integers(0, 3))):
        frame = data.draw(st.sampled_from(frames))
        match data.draw(st.sampled_from(["flip", "cut", "add"])):
            case "flip" if frame:
                frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
            case "cut":
                del frame[data.draw(st.integers(0, len(frame))) :]
            case _:
                frame += data.draw(st.binary(min_size=1, max_size=3))
    bent: Frames = [bytes(frame) for frame in frames]
    if data.draw(st.booleans()):
        bent = repair(bent)
    check_received(side, [memoryview(frame) for frame in bent])


@deterministic
@given(st.sampled_from(["caller", "called"]), st.sampled_from(sorted(KINDS)), st.data())
def test_no_message_starts_an_endless_exchange(
    receiver: str, kind: int, data: st.DataObject
) -> None:
    """Whatever one side is told, the two fall silent, and they agree or the refusal is known."""
    pair = agreed_pair()
    sender = pair.called if receiver == "caller" else pair.caller
    message = data.draw(MESSAGES[kind])
    epoch = data.draw(st.sampled_from([0, 12]))
    boot_id = data.draw(st.sampled_from([sender.boot_id, BOOT_C]))
    pair.deliver(receiver, sender.seal(message, link_epoch=epoch, boot_id=boot_id))
    pair.pump(most=12)
    pair.caller.link.send(Query())
    pair.pump(most=24)
    pair.check_agreed()
