"""Fault kinds B in the machines: random numbers shared between uses."""

from proto_v2.binding import row_checksum
from proto_v2.errors import Code
from proto_v2.messages import Completion, Message, Nak, Open, Reset, Rows, Step
from proto_v2.rng import Owner, derive_key
from tests.support.checks import check_discard, check_done, replace
from tests.support.doubles import DENSE, SEED, Bench
from tests.support.wire import Sent, Wire, change, drop, flip, twice

LENGTH = 30


def test_b01_the_verifier_s_key_and_the_seed_never_leave_the_pair() -> None:
    """B1: the worker's key is another one, and no byte to the worker gives the rest away."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answers = [bench.trio.generate(key, [3], LENGTH, depth=3, seed=SEED) for key in range(3)]
    wire.when(Rows, flip(2, 0), source="worker", skip=9)  # so that there is a second generation
    bench.trio.run()
    for answer in answers:
        check_done(answer, LENGTH)
    sent = [
        bytes(frame) for one in wire.sent if one.destination == "worker" for frame in one.frames
    ]
    resets = wire.of(Reset)
    assert {reset.generation for reset in resets} == {1, 2}
    keys = set()
    for opened in wire.of(Open):
        for generation in (1, 2):
            worker, verifier = (
                derive_key(
                    opened.session_seed, opened.session_id, opened.request_id, generation, owner
                )
                for owner in Owner
            )
            keys |= {worker, verifier}
            assert not any(verifier in frame for frame in sent)
            mine = {
                r.key
                for r in resets
                if (r.session_id, r.generation) == (opened.session_id, generation)
            }
            assert mine <= {worker}
        assert not any(opened.session_seed in frame for frame in sent)
    assert len(keys) == 12, "every owner of every generation of every request has its own"
    bench.check_rest()


def test_b02_a_repeated_step_gets_the_identical_bytes() -> None:
    """B2: no fresh draw under a key and round that were used."""
    wire = Wire()
    bench = Bench(intercept=wire)
    wire.when(Step, twice, destination="worker", times=1000)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3, representation=DENSE)
    bench.trio.run()
    check_done(answer, LENGTH)
    replies: dict[int, list[tuple[bytes, ...]]] = {}
    for sent in wire.sent:
        if sent.source == "worker" and isinstance(sent.message, (Rows, Completion)):
            frames = tuple(bytes(frame) for frame in sent.frames)
            replies.setdefault(sent.message.step, []).append(frames)
    for frames_sent in replies.values():
        half = len(frames_sent) // 2
        assert half >= 2
        assert frames_sent[:half] == frames_sent[half:]
    assert len(bench.draft.contexts) == sum(len(sent) // 2 - 1 for sent in replies.values())
    bench.check_rest()


def test_b02_a_discarded_round_is_drawn_again_under_a_new_key_only() -> None:
    """B2: the reset after a discard with an unchanged generation is refused."""
    wire = Wire()
    bench = Bench(intercept=wire)
    wire.when(Completion, drop, source="worker", skip=2, times=2)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run(seconds=3)
    check_discard(bench, wire, answer, Code.DRAFT_LATE)
    first, second = wire.of(Reset)
    assert first.key != second.key


def test_b02_a_reset_that_keeps_its_generation_is_stale() -> None:
    """B2: retry after a reset with unchanged generation: a Nak, never a draw."""
    wire = Wire()
    bench = Bench(intercept=wire)

    def unchanged(reset: Reset) -> Message:
        return replace(reset, generation=1)

    wire.when(Rows, flip(2, 0), source="worker", skip=2)
    wire.when(Reset, change(unchanged), skip=1)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run()
    check_done(answer, LENGTH)
    assert Code.GENERATION_STALE in [nak.code for nak in wire.of(Nak, source="worker")]
    drawn = [
        (entry.generation, entry.round)
        for step in wire.of(Step, destination="worker")
        for entry in step.entries
    ]
    assert len(set(drawn)) == len(drawn), "no round of a generation is asked for twice"
    bench.check_rest()


def test_b03_unseeded_requests_with_one_prompt_differ() -> None:
    """B3: each has its own stream; so do requests that share a seed under two keys."""

    def texts(seed: bytes, keys: list[int]) -> list[list[int]]:
        wire = Wire()
        bench = Bench(intercept=wire)
        answers = [bench.trio.generate(key, [1], LENGTH, depth=3, seed=seed) for key in keys]
        bench.trio.run()
        assert len({reset.key for reset in wire.of(Reset)}) == len(keys)
        return [answer.tokens for answer in answers]

    unseeded = texts(b"", [1, 2, 3])
    seeded = texts(SEED, [1, 2, 3])
    assert len({tuple(text) for text in unseeded + seeded}) == 6
    assert texts(SEED, [3]) == seeded[2:]


def test_b03_the_bytes_of_a_row_are_bound_to_its_session() -> None:
    """B3: the same token and q in another session have another checksum."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], 5, depth=1, representation=DENSE)
    bench.trio.run()
    check_done(answer, 5)
    sent: Sent = next(one for one in wire.sent if isinstance(one.message, Rows))
    assert isinstance(sent.message, Rows)
    (row,) = sent.message.rows
    entry = wire.of(Step)[0].entries[0]
    assert sent.payload is not None

    def checksum(session_id: bytes) -> int:
        at = replace(entry, session_id=session_id)
        assert sent.payload is not None
        return row_checksum(at, 0, (), row.token, row.representation, row.entries, sent.payload)

    assert checksum(entry.session_id) == row.checksum != checksum(bytes(16))
