"""The agreement on one step: both ranks' state machines against each other."""

from typing import Any

import pytest
from msgspec.structs import replace

from proto_v2 import limits
from proto_v2.binding import decision_digest
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import (
    Applied,
    Decide,
    Decision,
    DecisionEntry,
    DecisionKind,
    Invalidate,
    Invalidated,
    Invalidation,
    Prepare,
    Prepared,
    PrepareEntry,
    Step,
    StepEntry,
    VerdictEntry,
    Verdicts,
    tokens_to_bytes,
)
from proto_v2.session import extend_digest
from spark_rank.pair import (
    EMPTY_ENTRY,
    PairFollower,
    PairLeader,
    Phase,
    TextRules,
    check_verdict,
    compose_entry,
    ending,
    recompose,
)
from spark_rank.verify import Finish, LastToken
from tests.proto_samples import step_entry

A, B = bytes(16), bytes([1]) * 16
ENTRIES = (
    step_entry(session_id=A, slot=0, depth=3),
    step_entry(session_id=B, slot=1, depth=2),
)
STEP = Step(7, ENTRIES)
DRAFTS = ((5, 6, 7), (8, 9))
STOP = 4
RULES = TextRules(room=10, stop_tokens=frozenset({STOP}), legal_size=12)


def finding(entry: StepEntry, status: int = 0, digest: bytes = b"q" * 16) -> PrepareEntry:
    return PrepareEntry(entry.session_id, entry.generation, entry.round, status, digest)


FOUND = [finding(entry) for entry in ENTRIES]


def verdict(
    entry: StepEntry,
    tokens: tuple[int, ...],
    *,
    accepted: int,
    last: LastToken,
    depth: int | None = None,
    finish: Finish = Finish.NONE,
) -> VerdictEntry:
    rejected = int(last is LastToken.CORRECTION)
    return VerdictEntry(
        session_id=entry.session_id,
        generation=entry.generation,
        round=entry.round,
        status=0,
        accepted=accepted,
        rejected=rejected,
        unverified=(entry.depth if depth is None else depth) - accepted - rejected,
        last=int(last),
        finish=int(finish),
        tokens=tokens_to_bytes(tokens),
    )


MINE = verdict(ENTRIES[0], (5, 6, 2), accepted=2, last=LastToken.CORRECTION)
THEIRS = verdict(ENTRIES[1], (8, 9, 1), accepted=2, last=LastToken.BONUS)


def prefix_after(index: int, tokens: Any) -> tuple[int, bytes]:
    entry = ENTRIES[index]
    return entry.position + len(tokens), extend_digest(entry.digest, tokens)


def entries(statuses: tuple[int, int] = (0, 0)) -> list[DecisionEntry]:
    drafts = [() if status else DRAFTS[i] for i, status in enumerate(statuses)]
    verdicts = [
        verdict(ENTRIES[i], (3,), accepted=0, last=LastToken.TARGET_ONLY, depth=0) if status else v
        for i, (status, v) in enumerate(zip(statuses, (MINE, THEIRS), strict=True))
    ]
    return [
        compose_entry(i, ENTRIES[i], drafts[i], statuses[i], verdicts[i], prefix_after)
        for i in range(2)
    ]


def leader_at(phase: Phase) -> PairLeader:
    """Rank 0 with nothing discarded, up to a phase."""
    leader = PairLeader(STEP)
    if phase is not Phase.COLLECTING:
        leader.prepare(FOUND)
    if phase in (Phase.EVALUATING, Phase.APPLYING, Phase.DONE):
        leader.on_prepared(Prepared(7, tuple(FOUND)))
    if phase in (Phase.APPLYING, Phase.DONE):
        leader.own_verdicts({0: MINE})
        leader.on_verdicts(Verdicts(7, (THEIRS,)), [1])
        decision = leader.decide_outcome(entries())
        if phase is Phase.DONE:
            assert leader.on_applied(Applied(7, decision_digest(decision)))
    assert leader.phase is phase
    return leader


def code_of(call: Any, *args: Any) -> Code:
    with pytest.raises(ProtocolError) as refusal:
        call(*args)
    return refusal.value.code


# --- both sides together ---------------------------------------------------------------------


@pytest.mark.parametrize("statuses", [(0, 0), (500, 0), (0, 406), (500, 406)])
@pytest.mark.parametrize("found_by", ["rank 0", "rank 1", "both"])
def test_one_step_from_prepare_to_applied(statuses: tuple[int, int], found_by: str) -> None:
    """Whoever finds the fault, both ranks discard it, and the same record is applied."""
    faulty = [finding(entry, status) for entry, status in zip(ENTRIES, statuses, strict=True)]
    mine = FOUND if found_by == "rank 1" else faulty
    theirs = FOUND if found_by == "rank 0" else faulty
    leader, follower = PairLeader(STEP), PairFollower(STEP)
    question = leader.on_prepared(follower.on_prepare(leader.prepare(mine), theirs))
    if any(statuses):
        assert isinstance(question, Invalidate)
        assert {entry.reason for entry in question.entries} == set(statuses) - {0}
        question = leader.on_invalidated(follower.on_invalidate(question))
    assert isinstance(question, Decide)
    assert question.uses == tuple(status == 0 for status in statuses)
    follower.on_decide(question, theirs)
    assert follower.uses == leader.uses
    outcome = entries(statuses)
    leader.own_verdicts({0: MINE})
    assert leader.verdicts() is None
    leader.on_verdicts(follower.on_evaluated(question, [THEIRS]), [1])
    assert leader.verdicts() == {0: MINE, 1: THEIRS}
    decision = leader.decide_outcome(outcome)
    assert len(decision.entries) == limits.REQUESTS_MAX
    assert decision.entries[2:] == (EMPTY_ENTRY,) * 2
    assert leader.on_applied(follower.on_decision(decision, outcome))
    assert (leader.phase, follower.phase) == (Phase.DONE, Phase.DONE)


# --- rank 0 ----------------------------------------------------------------------------------


def test_proposals_that_the_ranks_hold_differently_are_discarded() -> None:
    leader = leader_at(Phase.PREPARING)
    other = (finding(ENTRIES[0], digest=b"r" * 16), FOUND[1])
    question = leader.on_prepared(Prepared(7, other))
    assert isinstance(question, Invalidate)
    assert question.entries == (
        Invalidation(A, ENTRIES[0].generation, int(Code.PREPARED_MISMATCH)),
    )
    assert leader.uses == (False, True)


def test_rank_0_s_own_finding_is_the_reason_where_both_have_one() -> None:
    leader = PairLeader(STEP)
    leader.prepare([finding(ENTRIES[0], Code.DRAFT_LATE), FOUND[1]])
    leader.on_prepared(Prepared(7, (finding(ENTRIES[0], Code.Q_MISSING), FOUND[1])))
    assert leader.statuses == [Code.DRAFT_LATE, 0]


@pytest.mark.parametrize(
    "found",
    [
        (),
        tuple(FOUND[:1]),
        (*FOUND, FOUND[0]),
        tuple(FOUND[::-1]),
        (replace(FOUND[0], generation=99), FOUND[1]),
        (replace(FOUND[0], round=99), FOUND[1]),
    ],
)
def test_findings_on_another_step_are_a_split(found: tuple[PrepareEntry, ...]) -> None:
    leader = leader_at(Phase.PREPARING)
    assert code_of(leader.on_prepared, Prepared(7, found)) is Code.RANK_SPLIT


def test_ending_other_generations_is_a_split() -> None:
    leader = leader_at(Phase.PREPARING)
    leader.on_prepared(Prepared(7, (finding(ENTRIES[0], Code.Q_MISSING), FOUND[1])))
    assert leader.phase is Phase.INVALIDATING
    assert code_of(leader.on_invalidated, Invalidated(7, ())) is Code.RANK_SPLIT


@pytest.mark.parametrize("count", [0, 2])
def test_verdicts_on_other_requests_are_a_split(count: int) -> None:
    leader = leader_at(Phase.EVALUATING)
    assert code_of(leader.on_verdicts, Verdicts(7, (THEIRS,) * count), [1]) is Code.RANK_SPLIT


def test_a_request_whose_engine_failed_on_either_rank_ends() -> None:
    """The owner has a verdict, but the other rank could not go on with the request."""
    mine, theirs = ending(ENTRIES[1], Code.TARGET_FAILED), ending(ENTRIES[0], Code.LOGITS_INVALID)
    leader = leader_at(Phase.EVALUATING)
    leader.own_verdicts({0: MINE})
    leader.on_verdicts(Verdicts(7, (theirs, THEIRS)), [1])
    assert leader.verdicts() == {0: theirs, 1: THEIRS}
    leader = leader_at(Phase.EVALUATING)
    leader.own_verdicts({0: MINE, 1: mine})
    leader.on_verdicts(Verdicts(7, (THEIRS,)), [1])
    assert leader.verdicts() == {0: MINE, 1: mine}


@pytest.mark.parametrize(
    "found",
    [
        (MINE, THEIRS),  # tokens for a request that it does not own
        (ending(ENTRIES[0], Code.TARGET_FAILED),),  # nothing for the one that it does
        (THEIRS, ending(ENTRIES[1], Code.TARGET_FAILED)),
        (replace(THEIRS, round=9),),
    ],
)
def test_rank_1_speaks_of_each_request_once_and_commits_for_its_own_only(
    found: tuple[VerdictEntry, ...],
) -> None:
    leader = leader_at(Phase.EVALUATING)
    assert code_of(leader.on_verdicts, Verdicts(7, found), [1]) is Code.RANK_SPLIT


def test_another_digest_of_the_record_is_a_split() -> None:
    leader = leader_at(Phase.APPLYING)
    assert code_of(leader.on_applied, Applied(7, bytes(16))) is Code.RANK_SPLIT
    assert leader.phase is Phase.APPLYING


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.EVALUATING, Phase.APPLYING, Phase.DONE])
def test_repeated_and_early_answers_change_nothing(phase: Phase) -> None:
    """An answer outside its phase gives no message and moves nothing."""
    leader = leader_at(phase)
    before = (leader.phase, list(leader.statuses), leader.decision)
    if phase is not Phase.PREPARING:
        doubt = Prepared(7, (finding(ENTRIES[0], Code.Q_MISSING), FOUND[1]))
        assert leader.on_prepared(doubt) is None
    assert leader.on_invalidated(Invalidated(7, ())) is None
    if phase is not Phase.EVALUATING:
        leader.on_verdicts(Verdicts(7, ()), [1])
    if phase is not Phase.APPLYING:
        assert not leader.on_applied(Applied(7, bytes(16)))
    assert (leader.phase, leader.statuses, leader.decision) == before


def test_the_first_verdicts_stand() -> None:
    leader = leader_at(Phase.EVALUATING)
    leader.own_verdicts({0: MINE})
    leader.on_verdicts(Verdicts(7, (THEIRS,)), [1])
    leader.on_verdicts(Verdicts(7, (ending(ENTRIES[1], Code.TARGET_FAILED),)), [1])
    assert leader.verdicts() == {0: MINE, 1: THEIRS}


def test_depth_0_is_never_a_use() -> None:
    step = Step(7, (step_entry(session_id=A, depth=0),))
    leader = PairLeader(step)
    leader.prepare([finding(step.entries[0])])
    decide = leader.on_prepared(Prepared(7, (finding(step.entries[0]),)))
    assert decide == Decide(7, (False,))


# --- rank 1 ----------------------------------------------------------------------------------

PREPARE = Prepare(7, tuple(FOUND))
DECIDE = Decide(7, (True, True))


def follower_at(phase: Phase) -> PairFollower:
    """Rank 1 with nothing discarded, up to a phase."""
    follower = PairFollower(STEP)
    if phase is not Phase.COLLECTING:
        follower.on_prepare(PREPARE, FOUND)
    if phase is Phase.INVALIDATING:
        follower.on_invalidate(Invalidate(7, (Invalidation(A, ENTRIES[0].generation, 500),)))
    if phase in (Phase.EVALUATING, Phase.APPLYING, Phase.DONE):
        follower.on_decide(DECIDE, FOUND)
    if phase in (Phase.APPLYING, Phase.DONE):
        follower.on_evaluated(DECIDE, [THEIRS])
    if phase is Phase.DONE:
        follower.on_decision(record(), entries())
    assert follower.phase is phase
    return follower


def record() -> Decision:
    return Decision(7, (*entries(), EMPTY_ENTRY, EMPTY_ENTRY))


def test_a_repeated_question_gets_its_first_answer() -> None:
    follower = follower_at(Phase.DONE)
    assert follower.repeated(PREPARE) == Prepared(7, tuple(FOUND))
    assert follower.repeated(DECIDE) == Verdicts(7, (THEIRS,))
    assert follower.repeated(record()) == Applied(7, decision_digest(record()))
    assert follower.repeated(Invalidate(7, ())) is None, "it was never asked"


@pytest.mark.parametrize(
    "changed",
    [
        Prepare(7, (finding(ENTRIES[0], Code.Q_MISSING), FOUND[1])),
        Decide(7, (False, True)),
        replace(
            record(), entries=(replace(record().entries[0], accepted=1), *record().entries[1:])
        ),
    ],
)
def test_a_repeated_question_with_another_content_is_refused(changed: Any) -> None:
    assert code_of(follower_at(Phase.DONE).repeated, changed) is Code.DECISION_MISMATCH


PHASES = set(Phase)


@pytest.mark.parametrize(
    ("ask", "allowed"),
    [
        (lambda f: f.on_prepare(PREPARE, FOUND), {Phase.COLLECTING}),
        (lambda f: f.on_invalidate(Invalidate(7, ())), {Phase.PREPARING}),
        (lambda f: f.on_decide(DECIDE, FOUND), {Phase.PREPARING, Phase.INVALIDATING}),
        (lambda f: f.on_decision(record(), entries()), {Phase.APPLYING}),
    ],
)
def test_every_question_has_its_phases_and_is_stale_in_all_others(ask: Any, allowed: Any) -> None:
    for phase in PHASES - allowed:
        follower = follower_at(phase)
        assert code_of(ask, follower) is Code.STEP_STALE
        assert follower.phase is phase
    for phase in allowed - {Phase.INVALIDATING}:
        ask(follower_at(phase))


@pytest.mark.parametrize(
    "entry", [Invalidation(b"x" * 16, 3, 500), Invalidation(A, 99, 500), Invalidation(B, 2, 500)]
)
def test_a_generation_that_is_not_of_the_step_is_not_ended(entry: Invalidation) -> None:
    follower = follower_at(Phase.PREPARING)
    assert code_of(follower.on_invalidate, Invalidate(7, (entry,))) is Code.DECISION_MISMATCH


@pytest.mark.parametrize("uses", [(), (True,), (False, True), (False, False), (True, True, True)])
def test_a_use_that_rank_1_does_not_agree_to_is_refused(uses: tuple[bool, ...]) -> None:
    follower = follower_at(Phase.PREPARING)
    assert code_of(follower.on_decide, Decide(7, uses), FOUND) is Code.DECISION_MISMATCH


def test_what_rank_1_found_faulty_or_ended_is_never_used() -> None:
    faulty = [finding(ENTRIES[0], Code.Q_MISSING), FOUND[1]]
    follower = PairFollower(STEP)
    follower.on_prepare(PREPARE, faulty)
    assert code_of(follower.on_decide, DECIDE, faulty) is Code.DECISION_MISMATCH
    ended = follower_at(Phase.INVALIDATING)
    assert code_of(ended.on_decide, DECIDE, FOUND) is Code.DECISION_MISMATCH


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 2},
        {"generation": 9},
        {"round": 9},
        {"reason": 500},
        {"depth": 5},
        {"accepted": 1},
        {"rejected": 3},
        {"unverified": 4},
        {"last": 3},
        {"finish": 1},
        {"token_count": 1},
        {"tokens": b"\1" * 24},
        {"position": 1},
        {"digest": b"e" * 16},
        {"session_id": b"x" * 16},
    ],
)
def test_no_field_of_the_record_may_differ_from_what_rank_1_expects(
    changes: dict[str, Any], index: int
) -> None:
    """Also not in the empty entries, whose shape is the same."""
    whole = list(record().entries)
    whole[index] = replace(whole[index], **changes)
    follower = follower_at(Phase.APPLYING)
    changed = Decision(7, tuple(whole))
    assert code_of(follower.on_decision, changed, entries()) is Code.DECISION_MISMATCH


# --- entries of the record -------------------------------------------------------------------


def test_the_entry_of_an_ended_request_commits_nothing() -> None:
    entry = compose_entry(
        0, ENTRIES[0], DRAFTS[0], 0, ending(ENTRIES[0], Code.TARGET_FAILED), prefix_after
    )
    assert (entry.kind, entry.reason) == (DecisionKind.END, Code.TARGET_FAILED)
    assert (entry.accepted, entry.rejected, entry.unverified) == (0, 0, 3)
    assert (entry.token_count, entry.tokens) == (0, bytes(24))
    assert (entry.position, entry.digest) == (ENTRIES[0].position, ENTRIES[0].digest)


def test_the_record_has_one_shape_whatever_it_says() -> None:
    shapes = {
        (type(entry), len(entry.tokens), len(entry.digest), len(entry.session_id))
        for statuses in ((0, 0), (500, 0))
        for entry in (*entries(statuses), EMPTY_ENTRY)
    }
    assert len(shapes) == 1


def test_rank_1_writes_its_own_verdict_and_not_the_one_it_is_told() -> None:
    """For a request that it owns, a record that says something else does not pass."""
    told = entries()[1]
    own = verdict(ENTRIES[1], (8, 1), accepted=1, last=LastToken.CORRECTION)
    written = recompose(1, ENTRIES[1], DRAFTS[1], 0, RULES, told, own, prefix_after)
    assert written != told
    assert written.accepted == 1


def test_rank_1_reads_the_other_owner_s_verdict_off_the_record() -> None:
    told = entries()[0]
    assert recompose(0, ENTRIES[0], DRAFTS[0], 0, RULES, told, None, prefix_after) == told
    lied = replace(told, digest=b"z" * 16)
    assert recompose(0, ENTRIES[0], DRAFTS[0], 0, RULES, lied, None, prefix_after) == told
    impossible = replace(told, accepted=3)
    assert (
        code_of(recompose, 0, ENTRIES[0], DRAFTS[0], 0, RULES, impossible, None, prefix_after)
        is Code.RANK_SPLIT
    )


def test_an_end_needs_a_registered_reason() -> None:
    told = compose_entry(
        0, ENTRIES[0], DRAFTS[0], 0, ending(ENTRIES[0], Code.CANCELLED), prefix_after
    )
    assert recompose(0, ENTRIES[0], DRAFTS[0], 0, RULES, told, None, prefix_after) == told
    odd = replace(told, reason=31_337)
    assert recompose(0, ENTRIES[0], DRAFTS[0], 0, RULES, odd, None, prefix_after) != odd


# --- verdicts --------------------------------------------------------------------------------

POSSIBLE = [
    MINE,
    verdict(ENTRIES[0], (5, 6, 7, 1), accepted=3, last=LastToken.BONUS),
    verdict(ENTRIES[0], (2,), accepted=0, last=LastToken.CORRECTION),
    verdict(ENTRIES[0], (STOP,), accepted=0, last=LastToken.CORRECTION, finish=Finish.STOP),
    ending(ENTRIES[0], Code.LOGITS_INVALID),
]


@pytest.mark.parametrize("found", POSSIBLE)
def test_a_verdict_that_the_verifier_can_give_passes(found: VerdictEntry) -> None:
    check_verdict(ENTRIES[0], DRAFTS[0], RULES, found)


def test_a_stop_among_the_drafts_ends_the_verdict_there() -> None:
    drafts = (5, STOP, 7)
    rules = RULES
    stopped = verdict(ENTRIES[0], (5, STOP), accepted=2, last=LastToken.NONE, finish=Finish.STOP)
    check_verdict(ENTRIES[0], drafts, rules, stopped)
    beyond = verdict(ENTRIES[0], (5, STOP, 7), accepted=3, last=LastToken.NONE, finish=Finish.NONE)
    assert code_of(check_verdict, ENTRIES[0], drafts, rules, beyond) is Code.RANK_SPLIT


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": B},
        {"generation": 9},
        {"round": 9},
        {"status": int(Code.TARGET_FAILED)},
        {"status": 31_337},
        {"accepted": 1},
        {"rejected": 0},
        {"unverified": 1},
        {"last": int(LastToken.BONUS)},
        {"last": int(LastToken.NONE)},
        {"last": int(LastToken.TARGET_ONLY)},
        {"last": 9},
        {"finish": int(Finish.STOP)},
        {"finish": int(Finish.LENGTH)},
        {"finish": 9},
        {"tokens": tokens_to_bytes((5, 9, 2))},
        {"tokens": tokens_to_bytes((5, 6))},
        {"tokens": tokens_to_bytes((5, 6, 12))},
        {"tokens": tokens_to_bytes((5, 6, -1))},
        {"tokens": tokens_to_bytes((5, 6, STOP))},
        {"tokens": tokens_to_bytes((5, 6, 2)) + b"\0"},
        {"tokens": b""},
    ],
)
def test_a_verdict_that_no_verifier_gives_is_a_split(changes: dict[str, Any]) -> None:
    assert (
        code_of(check_verdict, ENTRIES[0], DRAFTS[0], RULES, replace(MINE, **changes))
        is Code.RANK_SPLIT
    )


def test_a_verdict_beyond_the_room_of_the_request_is_a_split() -> None:
    rules = TextRules(room=2, stop_tokens=frozenset(), legal_size=12)
    assert code_of(check_verdict, ENTRIES[0], DRAFTS[0], rules, MINE) is Code.RANK_SPLIT
    ends = verdict(ENTRIES[0], (5, 6), accepted=2, last=LastToken.NONE, finish=Finish.LENGTH)
    check_verdict(ENTRIES[0], DRAFTS[0], rules, ends)
