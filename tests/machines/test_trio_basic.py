"""Worker, rank 0 and rank 1 together, with nothing going wrong."""

import pytest

from proto_v2.messages import (
    Applied,
    Commit,
    Decision,
    Query,
    Rows,
    Step,
)
from tests.support.doubles import DENSE, SEED, SPARSE, Bench, Target
from tests.support.trio import Answer
from tests.support.wire import Wire

LENGTH = 24


def check_text(answer: Answer, length: int = LENGTH) -> None:
    """A finished request whose numbers add up."""
    assert answer.failed is None
    done = answer.finished
    assert done is not None
    assert len(answer.tokens) == done.token_count == length
    assert done.accepted + done.rejected + done.unverified == done.drafted
    assert sum(done.accepted_at) == done.accepted
    assert sum(done.drafted_at) == done.drafted
    assert len(answer.rounds) == done.rounds_speculative + done.rounds_target_only


@pytest.mark.parametrize("representation", [SPARSE, DENSE])
@pytest.mark.parametrize("depth", range(6))
@pytest.mark.parametrize("requests", range(1, 5))
def test_every_shape_of_batch(requests: int, depth: int, representation: int) -> None:
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio
    answers = [
        trio.generate(
            key, [key, 3], LENGTH, depth=depth, representation=representation, support=4 * (key % 2)
        )
        for key in range(requests)
    ]
    trio.run()
    for answer in answers:
        check_text(answer)
        assert answer.finished is not None
        assert (answer.finished.drafted > 0) == (depth > 0)
    for decision in wire.of(Decision):
        for entry in decision.entries:
            assert entry.accepted + entry.rejected + entry.unverified == entry.depth
    assert bool(wire.of(Rows)) == (depth > 0)
    bench.check_rest()


def test_ledgers_are_equal_after_every_decision_and_rank_1_applies_first() -> None:
    """Whenever rank 1 says Applied it holds the text that rank 0 is about to hold."""
    applied = 0

    def watch(source: str, destination: str, frames: tuple[bytes | memoryview, ...]) -> object:
        nonlocal applied
        answer = wire(source, destination, frames)
        message = wire.sent[-1].message
        if isinstance(message, Applied):
            applied += 1
            decision = wire.of(Decision)[-1]
            for active in bench.trio.rank0.actives:
                request = bench.trio.rank1.requests.get(active.request.session_id)
                if request is not None:  # rank 1 has closed what is finished
                    entry = next(e for e in decision.entries if e.session_id == request.session_id)
                    assert request.ledger.digest == entry.digest
                    assert request.ledger.length == entry.position
                    assert active.ledger.length == entry.position - entry.token_count
        elif isinstance(message, Step) and source == "rank0":
            for active in bench.trio.rank0.actives:
                request = bench.trio.rank1.requests.get(active.request.session_id)
                if request is not None:
                    assert request.ledger.tokens == active.ledger.tokens
                    assert request.ledger.generation == active.ledger.generation
        return answer

    wire = Wire()
    bench = Bench(intercept=watch)
    answers = [bench.trio.generate(key, [key], LENGTH, depth=3) for key in range(4)]
    bench.trio.run()
    for answer in answers:
        check_text(answer)
    assert applied >= LENGTH / 4
    assert bench.trio.committed["rank0"] == bench.trio.committed["rank1"]
    bench.check_rest()


def test_a_seed_gives_its_text_again_whoever_else_is_served() -> None:
    """Draws are keyed by session, so requests beside it change nothing."""

    def text(others: int) -> list[int]:
        bench = Bench()
        answer = bench.trio.generate(0, [5], LENGTH, depth=4, seed=SEED)
        for key in range(1, 1 + others):
            bench.trio.generate(key, [key], LENGTH, depth=key)
        bench.trio.run()
        check_text(answer)
        return answer.tokens

    assert text(0) == text(3)


def test_the_greedy_text_is_the_target_s_own_at_every_depth() -> None:
    law = Target().law
    wanted = [7]
    for _ in range(LENGTH):
        weights = law.target_weights(wanted)
        wanted.append(weights.index(max(weights)))
    for depth in range(6):
        bench = Bench()
        answer = bench.trio.generate(1, [7], LENGTH, depth=depth, temperature=0.0)
        bench.trio.run()
        assert answer.tokens == wanted[1:]


def test_nine_requests_take_turns_in_four_lanes() -> None:
    wire = Wire()
    bench = Bench(intercept=wire)
    answers = [bench.trio.generate(key, [key], 4 + key, depth=key % 6) for key in range(9)]
    bench.trio.run()
    for key, answer in enumerate(answers):
        check_text(answer, 4 + key)
    for step in wire.of(Step):
        slots = [entry.slot for entry in step.entries]
        assert 1 <= len(slots) <= 4
        assert len(set(slots)) == len(slots)
    bench.check_rest()


def test_the_last_token_of_a_request_has_no_draft() -> None:
    wire = Wire()
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], 3, depth=5)
    bench.trio.run()
    check_text(answer, 3)
    for step in wire.of(Step, destination="rank1"):
        for entry in step.entries:
            assert entry.depth <= 3 - (entry.position - 1) - 1
    bench.check_rest()


def test_the_worker_learns_every_committed_token() -> None:
    """Every chain is drawn on the committed text: only its own tail may differ from it."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1, 2], LENGTH, depth=3)
    bench.trio.run()
    text = (1, 2, *answer.tokens)
    assert wire.of(Commit)
    assert bench.draft.contexts
    for context in bench.draft.contexts:
        anchor = len(context) - 2  # a chain of three has seen two drafts at its last position
        assert context[:anchor] == text[:anchor]
    bench.check_rest()


def test_a_query_tells_what_is_served() -> None:
    bench = Bench(stop_tokens=[3])
    bench.trio.from_client(Query())
    info = bench.trio.infos[0]
    assert (info.pair_ready, info.worker_ready) == (True, True)
    assert info.stop_tokens == (3,)
    bench.trio.disconnect("worker")
    bench.trio.disconnect("pair")
    bench.trio.from_client(Query())
    assert (bench.trio.infos[1].pair_ready, bench.trio.infos[1].worker_ready) == (False, False)


def test_requests_beyond_the_waiting_room_are_refused_by_name() -> None:
    bench = Bench()
    bench.trio.busy = {"rank0"}
    answers = [bench.trio.generate(key, [1], 2) for key in range(4 + 64 + 1)]
    bench.trio.run()
    assert answers[-1].failed is not None
    assert answers[-1].failed.field == "requests"
    bench.trio.finish_jobs("rank0")
    bench.trio.run()
    for answer in answers[:-1]:
        check_text(answer, 2)
    bench.check_rest()
