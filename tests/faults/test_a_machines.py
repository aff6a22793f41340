"""Fault kinds A in the machines: the q that arrives is not the q that drew."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import pytest

from proto_v2.binding import completion_checksum, row_checksum
from proto_v2.dyadic import full_support
from proto_v2.errors import Code
from proto_v2.messages import Completion, Message, Nak, Row, Rows, Step, StepEntry
from proto_v2.representation import Representation, decode, encode
from tests.support.checks import check_discard, check_done, code_of, reasons, replace
from tests.support.doubles import DENSE, SPARSE, Bench, ScriptedLaw, V
from tests.support.statistics import chi_square, chi_square_bound
from tests.support.wire import Frames, Held, Sent, Wire, change, drop

LENGTH = 30
ROW_BYTES = V * 4
ChangeRow = Callable[[StepEntry, Row, bytes], tuple[Row, bytes]]


def run_one(
    wire: Wire, *, depth: int = 3, representation: int = DENSE, support: int = 0
) -> tuple[Bench, object]:
    """One request, from its first message to its last."""
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(
        1, [1], LENGTH, depth=depth, representation=representation, support=support
    )
    bench.trio.run(seconds=3)
    return bench, answer


def change_row(wire: Wire, make: ChangeRow, *, index: int = 0, step: int = 3) -> None:
    """The worker sends another row ``index`` in one step (dense rows travel one by one)."""

    def act(sent: Sent, message: Rows) -> list[Frames]:
        (row,) = message.rows
        entry = wire.of(Step, destination="worker")[-1].entries[row.entry]
        if message.step != step or row.position != entry.position + index:
            return [sent.frames]
        assert sent.payload is not None
        changed, payload = make(entry, row, bytes(sent.payload))
        return [sent.sealed(Rows(message.step, (changed,)), payload)]

    wire.when(Rows, act, source="worker", times=1000)


def test_a01_ids_without_a_q_frame_cost_the_whole_proposal() -> None:
    """A1: ids arrive at T > 0 and no q; never a verification without one."""
    wire = Wire()
    change_row(wire, lambda entry, row, payload: (row, b""))
    bench, answer = run_one(wire)
    check_discard(bench, wire, answer, Code.Q_MISSING)  # type: ignore[arg-type]


def test_a01_a_row_that_states_no_entries_costs_the_whole_proposal() -> None:
    """A1: the descriptor says that there is no q, the frame holds another row's bytes."""
    wire = Wire()

    def act(sent: Sent, message: Rows) -> list[Frames]:
        (row,) = message.rows
        bare = replace(row, entries=0, byte_length=0)
        assert sent.payload is not None
        return [sent.sealed(Rows(message.step, (bare, row)), bytes(sent.payload))]

    wire.when(Rows, act, source="worker", skip=6)
    bench, answer = run_one(wire)
    check_discard(bench, wire, answer, Code.Q_MISSING)  # type: ignore[arg-type]


def test_a03_depth_0_beside_depth_5_is_an_ordinary_row() -> None:
    """A3: it needs no q, contributes a target sample, and fails nobody."""
    wire = Wire()
    bench = Bench(intercept=wire)
    plain = bench.trio.generate(0, [1], LENGTH, depth=0)
    deep = bench.trio.generate(1, [1], LENGTH, depth=5)
    bench.trio.run()
    assert plain.finished is not None
    assert (plain.finished.rounds_target_only, plain.finished.drafted) == (LENGTH, 0)
    check_done(deep, LENGTH)
    mixed = [step for step in wire.of(Step) if len(step.entries) == 2]
    assert any({entry.depth for entry in step.entries} == {0, 5} for step in mixed)
    assert not reasons(plain) + reasons(deep)
    bench.check_rest()


def keep_the_bytes_of_the_round_before(wire: Wire) -> ChangeRow:
    kept: dict[int, bytes] = {}

    def make(entry: StepEntry, row: Row, payload: bytes) -> tuple[Row, bytes]:
        index = row.position - entry.position
        stale = kept.get(index, payload)
        kept[index] = payload
        return row, stale if index else payload

    return make


def test_a04_later_rows_that_keep_the_round_before_are_seen() -> None:
    """A4: row 0 is right, rows 1.. hold the q of another round."""
    wire = Wire()
    stale = keep_the_bytes_of_the_round_before(wire)

    def both(sent: Sent) -> list[Frames] | None:
        if not isinstance(sent.message, Rows) or sent.source != "worker":
            return None
        if sent.message.step not in (2, 3):
            return None
        (row,) = sent.message.rows
        entry = wire.of(Step, destination="worker")[-1].entries[row.entry]
        assert sent.payload is not None
        changed, payload = stale(entry, row, bytes(sent.payload))
        return [sent.sealed(Rows(sent.message.step, (changed,)), payload)]

    wire.rules.append(both)
    bench, answer = run_one(wire)
    check_discard(bench, wire, answer, Code.ROW_CHECKSUM)  # type: ignore[arg-type]


def test_a04_the_second_position_keeps_the_target_s_law() -> None:
    """A4: histogram of the second token while every third step is damaged like that."""
    weights = [8.0, 4.0, 3.0, 1.0] + [0.0] * (V - 4)
    draft = [1.0, 2.0, 3.0, 8.0] + [0.0] * (V - 4)
    law = ScriptedLaw(lambda context: weights, lambda context: draft)
    wire = Wire()
    stale = keep_the_bytes_of_the_round_before(wire)

    def damage(sent: Sent) -> list[Frames] | None:
        if not isinstance(sent.message, Rows) or sent.source != "worker":
            return None
        wire.sent.clear()
        (row,) = sent.message.rows
        assert sent.payload is not None
        entry = current[row.entry]
        changed, payload = stale(entry, row, bytes(sent.payload))
        return [sent.sealed(Rows(sent.message.step, (changed,)), payload)] if damaged else None

    current: tuple[StepEntry, ...] = ()
    damaged = False

    def note(sent: Sent) -> list[Frames] | None:
        nonlocal current, damaged
        if isinstance(sent.message, Step):
            current, damaged = sent.message.entries, sent.message.step % 3 == 0
        return None

    wire.rules += [note, damage]
    bench = Bench(law, intercept=wire)
    seconds: Counter[int] = Counter()
    for key in range(500):
        answer = bench.trio.generate(
            key, [1], 3, depth=2, representation=DENSE, seed=key.to_bytes(32, "little")
        )
        bench.trio.run()
        seconds[answer.tokens[1]] += 1
    total = Fraction(sum(int(weight) for weight in weights))
    expected = {token: Fraction(int(weight)) / total for token, weight in enumerate(weights)}
    statistic, degrees = chi_square(seconds, expected, 500)
    print(f"chi-square {statistic:.1f} on {degrees} degrees")
    assert statistic < chi_square_bound(degrees)
    assert bench.trio.count("rank0", "pp1_spec_decode_num_accepted_tokens_total") > 0


def test_a05_a_row_for_a_fourth_entry_of_three_overwrites_nobody() -> None:
    """A5: a padded row names an entry that the step does not have."""
    wire = Wire()

    def pad(message: Rows) -> Message:
        return Rows(message.step, (replace(message.rows[0], entry=3), *message.rows[1:]))

    wire.when(Rows, change(pad), source="worker", skip=20)
    bench = Bench(intercept=wire)
    answers = [bench.trio.generate(key, [key], LENGTH, depth=2) for key in range(3)]
    bench.trio.run()
    for answer in answers:
        check_done(answer, LENGTH)
        assert set(reasons(answer)) <= {Code.ROW_COUNT}
    assert bench.trio.count("rank0", "pp1_proposals_discarded_total", reason="ROW_COUNT") >= 1
    bench.check_rest()


def test_a05_a_step_padded_with_a_live_slot_is_refused() -> None:
    """A5: three live requests padded to four, the fourth in the slot of the first."""
    wire = Wire()

    def pad(step: Step) -> Message:
        return Step(step.step, (*step.entries, replace(step.entries[0], session_id=bytes(16))))

    bench = Bench(intercept=wire)
    answers = [bench.trio.generate(key, [key], LENGTH, depth=2) for key in range(3)]
    bench.trio.run(messages=90)
    wire.when(Step, change(pad), destination="worker")
    bench.trio.run()
    for answer in answers:
        check_done(answer, LENGTH)
        assert reasons(answer) == [Code.SLOT_DUPLICATE]
    assert [nak.code for nak in wire.of(Nak)] == [Code.SLOT_DUPLICATE]
    bench.check_rest()


@pytest.mark.parametrize("temperature", [-1.0, 0.0, float("nan"), float("inf"), 1e-9])
def test_a11_sentinel_temperatures_are_refused_and_counters_only_grow(temperature: float) -> None:
    """A11: neither a client nor a step gets one through to a draft."""
    wire = Wire()
    bench = Bench(intercept=wire)
    refused = bench.trio.generate(0, [1], LENGTH, draft_temperature=temperature)
    assert code_of(refused) is Code.PARAMETER_RANGE
    assert refused.failed is not None
    assert refused.failed.field == "draft_temperature"
    if temperature != 0.0:
        assert code_of(bench.trio.generate(1, [1], 9, temperature=temperature)) == 803

    def sentinel(step: Step) -> Message:
        return Step(step.step, (replace(step.entries[0], temperature=temperature),))

    wire.when(Step, change(sentinel), destination="worker", skip=2)
    answer = bench.trio.generate(2, [1], LENGTH, depth=3)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.TEMPERATURE_RANGE)
    assert all(value > 0 for value in bench.trio.counts.values())


def test_a13_a_target_of_top_k_1_with_an_unrestricted_q_costs_acceptance_only() -> None:
    """A13: the text is the greedy one; the policy stands in the step, the cost in a metric."""

    def serve(support: int) -> tuple[list[int], int, Step]:
        wire = Wire()
        bench = Bench(intercept=wire)
        answer = bench.trio.generate(1, [7], 60, depth=3, temperature=0.0, support=support)
        bench.trio.run()
        check_done(answer, 60)
        accepted = bench.trio.count("rank0", "pp1_spec_decode_num_accepted_tokens_total")
        drafted = bench.trio.count("rank0", "pp1_spec_decode_num_draft_tokens_total")
        assert 0 < accepted < drafted
        return answer.tokens, accepted, wire.of(Step)[0]

    free, accepted, step = serve(0)
    point, more, pointed = serve(1)
    assert free == point
    assert (step.entries[0].support, pointed.entries[0].support) == (0, 1)
    assert accepted != more


@pytest.mark.parametrize("reseal", [False, True])
def test_a14_q_of_the_neighbouring_position_is_seen(reseal: bool) -> None:
    """A14: rows i and i+1 exchange their bytes, or stand in each other's place."""
    wire = Wire()
    held: list[Sent] = []

    def swap(sent: Sent, message: Rows) -> list[Frames]:
        held.append(sent)
        if len(held) == 1:
            return []
        first, second = held
        assert isinstance(first.message, Rows)
        assert first.message.step == message.step
        if reseal:
            return [second.frames, first.frames]
        return [
            first.sealed(first.message, second.payload),
            second.sealed(message, first.payload),
        ]

    wire.when(Rows, swap, source="worker", skip=6, times=2)
    bench, answer = run_one(wire)
    check_discard(bench, wire, answer, Code.ROW_POSITION if reseal else Code.ROW_CHECKSUM)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["worker", "rank1"])
def test_a15_a_side_without_q_is_refused_at_the_handshake(name: str) -> None:
    """A15: no representation offered is no speculation without q, but a named refusal."""
    bench = Bench(hellos={name: lambda hello: replace(hello, representations=())})
    assert bench.trio.stopped["rank0"].exit_code == 4
    assert "NO_COMMON_REPRESENTATION" in bench.trio.stopped["rank0"].message


def softmax_for_greedy(entry: StepEntry, row: Row, payload: bytes) -> tuple[Row, bytes]:
    """A whole softmax beside a greedy token, bound as an honest worker would bind it."""
    weights = ScriptedLaw().draft_weights([1])
    weights = 0.5 * weights
    weights[row.token] += 0.5
    representation = Representation(entry.representation)
    q = encode(full_support(weights), representation)
    entries = len(q) // (8 if representation is Representation.SPARSE_F32 else 4)
    checksum = row_checksum(entry, 0, (), row.token, row.representation, entries, q)
    return replace(row, entries=entries, byte_length=len(q), checksum=checksum), q


@pytest.mark.parametrize("representation", [SPARSE, DENSE])
def test_a16_a_greedy_proposal_must_carry_a_point_mass(representation: int) -> None:
    """A16: the step asks for support 1; a softmax beside its token is not that."""
    wire = Wire()
    change_row(wire, softmax_for_greedy)
    bench, answer = run_one(wire, depth=1, representation=representation, support=1)
    check_discard(bench, wire, answer, Code.ROW_ENTRIES)  # type: ignore[arg-type]
    for step in wire.of(Step, destination="worker"):
        assert step.entries[0].support == 1


@pytest.mark.parametrize("bound", [False, True])
def test_a18_a_token_that_its_own_counts_did_not_draw_is_seen(bound: bool) -> None:
    """A18: another token beside the same counts; bound again, it must at least have mass."""
    wire = Wire()

    def other(entry: StepEntry, row: Row, payload: bytes) -> tuple[Row, bytes]:
        masses = [payload[4 * token : 4 * token + 4] for token in range(V)]
        token = masses.index(bytes(4))
        checksum = row.checksum
        if bound:
            checksum = row_checksum(entry, 0, (), token, DENSE, V, payload)
        return replace(row, token=token, checksum=checksum), payload

    change_row(wire, other)
    bench, answer = run_one(wire)
    check_discard(bench, wire, answer, Code.TOKEN_ZERO_Q if bound else Code.ROW_CHECKSUM)  # type: ignore[arg-type]


@pytest.mark.parametrize(("representation", "depth"), [(SPARSE, 1), (DENSE, 1), (DENSE, 3)])
def test_a18_a_token_of_another_draw_is_found_and_its_worker_not_asked_again(
    representation: int, depth: int
) -> None:
    """A18: a token that has mass, bound honestly, but not the one that the ticket gives.

    A worker with such a fault is wrong in every row; what is found out by chance must
    not decide which of its rows count.
    """
    wire = Wire()

    def other(entry: StepEntry, row: Row, payload: bytes) -> tuple[Row, bytes]:
        q = decode(
            Representation(representation), payload, row.entries, vocabulary_size=V, legal_size=V
        )
        token = next(id for id in range(V) if id != row.token and q.count_of(id))
        checksum = row_checksum(entry, 0, (), token, representation, row.entries, payload)
        return replace(row, token=token, checksum=checksum), payload

    change_row(wire, other)
    bench, _ = run_one(wire, depth=depth, representation=representation)
    trio, answer = bench.trio, bench.trio.answers[1]
    assert reasons(answer) == [Code.TOKEN_NOT_DRAWN]
    assert trio.count("rank0", "pp1_proposals_discarded_total", reason="TOKEN_NOT_DRAWN") == 1
    bad = next(place for place, message in enumerate(answer.rounds) if message.reason)
    assert not any(message.depth for message in answer.rounds[bad + 1 :])
    assert trio.count("rank0", "pp1_no_draft_total", reason="TOKEN_NOT_DRAWN") > 0
    assert [event for _, event, _ in trio.notes].count("worker_distrusted") == 1
    again = trio.generate(2, [1], LENGTH, depth=depth)
    trio.run()
    assert len(again.tokens) == LENGTH
    assert not any(message.depth for message in again.rounds)
    assert not trio.worker.sessions
    bench.draft.__init__(bench.draft.law)  # type: ignore[misc]
    trio.start_worker()  # another process at the same address is trusted anew
    trio.run(seconds=3)
    trusted = trio.generate(3, [1], LENGTH, depth=depth)
    trio.run()
    check_done(trusted, LENGTH)
    assert any(message.depth for message in trusted.rounds)
    bench.check_rest()


def test_a18_no_draft_is_a_status_and_not_a_token() -> None:
    """A18: what a drafter cannot draw it says, with a reason and without rows."""
    wire = Wire()
    bench = Bench(intercept=wire)
    failed = False

    def fail(context: object) -> None:
        nonlocal failed
        if len(wire.of(Step, destination="worker")) == 3 and not failed:
            failed = True
            raise LookupError("nothing cached for this prefix")

    bench.draft.fails = fail
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.DRAFT_FAILED)
    (empty,) = [
        entry
        for completion in wire.of(Completion, source="worker")
        for entry in completion.entries
        if entry.status
    ]
    assert (empty.status, empty.row_count, empty.reply_bytes) == (Code.DRAFT_FAILED, 0, 0)


def test_a19_no_q_of_the_round_before_is_verified_after_a_timeout() -> None:
    """A19: round 1 has its q; round 2 gets nothing and is judged without drafts."""
    wire = Wire()
    for kind in (Rows, Completion):
        wire.when(
            kind,
            lambda sent, message: [] if message.step == 3 else [sent.frames],  # type: ignore[attr-defined]
            source="worker",
            times=1000,
        )
    bench, answer = run_one(wire)
    check_discard(bench, wire, answer, Code.DRAFT_LATE)  # type: ignore[arg-type]
    for target in bench.targets:
        drafts = [items[0].drafts for items in target.evaluations]
        assert drafts[1]
        assert drafts[2] == ()


def test_a19_a_late_q_meets_no_ids() -> None:
    """A19: the rows of round 2 arrive in round 3, and are nobody's."""
    wire = Wire()
    held = Held()
    for kind in (Rows, Completion):
        wire.when(
            kind,
            lambda sent, message: (
                held(sent, message) if message.step == 3 else [sent.frames]  # type: ignore[attr-defined]
            ),
            source="worker",
            times=1000,
        )
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3, representation=DENSE)
    bench.trio.run(seconds=1.001)
    for sent in held.sent:
        bench.trio.inject("worker", "rank0", sent.frames)
    bench.trio.run(seconds=3)
    check_discard(bench, wire, answer, Code.DRAFT_LATE)
    late = bench.trio.count("rank0", "pp1_late_replies_total")
    assert late == len(held.sent) > 3


def test_a19_a_completion_cannot_vouch_for_rows_that_did_not_come() -> None:
    """A19: the last row is lost, and the completion is that of a shorter proposal."""
    wire = Wire()
    bench = Bench(intercept=wire)

    def shorten(completion: Completion) -> Message:
        (entry,) = completion.entries
        rows = [message.rows[0] for message in wire.of(Rows, source="worker")]
        kept = list(rows[-3:-1])
        step = wire.of(Step, destination="worker")[-1].entries[0]
        size = sum(row.byte_length for row in kept)
        checksum = completion_checksum(step, 0, size, [row.checksum for row in kept])
        shorter = replace(entry, row_count=2, reply_bytes=size, checksum=checksum)
        return Completion(completion.step, (shorter,))

    wire.when(Rows, drop, source="worker", skip=8)
    wire.when(Completion, change(shorten), source="worker", skip=2)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3, representation=DENSE)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.DEPTH_MISMATCH)
