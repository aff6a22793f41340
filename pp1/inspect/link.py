"""What the earlier messages of one connection say about the later ones.

The rules of Step, Rows and Completion need the agreed terms, the step that was
asked, the rows that came before and the worker's key. All of it travels on the
same connection, so a recording that has its beginning can be judged as the
ranks judge it. What is not known is not judged: a bound is then the contract's
own, and a checksum or a draw that cannot be made again is passed over.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from proto_v2 import limits
from proto_v2.dyadic import SEMANTICS
from proto_v2.envelope import WIRE_VERSION
from proto_v2.errors import ProtocolError
from proto_v2.messages import AnyMessage, Hello, Open, Reset, Role, Row, Rows, Step, StepEntry
from proto_v2.negotiate import PRECISION, ROLE_NAMES, VERIFIER, Terms, derive_terms
from proto_v2.representation import NAMES, Representation
from proto_v2.rng import RNG_ABI, KeyedTickets, Owner, derive_key

# Steps remembered, so that late and repeated rows find theirs.
_STEPS_MAX: Final = 16

Key = TypeVar("Key")
Kept = TypeVar("Kept")


@dataclass(slots=True)
class Chain:
    """The rows of one step entry so far."""

    entry: StepEntry
    tokens: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    reply_bytes: int = 0


@dataclass(slots=True)
class Asked:
    """A step and its chains. ``known`` is false where the rows had to stand in for it."""

    step: Step
    known: bool
    chains: list[Chain]


def assumed_terms(**changes: int) -> Terms:
    """Terms that allow whatever the contract allows, but for ``changes``."""
    return msgspec.structs.replace(
        Terms(
            wire_version=WIRE_VERSION,
            semantics=SEMANTICS,
            verifier=VERIFIER,
            rng_abi=RNG_ABI,
            precision=PRECISION,
            representations=tuple(int(number) for number in NAMES),
            vocabulary_size=limits.VOCABULARY_SIZE_MAX,
            legal_size=limits.VOCABULARY_SIZE_MAX,
            vocabulary_hash=bytes(limits.VOCABULARY_HASH_BYTES),
            draft_checkpoint="",
            draft_native=False,
            target_checkpoint="",
            processors="",
            requests_max=limits.REQUESTS_MAX,
            depth_max=limits.DEPTH_MAX,
            support_max=limits.SUPPORT_MAX,
            frame_bytes_max=limits.PAYLOAD_BYTES_MAX,
            staging_bytes=limits.STAGING_BYTES_DEFAULT,
            row_bytes_max=limits.PAYLOAD_BYTES_MAX,
        ),
        **changes,
    )


class Link:
    """One connection's memory; ``given`` are terms that the user names, which then hold."""

    def __init__(self, given: dict[str, int] | None = None) -> None:
        self._given = given or {}
        self._agreed: Terms | None = None
        self._hellos: dict[object, Hello] = {}
        self._steps: OrderedDict[int, Asked] = OrderedDict()
        self._seeds: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        self._keys: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()

    @property
    def terms(self) -> Terms:
        """The terms that hold: named ones, agreed ones, else the contract's bounds."""
        if self._agreed is None:
            return assumed_terms(**self._given)
        return msgspec.structs.replace(self._agreed, **self._given)

    def terms_for(self, row: Row) -> Terms:
        """The terms for one row; the width of a dense row stands in for one that nobody named."""
        if self._agreed is not None or "vocabulary_size" in self._given:
            return self.terms
        if row.representation != Representation.DENSE_F32:
            return self.terms
        legal = self._given.get("legal_size", row.entries)
        return msgspec.structs.replace(
            self.terms, vocabulary_size=row.entries, legal_size=min(legal, row.entries)
        )

    def role(self, sender: object) -> str | None:
        """Who the sender said that it is."""
        hello = self._hellos.get(sender)
        return None if hello is None else ROLE_NAMES.get(hello.role)

    def remember(self, sender: object, message: AnyMessage) -> None:
        """Take a well-formed message, after it has been judged."""
        if isinstance(message, Hello):
            self._hellos[sender] = message
            self._negotiate()
        elif isinstance(message, Step):
            self._ask(message)
        elif isinstance(message, Reset):
            _keep(self._keys, (message.session_id, message.generation), message.key)
        elif isinstance(message, Open):
            _keep(self._seeds, message.session_id, (message.session_seed, message.request_id))

    def _negotiate(self) -> None:
        hellos = sorted(self._hellos.values(), key=lambda hello: hello.role != Role.RANK_ZERO)
        self._agreed = None
        if len(hellos) == 2:
            try:
                self._agreed = derive_terms(*hellos)
            except ProtocolError:
                self._agreed = None  # the peers refuse each other, in their own words

    def _ask(self, step: Step) -> None:
        earlier = self._steps.get(step.step)
        if earlier is None or earlier.step != step:
            chains = [Chain(entry) for entry in step.entries]
            _keep(self._steps, step.step, Asked(step, True, chains), _STEPS_MAX)

    def step(self, number: int) -> Asked | None:
        """The step of a number, if it was seen."""
        return self._steps.get(number)

    def asked(self, rows: Rows) -> Asked:
        """The step that rows answer; one made from the rows themselves where none was seen."""
        seen = self.step(rows.step)
        if seen is not None:
            return seen
        first: dict[int, Row] = {}
        for row in rows.rows:
            first.setdefault(row.entry, row)
        count = max(first, default=-1) + 1
        entries = tuple(self._stand_in(first.get(index)) for index in range(count))
        chains = [Chain(entry) for entry in entries]
        return Asked(Step(rows.step, entries), False, chains)

    def _stand_in(self, row: Row | None) -> StepEntry:
        known = row is not None and row.representation in NAMES
        return StepEntry(
            session_id=bytes(limits.ID_BYTES),
            slot=0,
            generation=1,
            round=1,
            position=0 if row is None else row.position,
            digest=bytes(limits.DIGEST_BYTES),
            depth=self.terms.depth_max,
            temperature=1.0,
            representation=row.representation
            if row is not None and known
            else int(Representation.SPARSE_F32),
            support=0,
            context=0,
        )

    def draws(self, entry: StepEntry) -> KeyedTickets | None:
        """The worker's tickets for an entry, where its key or seed was seen."""
        key = self._keys.get((entry.session_id, entry.generation))
        if key is None:
            seed = self._seeds.get(entry.session_id)
            if seed is None:
                return None
            key = derive_key(seed[0], entry.session_id, seed[1], entry.generation, Owner.WORKER)
        return KeyedTickets(key)


def _keep(
    table: "OrderedDict[Key, Kept]", key: Key, value: Kept, most: int = limits.SESSIONS_MAX
) -> None:
    """Put a value in; the oldest make room."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > most:
        table.popitem(last=False)
