"""Fault kinds H in the machines: stops, lengths, grammar, penalties."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from proto_v2.messages import Commit, Rows
from tests.support.checks import check_done, reasons
from tests.support.doubles import SEED, Bench, ScriptedLaw, V, only, script
from tests.support.wire import Wire

STOP = 3
PROMPT = [1, 2]


def scripted(tokens: Sequence[int], target: Sequence[int] | None = None) -> ScriptedLaw:
    """Draft and target certain of a text, or of two different ones."""
    own = script(tokens, len(PROMPT))
    return ScriptedLaw(
        own if target is None else script(target, len(PROMPT)), script(tokens, len(PROMPT))
    )


def test_h01_a_stop_accepted_in_mid_block_ends_the_request() -> None:
    """H1: EOS at draft position 2 of 5, all accepted: no bonus, three unverified."""
    wire = Wire()
    bench = Bench(scripted([5, STOP, 7, 8, 9, 10]), stop_tokens=[STOP], intercept=wire)
    answer = bench.trio.generate(1, PROMPT, 20, depth=5)
    bench.trio.run()
    done = answer.finished
    assert done is not None
    assert answer.tokens == [5, STOP]
    assert (done.finish, done.drafted, done.accepted, done.rejected, done.unverified) == (
        1, 5, 2, 0, 3,
    )  # fmt: skip
    assert bench.trio.worker.sessions == 0
    bench.check_rest()


def test_h01_a_stop_that_is_exactly_the_bonus_ends_the_request() -> None:
    """H1: EOS as the token after five accepted drafts."""
    bench = Bench(scripted([5, 6, 7, 8, 9, STOP]), stop_tokens=[STOP])
    answer = bench.trio.generate(1, PROMPT, 20, depth=5)
    bench.trio.run()
    assert answer.tokens == [5, 6, 7, 8, 9, STOP]
    assert answer.finished is not None
    assert (answer.finished.finish, answer.finished.accepted) == (1, 5)
    bench.check_rest()


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize(
    ("text", "room", "shown", "finish"),
    [
        ([10, 11, STOP, 4, 5, 6], 5, [10, 11, STOP], 1),
        ([10, 11, 4, 5, STOP, 6], 5, [10, 11, 4, 5, STOP], 1),
        ([10, 11, 4, 5, 6, STOP], 5, [10, 11, 4, 5, 6], 2),
        ([STOP, 11, 4, 5, 6, 7], 5, [STOP], 1),
        ([10, STOP], 1, [10], 2),
    ],
)
def test_h02_stop_and_length_are_judged_in_token_order(
    text: list[int], room: int, shown: list[int], finish: int, owner: int
) -> None:
    """H2: the public vector and its neighbours, whichever rank samples."""
    bench = Bench(scripted(text))
    if owner:
        bench.trio.generate(0, PROMPT, 9, depth=5)  # takes the lane of rank 0
    answer = bench.trio.generate(1, PROMPT, room, depth=5, stop_tokens=[STOP])
    bench.trio.run()
    assert answer.tokens == shown
    assert answer.finished is not None
    assert answer.finished.finish == finish
    bench.check_rest()


def test_h03_a_proposed_stop_that_the_target_rejects_ends_nothing() -> None:
    """H3: draft x2 = EOS, target says otherwise; the worker goes on with the session."""
    wire = Wire()
    law = scripted([5, STOP, 7, 8, 9, 10, 4, 4, 4], [5, 6, 7, 8, 9, 10, 4, 4, 4])
    bench = Bench(law, stop_tokens=[STOP], intercept=wire)
    answer = bench.trio.generate(1, PROMPT, 9, depth=3)
    bench.trio.run()
    check_done(answer, 9)
    assert answer.tokens == [5, 6, 7, 8, 9, 10, 4, 4, 4]
    assert STOP in [row.token for rows in wire.of(Rows) for row in rows.rows]
    assert not reasons(answer)
    assert len([call for call in bench.draft.calls if call[0] == "open"]) == 1
    bench.check_rest()


def test_h05_a_grammar_that_begins_in_mid_block_is_kept_and_not_advanced_by_drafts() -> None:
    """H5: after 7 only 8 or 9 may stand, and after those only 1; the draft does not know."""

    def target(context: Sequence[int]) -> list[float]:
        if context[-1] == 7:
            return [float(token in (8, 9)) for token in range(V)]
        if context[-1] in (8, 9):
            return only(1)
        return [float(token in (1, 5, 7)) for token in range(V)]

    def draft(context: Sequence[int]) -> list[float]:
        return [float(token in (1, 5, 7, 8)) for token in range(V)]

    wire = Wire()
    bench = Bench(ScriptedLaw(target, draft), intercept=wire)
    answers = [bench.trio.generate(key, [1], 60, depth=5) for key in range(3)]
    bench.trio.run()
    for answer in answers:
        check_done(answer, 60)
        text = [1, *answer.tokens]
        for last, token in pairwise(text):
            assert target([last])[token] > 0
        assert 7 in text
    bench.check_rest()


def test_h06_depth_0_under_a_grammar_is_an_ordinary_target_step() -> None:
    """H6: no drafts, a grammar, and a speculating neighbour."""

    def target(context: Sequence[int]) -> list[float]:
        return only((context[-1] + 1) % V)

    bench = Bench(ScriptedLaw(target, None))
    plain = bench.trio.generate(0, [4], 20, depth=0)
    deep = bench.trio.generate(1, [4], 20, depth=5)
    bench.trio.run()
    assert plain.tokens == deep.tokens == [(5 + index) % V for index in range(20)]
    assert plain.finished is not None
    assert plain.finished.drafted == 0
    bench.check_rest()


def test_h08_later_draws_do_not_depend_on_rows_that_were_discarded() -> None:
    """H8: the draft is changed on every context that is not the committed text."""

    def text(kept: tuple[int, ...] | None) -> list[int]:
        law = ScriptedLaw()
        plain = law.draft_weights

        def weights(context: Sequence[int]) -> object:
            right = kept is None or tuple(context) == kept[: len(context)]
            return plain(context) if right else plain([(context[-1] + 5) % V])

        law.draft_weights = weights  # type: ignore[method-assign, assignment]
        bench = Bench(law)
        answer = bench.trio.generate(1, [1], 60, depth=5, seed=SEED)
        bench.trio.run()
        check_done(answer, 60)
        assert answer.finished is not None
        assert answer.finished.unverified > 0
        bench.check_rest()
        return answer.tokens

    first = text(None)
    assert text((1, *first)) == first


def test_h09_a_penalty_counts_the_drafts_before_it() -> None:
    """H9: no token may stand twice within three; p is computed on the drafted prefix."""

    def target(context: Sequence[int]) -> list[float]:
        return [float(token not in context[-3:]) for token in range(6)] + [0.0] * (V - 6)

    bench = Bench(ScriptedLaw(target, lambda context: [1.0] * 6 + [0.0] * (V - 6)))
    answer = bench.trio.generate(1, [0], 80, depth=5)
    bench.trio.run()
    check_done(answer, 80)
    text = [0, *answer.tokens]
    for place in range(1, len(text)):
        assert text[place] not in text[max(0, place - 3) : place]
    assert answer.finished is not None
    assert sum(answer.finished.accepted_at[1:]) > 0, "chains of more than one draft stood"
    bench.check_rest()


def test_h09_the_worker_hears_of_a_stop_only_with_the_end() -> None:
    """H9: a stop in the last commit reaches it as the end of the session."""
    wire = Wire()
    bench = Bench(scripted([5, 6, STOP]), stop_tokens=[STOP], intercept=wire)
    answer = bench.trio.generate(1, PROMPT, 20, depth=2)
    bench.trio.run()
    assert answer.tokens == [5, 6, STOP]
    committed = [entry for commit in wire.of(Commit) for entry in commit.entries]
    assert committed[-1].position == len(PROMPT) + 3
    bench.check_rest()
