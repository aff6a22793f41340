"""One request as a rank holds it: ledger, sampling rules, keys, room.

Both ranks build the same ``Request`` from the same ``Open`` message. The
verifier's RNG key is derived here from the session seed, which never leaves
the pair; the worker gets only its own derived key, in Reset.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Open, check_legal, tokens_from_bytes
from proto_v2.rng import KeyedTickets, Owner, TicketSource, derive_key
from proto_v2.session import Ledger

_CONTEXT_PERSON: Final = b"PP1-context-v2\0\0"
_SEEDED_PERSON: Final = b"PP1-seeded-v2\0\0\0"

RANKS: Final = 2

MakeTickets = Callable[[bytes], TicketSource]


def context_version(
    target_checkpoint: str, processors: str, temperature: float, stop_tokens: Iterable[int]
) -> int:
    """64-bit name of everything that shapes the target's law besides the prefix."""
    state = blake2b(digest_size=8, person=_CONTEXT_PERSON)
    for text in (target_checkpoint, processors):
        encoded = text.encode()
        state.update(struct.pack("<I", len(encoded)) + encoded)
    state.update(struct.pack("<d", temperature))
    for token in sorted(stop_tokens):
        state.update(struct.pack("<i", token))
    return int.from_bytes(state.digest(), "little")


def seeded_session_id(session_seed: bytes, request_id: int) -> bytes:
    """The session id of a request with an explicit seed.

    The same seed and request number give the same keys again, so a request
    that is repeated under the same conditions (engines, settings, no discarded
    proposal) draws the same text.
    """
    return blake2b(
        session_seed + struct.pack("<Q", request_id),
        digest_size=limits.ID_BYTES,
        person=_SEEDED_PERSON,
    ).digest()


@dataclass(slots=True)
class Request:
    """State of one request, equal on both ranks after every decision."""

    session_id: bytes
    request_id: int
    slot: int
    owner: int
    session_seed: bytes
    prompt_length: int
    tokens_max: int
    temperature: float
    stop_tokens: frozenset[int]
    context: int
    ledger: Ledger
    make_tickets: MakeTickets = KeyedTickets
    _keys: dict[tuple[int, Owner], TicketSource] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """How many tokens may still be committed."""
        return self.tokens_max - (self.ledger.length - self.prompt_length)

    def tickets(self, owner: Owner) -> TicketSource:
        """An owner's draws of the current generation.

        The verifier's are used; the worker's are known here to check its draws.
        """
        generation = self.ledger.generation
        found = self._keys.get((generation, owner))
        if found is None:
            if all(known != generation for known, _ in self._keys):
                self._keys.clear()
            found = self._keys[generation, owner] = self.make_tickets(self._key(owner))
        return found

    def worker_key(self) -> bytes:
        """The only key the worker ever sees: its own, for this generation."""
        return self._key(Owner.WORKER)

    def _key(self, owner: Owner) -> bytes:
        return derive_key(
            self.session_seed, self.session_id, self.request_id, self.ledger.generation, owner
        )


def open_request(
    message: Open,
    *,
    target_checkpoint: str,
    processors: str,
    legal_size: int,
    context_tokens_max: int,
    make_tickets: MakeTickets = KeyedTickets,
) -> Request:
    """Build a request from ``Open``, checking everything that rank 0 claims about it.

    Raises:
        ProtocolError: 8xx, CONTEXT_MISMATCH or PREFIX_MISMATCH.
    """
    if message.owner >= RANKS:
        raise ProtocolError(Code.PARAMETER_RANGE, "owner", f"below {RANKS}", message.owner)
    prompt = tokens_from_bytes(message.prompt, "prompt")
    check_prompt(prompt, message.tokens_max, legal_size, context_tokens_max)
    check_target_temperature(message.temperature)
    check_legal(message.stop_tokens, legal_size, Code.PARAMETER_RANGE, "stop_tokens")
    context = context_version(
        target_checkpoint, processors, message.temperature, message.stop_tokens
    )
    if context != message.context:
        raise ProtocolError(Code.CONTEXT_MISMATCH, "context", context, message.context)
    ledger = Ledger(message.session_id)
    ledger.append(prompt)
    ledger.begin(1)
    if ledger.digest != message.digest:
        raise ProtocolError(
            Code.PREFIX_MISMATCH, "digest", ledger.digest.hex(), message.digest.hex()
        )
    return Request(
        session_id=message.session_id,
        request_id=message.request_id,
        slot=message.slot,
        owner=message.owner,
        session_seed=message.session_seed,
        prompt_length=len(prompt),
        tokens_max=message.tokens_max,
        temperature=message.temperature,
        stop_tokens=frozenset(message.stop_tokens),
        context=context,
        ledger=ledger,
        make_tickets=make_tickets,
    )


def check_prompt(
    prompt: list[int], tokens_max: int, legal_size: int, context_tokens_max: int
) -> None:
    """Refuse a prompt that is empty, illegal or leaves no room in the context."""
    room = min(context_tokens_max, limits.PREFIX_TOKENS_MAX)
    if not prompt:
        raise ProtocolError(Code.PROMPT_RANGE, "prompt", "at least 1 token", 0)
    if tokens_max < 1:
        raise ProtocolError(Code.PARAMETER_RANGE, "tokens_max", "at least 1", tokens_max)
    if len(prompt) + tokens_max > room:
        raise ProtocolError(
            Code.PROMPT_RANGE,
            "prompt",
            f"prompt and tokens_max within the context of {room} tokens",
            f"{len(prompt)} + {tokens_max}",
        )
    check_legal(prompt, legal_size, Code.PROMPT_TOKEN, "prompt")


def check_target_temperature(temperature: float) -> None:
    """0.0 is greedy; otherwise the same range as a proposal temperature (NaN refused)."""
    low, high = limits.TEMPERATURE_MIN, limits.TEMPERATURE_MAX
    if not (temperature == 0.0 or low <= temperature <= high):
        raise ProtocolError(Code.PARAMETER_RANGE, "temperature", f"0 or {low}..{high}", temperature)
