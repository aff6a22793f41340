"""HELLO to frozen Terms, or a refusal that names the field.

The connecting side sends Hello; the bound side answers with its own. Both
derive the same ``Terms`` (bounds are minima, identities must be equal), send
its digest as TermsAgreed, and only then does either allocate or accept
anything. A new Hello on a connection ends what was agreed there before.

``Handshake`` serves both sides of every link; which side it is decides only
who speaks first. No environment variable and no default turns v2 on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from . import limits
from .codec import encode_body
from .dyadic import semantics_id
from .envelope import WIRE_VERSION
from .errors import REGISTRY, Code, Disposition, ProtocolError, Scope, known_code
from .messages import Hello, Refuse, Role, TermsAgreed, refusal_fields
from .representation import Representation, row_bytes
from .rng import RNG_ABI
from .vocabulary import Vocabulary

PRECISION: Final = "f32-le"
VERIFIER: Final = "standard-int48-v1"
_TERMS_PERSON: Final = b"PP1-terms-v2\0\0\0\0"
_EPOCH_PERSON: Final = b"PP1-epoch-v2\0\0\0\0"

ROLE_NAMES: Final = {int(role): role.name.lower().replace("_", " ") for role in Role}

# Which roles may stand at the two ends of one link.
_PARTNERS: Final = {
    frozenset({Role.RANK_ZERO, Role.WORKER}),
    frozenset({Role.RANK_ZERO, Role.RANK_ONE}),
}

# Identities that must be equal, in the order in which they are compared.
_IDENTITIES: Final[tuple[tuple[str, Code], ...]] = (
    ("semantics", Code.SEMANTICS_MISMATCH),
    ("verifier", Code.VERIFIER_MISMATCH),
    ("rng_abi", Code.RNG_ABI_MISMATCH),
    ("precision", Code.PRECISION_MISMATCH),
    ("vocabulary_size", Code.VOCABULARY_SIZE_MISMATCH),
    ("legal_size", Code.VOCABULARY_SIZE_MISMATCH),
    ("vocabulary_hash", Code.VOCABULARY_HASH_MISMATCH),
    ("draft_checkpoint", Code.DRAFT_MISMATCH),
    ("draft_native", Code.DRAFT_MISMATCH),
    ("target_checkpoint", Code.TARGET_MISMATCH),
    ("processors", Code.PROCESSORS_MISMATCH),
)

# Bounds: the lower of the two offers holds, and it must reach the floor.
_BOUNDS: Final[tuple[tuple[str, int], ...]] = (
    ("requests_max", 1),
    ("depth_max", 1),
    ("support_max", 1),
    ("frame_bytes_max", limits.SPARSE_ENTRY_BYTES),
    ("staging_bytes", limits.SPARSE_ENTRY_BYTES),
)


class Terms(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What both sides agreed; never changed, only replaced by a new handshake.

    ``row_bytes_max`` is the largest row that the agreed representations can
    produce; staging memory is sized from it.
    """

    wire_version: int
    semantics: str
    verifier: str
    rng_abi: str
    precision: str
    representations: tuple[int, ...]
    vocabulary_size: int
    legal_size: int
    vocabulary_hash: bytes
    draft_checkpoint: str
    draft_native: bool
    target_checkpoint: str
    processors: str
    requests_max: int
    depth_max: int
    support_max: int
    frame_bytes_max: int
    staging_bytes: int
    row_bytes_max: int

    def digest(self) -> bytes:
        """BLAKE2b-256 of the canonical encoding: equal on both sides or refused."""
        return blake2b(encode_body(self), digest_size=32, person=_TERMS_PERSON).digest()

    @property
    def slot_bytes(self) -> int:
        """Bytes of one staging slot: a whole chain of the largest rows."""
        return self.depth_max * self.row_bytes_max

    @property
    def slots(self) -> int:
        """Staging slots on each endpoint: every request, twice in flight."""
        return self.requests_max * limits.BATCHES_IN_FLIGHT


def _common_representations(ours: Hello, theirs: Hello) -> tuple[int, ...]:
    known = {int(representation) for representation in Representation}
    common = tuple(sorted(known & set(ours.representations) & set(theirs.representations)))
    if not common:
        raise ProtocolError(
            Code.NO_COMMON_REPRESENTATION,
            "representations",
            list(ours.representations),
            list(theirs.representations),
        )
    return common


def _largest_row(common: tuple[int, ...], vocabulary_size: int, support_max: int) -> int:
    sizes = []
    if Representation.DENSE_F32 in common:
        sizes.append(row_bytes(Representation.DENSE_F32, vocabulary_size, vocabulary_size))
    if Representation.SPARSE_F32 in common:
        entries = min(support_max, vocabulary_size)
        sizes.append(row_bytes(Representation.SPARSE_F32, entries, vocabulary_size))
    return max(sizes)


def _show(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def derive_terms(ours: Hello, theirs: Hello) -> Terms:
    """The terms of two hellos, the same whichever side computes them.

    Raises:
        ProtocolError: a 2xx code naming the first field that does not fit,
            with ours as wanted and theirs as got. Nothing is allocated.
    """
    if frozenset({ours.role, theirs.role}) not in _PARTNERS:
        partners = sorted(
            int(other) for pair in _PARTNERS if ours.role in pair for other in pair - {ours.role}
        )
        wanted = " or ".join(ROLE_NAMES[role] for role in partners)
        got = ROLE_NAMES.get(theirs.role, theirs.role)
        raise ProtocolError(Code.ROLE_MISMATCH, "role", wanted, got)
    low = max(ours.wire_min, theirs.wire_min)
    high = min(ours.wire_max, theirs.wire_max)
    if not low <= WIRE_VERSION <= high:
        raise ProtocolError(
            Code.WIRE_RANGE,
            "wire_version",
            f"{ours.wire_min}..{ours.wire_max}",
            f"{theirs.wire_min}..{theirs.wire_max}",
        )
    for field, code in _IDENTITIES:
        wanted, got = getattr(ours, field), getattr(theirs, field)
        if wanted != got:
            raise ProtocolError(code, field, _show(wanted), _show(got))
    if not 1 <= ours.legal_size <= ours.vocabulary_size <= limits.VOCABULARY_SIZE_MAX:
        raise ProtocolError(
            Code.VOCABULARY_SIZE_MISMATCH,
            "vocabulary_size",
            f"1 <= legal_size <= vocabulary_size <= {limits.VOCABULARY_SIZE_MAX}",
            f"{ours.legal_size}, {ours.vocabulary_size}",
        )
    common = _common_representations(ours, theirs)
    bounds: dict[str, int] = {}
    for field, floor in _BOUNDS:
        bounds[field] = min(getattr(ours, field), getattr(theirs, field))
        if bounds[field] < floor:
            raise ProtocolError(Code.BOUND_TOO_SMALL, field, f"at least {floor}", bounds[field])
    for field, ceiling in (
        ("requests_max", limits.REQUESTS_MAX),
        ("depth_max", limits.DEPTH_MAX),
        ("support_max", limits.SUPPORT_MAX),
        ("frame_bytes_max", limits.PAYLOAD_BYTES_MAX),
    ):
        bounds[field] = min(bounds[field], ceiling)
    largest = _largest_row(common, ours.vocabulary_size, bounds["support_max"])
    if bounds["frame_bytes_max"] < largest:
        raise ProtocolError(
            Code.BOUND_TOO_SMALL,
            "frame_bytes_max",
            f"at least {largest}, one row of the agreed representations",
            bounds["frame_bytes_max"],
        )
    needed = bounds["requests_max"] * limits.BATCHES_IN_FLIGHT * bounds["depth_max"] * largest
    if bounds["staging_bytes"] < needed:
        raise ProtocolError(
            Code.STAGING_TOO_SMALL,
            "staging_bytes",
            f"at least {needed} for {bounds['requests_max']} requests of depth "
            f"{bounds['depth_max']}",
            bounds["staging_bytes"],
        )
    return Terms(
        wire_version=WIRE_VERSION,
        semantics=ours.semantics,
        verifier=ours.verifier,
        rng_abi=ours.rng_abi,
        precision=ours.precision,
        representations=common,
        vocabulary_size=ours.vocabulary_size,
        legal_size=ours.legal_size,
        vocabulary_hash=ours.vocabulary_hash,
        draft_checkpoint=ours.draft_checkpoint,
        draft_native=ours.draft_native,
        target_checkpoint=ours.target_checkpoint,
        processors=ours.processors,
        row_bytes_max=largest,
        **bounds,
    )


def link_epoch(caller_nonce: bytes, callee_nonce: bytes, terms_digest: bytes) -> int:
    """The 64-bit name of one agreed link; never 0, which means "not agreed"."""
    digest = blake2b(
        caller_nonce + callee_nonce + terms_digest, digest_size=8, person=_EPOCH_PERSON
    ).digest()
    return int.from_bytes(digest, "little") or 1


@dataclass(frozen=True, slots=True)
class Agreed:
    """The outcome of a handshake."""

    terms: Terms
    link_epoch: int
    peer_boot_id: bytes


Answer = Hello | TermsAgreed | Refuse


class Handshake:
    """One side of one connection's negotiation.

    ``calling`` is the connecting side. ``hello`` is what this side offers,
    with a nonce that no earlier handshake of this process used. Feed it the
    peer's messages; it returns what to send and, once, sets ``agreed``.

    Any message may be lost. The caller repeats its hello, and a repeated hello
    gets the whole answer again; a peer that forgot an unfinished negotiation
    answers with a new nonce, which replaces what was pending. A refusal is
    final: only a new handshake, with a new nonce, can agree after it.
    """

    def __init__(self, hello: Hello, *, calling: bool) -> None:
        self.hello = hello
        self.calling = calling
        self.agreed: Agreed | None = None
        self.refused: ProtocolError | None = None
        self._pending: Agreed | None = None
        self._peer_nonce = b""

    @property
    def over(self) -> bool:
        """Whether it has ended, in agreement or refusal; nothing changes the outcome."""
        return self.agreed is not None or self.refused is not None

    def opening(self) -> Hello | None:
        """What to send when the connection stands."""
        return self.hello if self.calling else None

    def on_hello(self, boot_id: bytes, theirs: Hello) -> list[Answer]:
        """Take the peer's hello."""
        if self.refused is not None:
            return [] if self.calling else [Refuse(*refusal_fields(self.refused))]
        if self.agreed is not None:
            if self.calling or theirs.nonce != self._peer_nonce:
                return []
            # The caller still asks, so it has not seen our agreement.
            return [TermsAgreed(self._peer_nonce, self.agreed.terms.digest())]
        try:
            terms = derive_terms(self.hello, theirs)
        except ProtocolError as error:
            return [self._refuse(error)]
        digest = terms.digest()
        nonces = (self.hello.nonce, theirs.nonce)
        caller, callee = nonces if self.calling else nonces[::-1]
        self._pending = Agreed(terms, link_epoch(caller, callee, digest), boot_id)
        self._peer_nonce = theirs.nonce
        if self.calling:
            return [TermsAgreed(theirs.nonce, digest)]
        return [self.hello]

    def on_terms(self, theirs: TermsAgreed) -> list[Answer]:
        """Take the peer's digest; on agreement ``agreed`` is set."""
        if self._pending is None or self.agreed is not None:
            return []
        digest = self._pending.terms.digest()
        if theirs.nonce != self.hello.nonce:
            return []  # an answer to an earlier hello of ours
        if theirs.digest != digest:
            return [
                self._refuse(
                    ProtocolError(
                        Code.TERMS_DIGEST_MISMATCH, "digest", digest.hex(), theirs.digest.hex()
                    )
                )
            ]
        self.agreed = self._pending
        return [] if self.calling else [TermsAgreed(self._peer_nonce, digest)]

    def on_refuse(self, theirs: Refuse) -> None:
        """Take the peer's refusal; wanted and got are from the peer's side."""
        self._pending = None
        code = known_code(theirs.code, Code.TERMS_DIGEST_MISMATCH)
        row = REGISTRY[code]
        ends_links = row.scope is Scope.LINK and row.disposition is Disposition.REFUSE
        if not ends_links and code is not Code.WIRE_VERSION:
            code = Code.TERMS_DIGEST_MISMATCH  # a peer cannot make us end with any code it likes
        self.refused = ProtocolError(
            code,
            theirs.field,
            f"{theirs.wanted} (the peer)",
            theirs.got,
        )

    def _refuse(self, error: ProtocolError) -> Refuse:
        self._pending = None
        self.refused = error
        return Refuse(*refusal_fields(error))


def build_hello(
    role: Role,
    nonce: bytes,
    vocabulary: Vocabulary,
    *,
    draft_checkpoint: str,
    draft_native: bool,
    target_checkpoint: str,
    processors: str,
    representations: Sequence[Representation] = tuple(Representation),
    requests_max: int = limits.REQUESTS_MAX,
    depth_max: int = limits.DEPTH_MAX,
    support_max: int = limits.SUPPORT_MAX,
    staging_bytes: int | None = None,
    mass_bits: int = limits.MASS_BITS,
) -> Hello:
    """This implementation's offer. ``staging_bytes`` None offers what its own bounds need."""
    wire = tuple(sorted(int(representation) for representation in representations))
    support_max = min(support_max, vocabulary.size)
    row = _largest_row(wire, vocabulary.size, support_max) if wire else 0
    needed = requests_max * limits.BATCHES_IN_FLIGHT * depth_max * row
    return Hello(
        role=int(role),
        wire_min=WIRE_VERSION,
        wire_max=WIRE_VERSION,
        nonce=nonce,
        semantics=semantics_id(mass_bits),
        verifier=VERIFIER,
        rng_abi=RNG_ABI,
        representations=wire,
        vocabulary_size=vocabulary.size,
        legal_size=vocabulary.legal_size,
        vocabulary_hash=vocabulary.map_hash,
        draft_checkpoint=draft_checkpoint,
        draft_native=draft_native,
        target_checkpoint=target_checkpoint,
        processors=processors,
        precision=PRECISION,
        requests_max=requests_max,
        depth_max=depth_max,
        support_max=support_max,
        frame_bytes_max=max(row, limits.SPARSE_ENTRY_BYTES),
        staging_bytes=needed if staging_bytes is None else staging_bytes,
    )
