"""Well-formed values of the contract, and ways to bend them, for the tests of ``proto_v2``.

``values_of`` and ``bounds_of`` are derived from the message types themselves,
so a new field or bound is tested without anybody remembering to.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xxhash
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from msgspec import inspect

from proto_v2 import codec, envelope, limits
from proto_v2.binding import completion_checksum, row_checksum
from proto_v2.codec import Received
from proto_v2.dyadic import Categorical
from proto_v2.messages import (
    KINDS,
    AnyMessage,
    CompletionEntry,
    Hello,
    Message,
    Role,
    Row,
    Step,
    StepEntry,
)
from proto_v2.negotiate import Terms, build_hello, derive_terms
from proto_v2.representation import Representation, encode
from proto_v2.rng import Domain
from proto_v2.vocabulary import Vocabulary, map_hash

BOOT = bytes(range(16))
SESSION = bytes(range(100, 116))
EPOCH = 0x0123_4567_89AB_CDEF
MASS = limits.MASS
TOKENS = [b"token %d" % index for index in range(10)]
VOCABULARY = Vocabulary(size=12, legal_size=10, map_hash=map_hash(TOKENS))
SUPPORT_MAX = 6

deterministic = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# --- negotiation ---------------------------------------------------------------------------


def hello(role: Role = Role.RANK_ZERO, /, **changes: Any) -> Hello:
    """An offer that agrees with every other offer of this function of a partner role."""
    offer = build_hello(
        role,
        bytes([role]) * 16,
        VOCABULARY,
        draft_checkpoint="draft-a",
        draft_native=True,
        target_checkpoint="target-a",
        processors="policy-a",
        support_max=SUPPORT_MAX,
    )
    return msgspec.structs.replace(offer, **changes)


def terms(**changes: Any) -> Terms:
    """The terms of two such offers."""
    return msgspec.structs.replace(
        derive_terms(hello(Role.RANK_ZERO), hello(Role.WORKER)), **changes
    )


# --- a step and its proposal -----------------------------------------------------------------


def step_entry(**changes: Any) -> StepEntry:
    """A depth-5 dense entry at the end of a prefix of seven tokens."""
    entry = StepEntry(
        session_id=SESSION,
        slot=0,
        generation=3,
        round=4,
        position=7,
        digest=b"d" * limits.DIGEST_BYTES,
        depth=5,
        temperature=1.0,
        representation=int(Representation.DENSE_F32),
        support=0,
        context=99,
    )
    return msgspec.structs.replace(entry, **changes)


def sparse_entry(**changes: Any) -> StepEntry:
    """The same entry with sparse rows of at most four ids."""
    return step_entry(**{"representation": int(Representation.SPARSE_F32), "support": 4, **changes})


def categorical(entry: StepEntry, index: int) -> Categorical:
    """A q for one row: different for every row, with mass on ``drawn(index)``."""
    ids = np.array([1, 2 + index, 9], dtype=np.int32)
    counts = np.array([1 << 22, MASS - (1 << 22) - 1, 1], dtype=np.int64)
    if entry.representation == Representation.SPARSE_F32:
        return Categorical(VOCABULARY.size, ids, counts)
    dense = np.zeros(VOCABULARY.size, dtype=np.int64)
    dense[ids] = counts
    return Categorical(VOCABULARY.size, None, dense)


def drawn(index: int) -> int:
    """The token of row ``index`` of every sample chain."""
    return 2 + index


class SampleTickets:
    """Tickets that draw ``drawn(index)`` from ``categorical(entry, index)``, for every index."""

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        assert (bits, domain) == (limits.MASS_BITS, Domain.PROPOSAL)
        return 1 << 23

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        raise AssertionError("a proposal is drawn by ticket")


DRAWS = [SampleTickets()] * limits.REQUESTS_MAX


def preceding(index: int) -> tuple[int, ...]:
    """The tokens before row ``index``."""
    return tuple(drawn(earlier) for earlier in range(index))


def row(entry: StepEntry, index: int, payload: bytes, *, place: int = 0, **changes: Any) -> Row:
    """The descriptor of one row, sealed over ``payload`` after the changes."""
    sparse = entry.representation == Representation.SPARSE_F32
    values: dict[str, Any] = {
        "entry": place,
        "position": entry.position + index,
        "token": drawn(index),
        "representation": entry.representation,
        "entries": len(payload) // 8 if sparse else VOCABULARY.size,
        "byte_length": len(payload),
        **changes,
    }
    values.setdefault(
        "checksum",
        row_checksum(
            entry,
            index,
            preceding(index),
            values["token"],
            values["representation"],
            values["entries"],
            payload,
        ),
    )
    return Row(**values)


def chain(entry: StepEntry, *, place: int = 0) -> tuple[list[Row], list[bytes]]:
    """Every row of a sample chain and their payloads."""
    representation = Representation(entry.representation)
    payloads = [encode(categorical(entry, index), representation) for index in range(entry.depth)]
    rows = [row(entry, index, payloads[index], place=place) for index in range(entry.depth)]
    return rows, payloads


def completion(
    entry: StepEntry, checksums: list[int], reply_bytes: int, *, status: int = 0, **changes: Any
) -> CompletionEntry:
    """The completion of these rows, sealed before the changes."""
    return msgspec.structs.replace(
        CompletionEntry(
            session_id=entry.session_id,
            generation=entry.generation,
            round=entry.round,
            status=status,
            row_count=len(checksums),
            reply_bytes=reply_bytes,
            checksum=completion_checksum(entry, status, reply_bytes, checksums),
        ),
        **changes,
    )


def step(*entries: StepEntry) -> Step:
    """A step over these entries."""
    return Step(1, entries)


# --- frames --------------------------------------------------------------------------------


def seal_body(kind: int, body: bytes, payload: bytes | None = None) -> tuple[Any, ...]:
    """Frames whose lengths and checksums are right, whatever the body is."""
    return envelope.seal(kind, BOOT, EPOCH, body, payload)


def reseal(header: bytes | bytearray) -> bytes:
    """The header with its own checksum made right again."""
    head = bytes(header[:56])
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")


def decode_body(kind: int, body: bytes, payload: bytes | None = None) -> Received:
    """Decode a body inside an envelope that is right."""
    return codec.decode(seal_body(kind, body, payload))


def plain(value: Any) -> Any:
    """A struct as the nested lists that its encoding is, tag first."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = [plain(getattr(value, name)) for name in value.__struct_fields__]
        return fields if tag is None else [tag, *fields]
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


# --- values and bounds from the types --------------------------------------------------------


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Every value that the wire allows for a message type or a field type."""
    return _values(inspect.type_info(kind))


def _values(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _values(field.type) for field in fields})
        case inspect.IntType(ge=low, le=high):
            return st.integers(low, (1 << 64) - 1 if high is None else high)
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.StrType(max_length=most):
            return st.text(max_size=min(most or 20, 20))
        case inspect.BytesType(min_length=least, max_length=most):
            return st.binary(min_size=least or 0, max_size=min(most or 40, max(least or 0, 40)))
        case inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            cap = max(least or 0, min(most or 4, 4))
            return st.lists(_values(item), min_size=least or 0, max_size=cap).map(tuple)
    raise AssertionError(f"no strategy for {info}")


def simplest(info: inspect.Type) -> Any:
    """The smallest value of a type, as plain data ready for MessagePack."""
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            tag = cls.__struct_config__.tag
            values = [simplest(field.type) for field in fields]
            return values if tag is None else [tag, *values]
        case inspect.IntType(ge=low):
            return max(low or 0, 0)
        case inspect.FloatType():
            return 1.0
        case inspect.BoolType():
            return False
        case inspect.StrType():
            return ""
        case inspect.BytesType(min_length=least):
            return bytes(least or 0)
        case inspect.VarTupleType(item_type=item, min_length=least):
            return [simplest(item) for _ in range(least or 0)]
    raise AssertionError(f"no value for {info}")


_DECODER = msgspec.msgpack.Decoder(AnyMessage)
SAMPLES: dict[int, AnyMessage] = {
    kind: _DECODER.decode(msgspec.msgpack.encode(simplest(inspect.type_info(message))))
    for kind, message in KINDS.items()
}


@dataclass(frozen=True)
class Bound:
    """One bound of one field: a body at the bound, and one just beyond it."""

    name: str
    kind: int
    inside: Any
    beyond: Any

    def __str__(self) -> str:
        return self.name


def bounds_of(message: type[Message]) -> Iterator[Bound]:
    """Every bound of every field of a message, also inside its records."""
    info = inspect.type_info(message)
    assert isinstance(info, inspect.StructType)
    kind = int(message.__struct_config__.tag)  # type: ignore[arg-type]
    base = simplest(info)
    for index, field in enumerate(info.fields, start=1):
        for name, inside, beyond in _bounds(field.name, field.type):
            yield Bound(
                f"{message.__name__}.{name}",
                kind,
                [*base[:index], inside, *base[index + 1 :]],
                [*base[:index], beyond, *base[index + 1 :]],
            )


def _bounds(name: str, info: inspect.Type) -> Iterator[tuple[str, Any, Any]]:
    match info:
        case inspect.IntType(ge=low, le=high):
            assert low is not None, f"{name} has no lower bound"
            yield f"{name}>={low}", low, low - 1
            if high is not None:
                yield f"{name}<={high}", high, high + 1
        case inspect.StrType(max_length=most):
            assert most is not None, f"{name} has no upper length"
            yield f"len({name})<={most}", "é" * most, "é" * (most + 1)
        case inspect.BytesType(min_length=least, max_length=most):
            assert most is not None, f"{name} has no upper length"
            yield f"len({name})<={most}", bytes(most), bytes(most + 1)
            if least:
                yield f"len({name})>={least}", bytes(least), bytes(least - 1)
        case inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            assert most is not None, f"{name} has no upper length"
            one = simplest(item)
            yield f"len({name})<={most}", [one] * most, [one] * (most + 1)
            if least:
                yield f"len({name})>={least}", [one] * least, [one] * (least - 1)
            rest = [one] * ((least or 1) - 1)
            for inner, inside, beyond in _bounds(f"{name}[0]", item):
                yield inner, [inside, *rest], [beyond, *rest]
        case inspect.StructType(fields=fields):
            base = simplest(info)
            for index, field in enumerate(fields):
                for inner, inside, beyond in _bounds(f"{name}.{field.name}", field.type):
                    yield (
                        inner,
                        [*base[:index], inside, *base[index + 1 :]],
                        [*base[:index], beyond, *base[index + 1 :]],
                    )
        case inspect.BoolType():
            yield f"{name} is a bool", True, 1
        case inspect.FloatType():
            yield f"{name} is a number", 0.5, "0.5"
