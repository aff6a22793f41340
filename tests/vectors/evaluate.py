"""What the product makes of a vector: its output, or the error that it refuses with.

One function an operation; ``evaluate`` finds it by name. The values of a
vector are read here and nowhere else; the product gets its own types.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from unittest.mock import patch

import msgspec
import numpy as np

from proto_v2 import (
    binding,
    codec,
    dyadic,
    envelope,
    limits,
    negotiate,
    representation,
    rng,
    validate,
)
from proto_v2.dyadic import SEMANTICS, Categorical
from proto_v2.effects import Buffer, Count, Effect, Peer, Send
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import (
    AnyMessage,
    Completion,
    Decide,
    Decision,
    Generate,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Nak,
    Open,
    Prepare,
    Prepared,
    Rows,
    Step,
    StepEntry,
    TermsAgreed,
    Verdicts,
    kind_of_type,
)
from proto_v2.negotiate import PRECISION, VERIFIER, Terms
from proto_v2.peerlink import LinkTiming
from proto_v2.rng import RNG_ABI, Domain, KeyedTickets
from proto_v2.session import Ledger
from proto_v2.slots import SlotTable
from proto_v2.vocabulary import Vocabulary, map_hash
from spark_rank import clients, collector, pair
from spark_rank import request as requests
from spark_rank import residual as residuals
from spark_rank import verify as verifying
from tests.vectors.values import integer, unhex
from worker.machine import WorkerMachine

Given = Mapping[str, Any]
Output = dict[str, Any]
M = TypeVar("M", bound=Message)

_BOOT: Final = bytes(16)
OPERATIONS: Final[dict[str, Callable[[Given, Given], Output]]] = {}


def operation(run: Callable[[Given, Given], Output]) -> Callable[[Given, Given], Output]:
    """Register the function of an operation under its own name."""
    OPERATIONS[run.__name__] = run
    return run


def evaluate(name: str, params: Given, given: Given) -> Output:
    """The product's output for one test.

    Raises:
        ProtocolError: the product refuses it.
    """
    return OPERATIONS[name](params, given)


# --- values --------------------------------------------------------------------------------


def message_of(kind: int, body: bytes, payload: bytes | None = None) -> codec.Received:
    """Decode a body in an envelope that is right."""
    return codec.decode(envelope.seal(kind, _BOOT, 0, body, payload))


def _decoded(wanted: type[M], text: Any) -> M:
    """A message that the vector says is well formed."""
    kind = kind_of_type(wanted)
    message = message_of(kind, unhex(text), b"" if wanted is Rows else None).message
    assert isinstance(message, wanted)
    return message


def terms_of(given: Given) -> Terms:
    """Terms with the given bounds; the identities do not matter to the rules."""
    return Terms(
        wire_version=envelope.WIRE_VERSION,
        semantics=SEMANTICS,
        verifier=VERIFIER,
        rng_abi=RNG_ABI,
        precision=PRECISION,
        representations=tuple(given["representations"]),
        vocabulary_size=given["vocabulary_size"],
        legal_size=given["legal_size"],
        vocabulary_hash=bytes(32),
        draft_checkpoint="",
        draft_native=True,
        target_checkpoint="",
        processors="",
        requests_max=given["requests_max"],
        depth_max=given["depth_max"],
        support_max=given["support_max"],
        frame_bytes_max=limits.PAYLOAD_BYTES_MAX,
        staging_bytes=1 << 40,
        row_bytes_max=max(
            4 * given["vocabulary_size"], 8 * min(given["support_max"], given["vocabulary_size"])
        ),
    )


def categorical_of(ids: Sequence[int], counts: Sequence[int], size: int, bits: int) -> Categorical:
    """A q on its support."""
    return Categorical(size, np.array(ids, dtype=np.int32), np.array(counts, dtype=np.int64), bits)


def shown_q(q: Categorical) -> Output:
    """The ids that have mass and their counts."""
    ids = np.flatnonzero(q.counts) if q.ids is None else q.ids
    counts = q.counts[ids] if q.ids is None else q.counts
    return {"ids": ids.tolist(), "counts": counts.tolist()}


def shown_fields(message: msgspec.Struct) -> Output:
    """The fields of a message as a vector writes them."""
    return {name: _shown(getattr(message, name)) for name in message.__struct_fields__}


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bin": value}
    if isinstance(value, float):
        return {"f64": struct.pack(">d", value).hex()}
    if isinstance(value, tuple):
        return [_shown(item) for item in value]
    return shown_fields(value) if isinstance(value, msgspec.Struct) else value


# --- envelope and codec --------------------------------------------------------------------


@operation
def read_message(params: Given, given: Given) -> Output:
    header, body, payload = envelope.unseal([unhex(frame) for frame in given["frames"]])
    return {
        "kind": header.kind,
        "payload_frames": header.payload_frames,
        "body_length": len(body),
        "payload_length": 0 if payload is None else len(payload),
        "boot_id": header.boot_id,
        "link_epoch": header.link_epoch,
        "body_checksum": header.body_checksum,
    }


def _read(message: AnyMessage) -> Output:
    return {"message": type(message).__name__, "fields": shown_fields(message)}


@operation
def decode_body(params: Given, given: Given) -> Output:
    return _read(message_of(params["kind"], unhex(given["body"])).message)


@operation
def decode_message(params: Given, given: Given) -> Output:
    received = codec.decode([unhex(frame) for frame in given["frames"]])
    output = _read(received.message)
    if received.payload is not None:
        output["payload"] = bytes(received.payload)
    return output


# --- steps ---------------------------------------------------------------------------------


@operation
def check_step(params: Given, given: Given) -> Output:
    validate.check_step(terms_of(params["terms"]), _decoded(Step, given["body"]))
    return {}


@operation
def check_step_entry(params: Given, given: Given) -> Output:
    held = params["session"]
    ledger = Ledger(unhex(held["session_id"]))
    ledger.append(held["prefix"])
    ledger.begin(integer(held["generation"]))
    ledger.round = held["last_round"]
    (entry,) = _decoded(Step, given["body"]).entries
    validate.check_entry_against(ledger, entry, held["slot"], integer(held["context"]))
    return {}


# --- rows ----------------------------------------------------------------------------------


def _entry(params: Given) -> StepEntry:
    return _decoded(Step, params["step"]).entries[params["entry"]]


@operation
def decode_payload(params: Given, given: Given) -> Output:
    q = representation.decode(
        given["representation"],
        unhex(given["payload"]),
        integer(given["entries"]),
        vocabulary_size=params["vocabulary_size"],
        legal_size=params["legal_size"],
    )
    return shown_q(q)


@operation
def check_row(params: Given, given: Given) -> Output:
    (row,) = _decoded(Rows, given["body"]).rows
    validate.check_row(terms_of(params["terms"]), _entry(params), given["index"], row)
    return {}


@operation
def split_payload(params: Given, given: Given) -> Output:
    step, message = _decoded(Step, params["step"]), _decoded(Rows, given["body"])
    parts = validate.split_payload(step, message, unhex(given["payload"]))
    return {"lengths": [len(part) for part in parts]}


@operation
def read_row(params: Given, given: Given) -> Output:
    (row,) = _decoded(Rows, given["body"]).rows
    q = validate.read_row(
        terms_of(params["terms"]),
        _entry(params),
        given["index"],
        given["preceding"],
        row,
        unhex(given["payload"]),
    )
    return shown_q(q)


@operation
def check_draw(params: Given, given: Given) -> Output:
    entry, index = _entry(params), given["index"]
    ticket = KeyedTickets(unhex(params["worker_key"])).ticket(
        limits.MASS_BITS, Domain.PROPOSAL, entry.position + index, entry.round
    )
    size = params["terms"]["vocabulary_size"]
    q = categorical_of(given["ids"], given["counts"], size, limits.MASS_BITS)
    validate.check_draw(entry, index, given["token"], q, ticket)
    return {"ticket": ticket}


# --- completions and proposals -------------------------------------------------------------


@operation
def check_completion(params: Given, given: Given) -> Output:
    (completion,) = _decoded(Completion, given["body"]).entries
    checksums = [integer(value) for value in given["row_checksums"]]
    entry = _entry(params)
    validate.check_completion(entry, completion, checksums, integer(given["reply_bytes"]))
    if completion.status:
        # What the collector makes of the status is its finding.
        status = collector.known_code(  # type: ignore[attr-defined]  # its own import of it
            completion.status, Code.COMPLETION_STATUS
        )
        if status != completion.status:
            raise ProtocolError(status, "completion.status", "a code", completion.status)
    return {"status": completion.status}


@operation
def collect(params: Given, given: Given) -> Output:
    """The findings; the first that the worker has not announced itself is the refusal."""
    terms, step = terms_of(params["terms"]), _decoded(Step, params["step"])
    memory = [bytearray(terms.slot_bytes) for _ in range(terms.slots)]
    draws = [KeyedTickets(unhex(key)) for key in params["worker_keys"]]
    collecting = collector.Collector(
        terms, step, draws, SlotTable(terms.slots), lambda slot: memoryview(memory[slot])
    )
    announced = [0] * len(step.entries)
    for sent in given["messages"]:
        body = unhex(sent["body"])
        if "payload" in sent:
            received = message_of(kind_of_type(Rows), body, unhex(sent["payload"]))
            assert isinstance(received.message, Rows) and received.payload is not None
            collecting.on_rows(received.message, received.payload)
        else:
            completion = _decoded(Completion, sent["body"])
            collecting.on_completion(completion)
            if len(completion.entries) == len(announced):
                announced = [entry.status for entry in completion.entries]
    findings = [collecting.finding(index) for index in range(len(step.entries))]
    output = {"findings": [{"status": found.status, "digest": found.digest} for found in findings]}
    for found, status, proposal in zip(findings, announced, collecting.proposals, strict=True):
        if proposal.fault is not None and found.status != status:
            raise Refused(proposal.fault, output)
    return output


class Refused(ProtocolError):
    """A refusal with an output of its own."""

    def __init__(self, error: ProtocolError, output: Output) -> None:
        super().__init__(error.code, error.field, error.wanted, error.got)
        self.output = output


# --- random numbers ------------------------------------------------------------------------


@operation
def philox(params: Given, given: Given) -> Output:
    words = rng.philox4x32_10(tuple(given["counter"]), tuple(given["key"]))
    return {"words": list(words)}


@operation
def derive_key(params: Given, given: Given) -> Output:
    key = rng.derive_key(
        unhex(given["session_seed"]),
        unhex(given["session_id"]),
        integer(given["request_id"]),
        integer(given["generation"]),
        given["owner"],
    )
    return {"key": key}


def _place(given: Given) -> tuple[Any, int, int]:
    return given["domain"], integer(given["position"]), integer(given["round"])


@operation
def ticket(params: Given, given: Given) -> Output:
    tickets = KeyedTickets(unhex(params["key"]))
    return {"ticket": tickets.ticket(given["bits"], *_place(given))}


@operation
def below(params: Given, given: Given) -> Output:
    tickets, bound = _CountingTickets(unhex(params["key"])), integer(given["bound"])
    value = tickets.below(bound, *_place(given))
    return {"value": value, "draws": tickets.draws}


class _CountingTickets(KeyedTickets):
    """Counts the blocks that a draw takes."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.draws = 0

    def block(
        self, domain: int, position: int, round_: int, draw: int
    ) -> tuple[int, int, int, int]:
        self.draws += 1
        return super().block(domain, position, round_, draw)


@operation
def reduce(params: Given, given: Given) -> Output:
    return {"value": rng.lemire(integer(given["word"]), integer(given["bound"]), 64)}


# --- counts and laws -----------------------------------------------------------------------


def _floats(bits: Sequence[str], code: str) -> list[float]:
    return [struct.unpack(f">{code}", bytes.fromhex(one))[0] for one in bits]


@operation
def allocate(params: Given, given: Given) -> Output:
    weights = np.array(_floats(given["weights"], "d"))
    return {"counts": dyadic.allocate(weights, params["mass_bits"]).tolist()}


@operation
def top_k(params: Given, given: Given) -> Output:
    weights = np.array(_floats(given["weights"], "d"))
    return shown_q(dyadic.top_k(weights, given["k"], params["mass_bits"]))


@operation
def token_at(params: Given, given: Given) -> Output:
    size, bits = params["vocabulary_size"], params["mass_bits"]
    sparse = categorical_of(params["ids"], params["counts"], size, bits)
    dense = Categorical(size, None, sparse.dense(), bits)
    token = sparse.token_at(given["ticket"])
    assert token == dense.token_at(given["ticket"])
    return {"token": token}


@operation
def token_at_shards(params: Given, given: Given) -> Output:
    shards = [np.array(shard, dtype=np.int64) for shard in params["shards"]]
    return {"token": residuals.pick_sharded(shards, given["ticket"])}


@operation
def target_counts(params: Given, given: Given) -> Output:
    logits = np.array(_floats(given["logits"], "f"), dtype=np.float32)
    counts = residuals.quantise_target(logits, legal_size=params["legal_size"])
    return {"counts": counts.tolist()}


@operation
def residual(params: Given, given: Given) -> Output:
    size = params["vocabulary_size"]
    target = np.array(given["target"], dtype=np.int64)
    sparse = categorical_of(given["ids"], given["counts"], size, limits.MASS_BITS)
    dense = Categorical(size, None, sparse.dense(), limits.MASS_BITS)
    counts = residuals.residual_counts(target, sparse)
    assert counts.tolist() == residuals.residual_counts(target, dense).tolist()
    return {"counts": counts.tolist()}


# --- chains --------------------------------------------------------------------------------


class _ListedTickets:
    """The draws of a vector, in their order; every other draw is a failure of the product."""

    def __init__(self, draws: Sequence[Given]) -> None:
        self.left = list(draws)

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        raise AssertionError("a verifier draws below bounds")

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        wanted = self.left.pop(0)
        assert (domain, position, bound) == (
            wanted["domain"],
            wanted["position"],
            wanted["bound"],
        )
        return int(wanted["ticket"])


class _RecordedTickets(KeyedTickets):
    """Keyed tickets that keep what was drawn, as a vector lists it."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.drawn: list[Output] = []

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        found = super().below(bound, domain, position, round_)
        self.drawn.append(
            {"domain": int(domain), "position": position, "bound": bound, "ticket": found}
        )
        return found


def _verify(params: Given, given: Given, tickets: rng.TicketSource) -> Output:
    """The target's counts are given, so the softmax is left out: row i of the logits is i."""
    size = params["vocabulary_size"]
    rows = [
        categorical_of(row["ids"], row["counts"], size, limits.MASS_BITS) for row in given["rows"]
    ]
    laws = [
        categorical_of(law["ids"], law["counts"], size, limits.TARGET_BITS).dense()
        for law in given["targets"]
    ]
    logits = np.repeat(np.arange(len(laws), dtype=np.float32)[:, None], size, axis=1)

    def quantise(row: Any, *, legal_size: int, target_bits: int) -> Any:
        return laws[int(row[0])]

    with patch.object(verifying, "quantise_target", quantise):
        found = verifying.verify_chain(
            position=given["position"],
            round_=given["round"],
            drafts=given["drafts"],
            rows=rows,
            logits=logits,
            tickets=tickets,
            stop_tokens=frozenset(given["stop_tokens"]),
            room=given["room"],
            legal_size=params["legal_size"],
        )
    return {
        "tokens": list(found.tokens),
        "accepted": found.accepted,
        "rejected": found.rejected,
        "unverified": found.unverified,
        "last": int(found.last),
        "finish": int(found.finish),
    }


@operation
def verify(params: Given, given: Given) -> Output:
    tickets = _ListedTickets(given["draws"])
    output = _verify(params, given, tickets)
    assert not tickets.left, "every draw of the vector is taken"
    return output


@operation
def verify_keyed(params: Given, given: Given) -> Output:
    tickets = _RecordedTickets(unhex(params["key"]))
    output = _verify(params, given, tickets)
    return {**output, "draws": tickets.drawn}


# --- negotiation ---------------------------------------------------------------------------


@operation
def derive_terms(params: Given, given: Given) -> Output:
    """Both sides derive; they must come to the same end."""
    caller, called = _decoded(Hello, given["caller"]), _decoded(Hello, given["called"])
    found: list[Terms] = []
    refused: list[ProtocolError] = []
    for ours, theirs in ((caller, called), (called, caller)):
        try:
            found.append(negotiate.derive_terms(ours, theirs))
        except ProtocolError as error:
            refused.append(error)
    if refused:
        assert [error.code for error in refused] == [refused[0].code] * 2
        raise refused[0]
    assert found[0] == found[1]
    terms = found[0]
    epoch = negotiate.link_epoch(caller.nonce, called.nonce, terms.digest())
    shown = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(terms).items()
    }
    return {"terms": shown, "digest": terms.digest(), "link_epoch": epoch}


@operation
def confirm_terms(params: Given, given: Given) -> Output:
    handshake = negotiate.Handshake(_decoded(Hello, params["caller"]), calling=True)
    handshake.on_hello(_BOOT, _decoded(Hello, params["called"]))
    handshake.on_terms(_decoded(TermsAgreed, given["body"]))
    if handshake.refused is not None:
        raise handshake.refused
    assert handshake.agreed is not None
    return {"link_epoch": handshake.agreed.link_epoch}


# --- checksums and digests -----------------------------------------------------------------


def _claimed(code: Code, field: str, found: object, claimed: object) -> Output:
    if found != claimed:
        raise ProtocolError(code, field, found, claimed)
    return {}


def _placed(given: Given, position: int) -> StepEntry:
    return StepEntry(
        session_id=unhex(given["session_id"]),
        slot=given["slot"],
        generation=integer(given["generation"]),
        round=given["round"],
        position=position,
        digest=bytes(limits.DIGEST_BYTES),
        depth=limits.DEPTH_MAX,
        temperature=1.0,
        representation=1,
        support=0,
        context=0,
    )


def _sums(given: Given) -> list[int]:
    return [integer(value) for value in given["row_checksums"]]


@operation
def row_checksum(params: Given, given: Given) -> Output:
    index = len(given["preceding"])
    found = binding.row_checksum(
        _placed(given, given["position"] - index),
        index,
        given["preceding"],
        given["token"],
        given["representation"],
        given["entries"],
        unhex(given["payload"]),
    )
    return _claimed(Code.ROW_CHECKSUM, "checksum", found, integer(given["checksum"]))


@operation
def completion_checksum(params: Given, given: Given) -> Output:
    found = binding.completion_checksum(
        _placed(given, 0), given["status"], integer(given["reply_bytes"]), _sums(given)
    )
    return _claimed(Code.COMPLETION_CHECKSUM, "checksum", found, integer(given["checksum"]))


@operation
def proposal_digest(params: Given, given: Given) -> Output:
    found = binding.proposal_digest(_entry(given), given["tokens"], _sums(given))
    return _claimed(Code.PREPARED_MISMATCH, "digest", found, unhex(given["digest"]))


@operation
def decision_digest(params: Given, given: Given) -> Output:
    found = binding.decision_digest(_decoded(Decision, given["body"]))
    return _claimed(Code.RANK_SPLIT, "digest", found, unhex(given["digest"]))


@operation
def prefix_digest(params: Given, given: Given) -> Output:
    ledger = Ledger(unhex(given["session_id"]))
    found = ledger.append(given["tokens"])
    return _claimed(Code.PREFIX_MISMATCH, "digest", found, unhex(given["digest"]))


@operation
def context_version(params: Given, given: Given) -> Output:
    (temperature,) = _floats([given["temperature"]], "d")
    found = requests.context_version(
        given["target_checkpoint"], given["processors"], temperature, given["stop_tokens"]
    )
    return _claimed(Code.CONTEXT_MISMATCH, "context", found, integer(given["context"]))


@operation
def vocabulary_hash(params: Given, given: Given) -> Output:
    found = map_hash(unhex(token) for token in given["tokens"])
    return _claimed(Code.VOCABULARY_HASH_MISMATCH, "hash", found, unhex(given["hash"]))


# --- links and sessions --------------------------------------------------------------------

_PEER: Final = Peer("worker", b"caller")


class _Worker:
    """A worker and a caller that has said what the params say."""

    def __init__(self, params: Given, *, agreed: bool) -> None:
        hello, called = _decoded(Hello, params["caller"]), _decoded(Hello, params["called"])
        self._boot = unhex(params["caller_boot"])
        self._machine = WorkerMachine(
            boot_id=bytes(limits.ID_BYTES), make_hello=lambda: called, timing=LinkTiming()
        )
        self.epoch = 0
        if agreed:
            digest = negotiate.derive_terms(hello, called).digest()
            self.send(hello)
            self.send(TermsAgreed(called.nonce, digest))
            self.epoch = negotiate.link_epoch(hello.nonce, called.nonce, digest)

    def send(self, message: AnyMessage) -> list[Effect]:
        """One message of the caller; what the worker does."""
        return self.receive(codec.encode(message, self._boot, self.epoch))

    def receive(self, frames: Sequence[Buffer]) -> list[Effect]:
        """One message as it came."""
        self._machine.receive(_PEER, [memoryview(frame) for frame in frames], 0)
        return self._machine.effects()


def _rejected(effects: Sequence[Effect]) -> None:
    """Raise the code under which a message was counted, or refused in a completion."""
    answers = [_any(bytes(effect.frames[1])) for effect in effects if isinstance(effect, Send)]
    naks = [answer for answer in answers if isinstance(answer, Nak)]
    for effect in effects:
        if isinstance(effect, Count) and "code" in dict(effect.labels):
            code = Code[dict(effect.labels)["code"]]
            for nak in naks:
                assert nak.code == code
                raise ProtocolError(code, nak.field, nak.wanted, nak.got)
            raise ProtocolError(code, "message", "one that is taken", effect.name)


@operation
def receive_at_worker(params: Given, given: Given) -> Output:
    worker = _Worker(params, agreed=params["agreed"])
    _rejected(worker.receive([unhex(frame) for frame in given["frames"]]))
    return {}


@operation
def converse_with_worker(params: Given, given: Given) -> Output:
    worker = _Worker(params, agreed=True)
    for body in given["before"]:
        _rejected(worker.send(_any(unhex(body))))
    effects = worker.send(_any(unhex(given["body"])))
    answers = [bytes(effect.frames[1]) for effect in effects if isinstance(effect, Send)]
    output: Output = {"answers": answers}
    try:
        _rejected(effects)
    except ProtocolError as error:
        if any(type(_any(answer)) is Nak for answer in answers):
            raise
        raise Refused(error, output) from None
    return output


def _any(body: bytes) -> AnyMessage:
    """The message of a body whose kind is below 128."""
    return message_of(body[1], body).message


# --- requests ------------------------------------------------------------------------------


@operation
def check_generate(params: Given, given: Given) -> Output:
    identity = clients.Identity(
        target_checkpoint="",
        processors="",
        vocabulary=Vocabulary(params["vocabulary_size"], params["legal_size"], bytes(32)),
        context_tokens_max=params["context_tokens_max"],
        stop_tokens=frozenset(params["stop_tokens"]),
        requests_max=limits.REQUESTS_MAX,
    )
    clients.check_generate(_decoded(Generate, given["body"]), identity)
    return {}


@operation
def check_open(params: Given, given: Given) -> Output:
    keys: list[bytes] = []

    def made(key: bytes) -> KeyedTickets:
        keys.append(key)
        return KeyedTickets(key)

    request = requests.open_request(
        _decoded(Open, given["body"]),
        target_checkpoint=params["target_checkpoint"],
        processors=params["processors"],
        legal_size=params["legal_size"],
        context_tokens_max=params["context_tokens_max"],
        make_tickets=made,
    )
    request.tickets(rng.Owner.WORKER)
    request.tickets(rng.Owner.VERIFIER)
    return {"worker_key": keys[0], "verifier_key": keys[1]}


# --- the pair ------------------------------------------------------------------------------


@operation
def merge_findings(params: Given, given: Given) -> Output:
    leader = pair.PairLeader(_decoded(Step, params["step"]))
    leader.prepare(_decoded(Prepare, given["prepare"]).entries)
    answer = leader.on_prepared(_decoded(Prepared, given["prepared"]))
    invalidate = answer if isinstance(answer, Invalidate) else None
    if invalidate is not None:
        answer = leader.on_invalidated(Invalidated(invalidate.step, invalidate.entries))
    assert answer is not None
    output = {
        "reasons": leader.statuses,
        "invalidate": None if invalidate is None else codec.encode_body(invalidate),
        "decide": codec.encode_body(answer),
    }
    if Code.PREPARED_MISMATCH in leader.statuses:
        raise Refused(
            ProtocolError(Code.PREPARED_MISMATCH, "digest", "equal digests", "others"), output
        )
    return output


@operation
def answer_rank_zero(params: Given, given: Given) -> Output:
    follower = pair.PairFollower(_decoded(Step, params["step"]))
    findings = _decoded(Prepared, params["findings"]).entries
    answer: Message | None = None
    for body in given["messages"]:
        message = _any(unhex(body))
        answer = follower.repeated(message)
        if answer is not None:
            continue
        if isinstance(message, Prepare):
            answer = follower.on_prepare(message, findings)
        elif isinstance(message, Invalidate):
            answer = follower.on_invalidate(message)
        elif isinstance(message, Decide):
            follower.on_decide(message, findings)
        else:
            assert isinstance(message, Decision)
            answer = follower.on_decision(message, ())
    return {"answer": None if answer is None else codec.encode_body(answer)}


@operation
def check_verdict(params: Given, given: Given) -> Output:
    (verdict,) = _decoded(Verdicts, given["body"]).entries
    rules = pair.TextRules(params["room"], frozenset(params["stop_tokens"]), params["legal_size"])
    pair.check_verdict(_entry(params), params["drafts"], rules, verdict)
    return {}


@operation
def check_decision(params: Given, given: Given) -> Output:
    """Rank 1 after its verdicts: the record that it would write, then the one that came."""
    step, decision = _decoded(Step, params["step"]), _decoded(Decision, given["body"])
    own = {entry.session_id: entry for entry in _decoded(Verdicts, params["verdicts"]).entries}

    def prefix_after(index: int, tokens: Sequence[int]) -> tuple[int, bytes]:
        ledger = Ledger(step.entries[index].session_id)
        ledger.append(params["prefixes"][index])
        return ledger.length + len(tokens), ledger.digest_after(tokens)

    expected = [
        pair.recompose(
            index,
            entry,
            params["drafts"][index],
            params["reasons"][index],
            pair.TextRules(
                params["rooms"][index], frozenset(params["stop_tokens"]), params["legal_size"]
            ),
            decision.entries[index],
            own.get(entry.session_id),
            prefix_after,
        )
        for index, entry in enumerate(step.entries)
    ]
    follower = pair.PairFollower(step)
    follower.phase = pair.Phase.APPLYING
    return {"digest": follower.on_decision(decision, expected).digest}
