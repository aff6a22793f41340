"""The request endpoint of rank 0: what clients may ask and what they are told.

A client is a program on this host (``pp1 generate``, ``pp1 demo``, a serving
front end). It speaks token ids; text is its own business. Every answer carries
the client's own ``key``, so that one client may have several requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proto_v2 import limits
from proto_v2.codec import decode, encode
from proto_v2.effects import Buffer, Count, Effect, Peer, Send
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import (
    Abort,
    Failed,
    Generate,
    Info,
    Message,
    Nak,
    Open,
    Query,
    check_legal,
    refusal_fields,
    tokens_from_bytes,
    tokens_to_bytes,
)
from proto_v2.representation import Representation
from proto_v2.session import empty_digest, extend_digest
from proto_v2.vocabulary import Vocabulary

from .request import check_prompt, check_target_temperature, context_version


@dataclass(frozen=True, slots=True)
class Identity:
    """What this rank serves: the engine's identity and the request bound."""

    target_checkpoint: str
    processors: str
    vocabulary: Vocabulary
    context_tokens_max: int
    stop_tokens: frozenset[int]
    requests_max: int


def check_generate(message: Generate, identity: Identity) -> None:
    """Every rule of a request that can be checked before it waits for a lane.

    Raises:
        ProtocolError: 8xx, naming the parameter.
    """
    legal = identity.vocabulary.legal_size
    prompt = tokens_from_bytes(message.prompt, "prompt")
    check_prompt(prompt, message.tokens_max, legal, identity.context_tokens_max)
    check_target_temperature(message.temperature)
    low, high = limits.TEMPERATURE_MIN, limits.TEMPERATURE_MAX
    rules: tuple[tuple[str, bool, object, object], ...] = (
        (
            "draft_temperature",
            low <= message.draft_temperature <= high,
            f"{low}..{high}",
            message.draft_temperature,
        ),
        ("depth", message.depth <= limits.DEPTH_MAX, f"0..{limits.DEPTH_MAX}", message.depth),
        (
            "seed",
            len(message.seed) in (0, limits.SEED_BYTES),
            f"0 or {limits.SEED_BYTES} bytes",
            f"{len(message.seed)} bytes",
        ),
        (
            "representation",
            message.representation in tuple(Representation),
            [int(known) for known in Representation],
            message.representation,
        ),
        (
            "support",
            message.support <= identity.vocabulary.size,
            f"0..{identity.vocabulary.size}",
            message.support,
        ),
    )
    for field, holds, wanted, got in rules:
        if not holds:
            raise ProtocolError(Code.PARAMETER_RANGE, field, wanted, got)
    check_legal(message.stop_tokens, legal, Code.PARAMETER_RANGE, "stop_tokens")
    stops = len({*message.stop_tokens, *identity.stop_tokens})
    if stops > limits.STOP_TOKENS_MAX:
        # Together with the engine's own they travel in one Open.
        raise ProtocolError(
            Code.PARAMETER_RANGE, "stop_tokens", f"at most {limits.STOP_TOKENS_MAX} in all", stops
        )


def open_message(
    params: Generate,
    identity: Identity,
    *,
    session_id: bytes,
    request_id: int,
    slot: int,
    owner: int,
    session_seed: bytes,
) -> Open:
    """The Open that begins a checked request on both ranks."""
    prompt = tokens_from_bytes(params.prompt, "prompt")
    stop_tokens = tuple(sorted({*params.stop_tokens, *identity.stop_tokens}))
    return Open(
        session_id=session_id,
        request_id=request_id,
        slot=slot,
        owner=owner,
        session_seed=session_seed,
        prompt=tokens_to_bytes(prompt),
        temperature=params.temperature,
        stop_tokens=stop_tokens,
        tokens_max=params.tokens_max,
        context=context_version(
            identity.target_checkpoint, identity.processors, params.temperature, stop_tokens
        ),
        digest=extend_digest(empty_digest(session_id), prompt),
    )


class Clients:
    """Decodes what clients send and seals what they are sent."""

    def __init__(self, boot_id: bytes, identity: Identity, out: list[Effect]) -> None:
        self._boot_id = boot_id
        self._identity = identity
        self._out = out

    def send(self, client: Peer, message: Message) -> None:
        """Send one message to a client."""
        self._out.append(Send(client, encode(message, self._boot_id, 0)))

    def failed(self, client: Peer, key: int, error: ProtocolError) -> None:
        """Tell a client that its request ended with an error."""
        self.send(client, Failed(key, *refusal_fields(error)))

    def receive(
        self, client: Peer, frames: Sequence[Buffer], *, pair_ready: bool, worker_ready: bool
    ) -> Generate | Abort | None:
        """Answer what can be answered here; return a request or its end."""
        key: int | None = None
        try:
            message = decode(frames).message
            if isinstance(message, Query):
                self.send(client, self._info(pair_ready, worker_ready))
                return None
            if isinstance(message, Abort):
                return message
            if not isinstance(message, Generate):
                raise ProtocolError(
                    Code.KIND_UNEXPECTED, "kind", "a client message", type(message).__name__
                )
            key = message.key
            check_generate(message, self._identity)
            return message
        except ProtocolError as error:
            self._out.append(
                Count(
                    "pp1_messages_rejected_total",
                    (("code", error.code.name), ("link", client.link)),
                )
            )
            if key is None:
                self.send(client, Nak(*refusal_fields(error), step=0, session_id=b""))
            else:
                self.failed(client, key, error)
            return None

    def _info(self, pair_ready: bool, worker_ready: bool) -> Info:
        identity = self._identity
        return Info(
            target_checkpoint=identity.target_checkpoint,
            processors=identity.processors,
            vocabulary_size=identity.vocabulary.size,
            legal_size=identity.vocabulary.legal_size,
            vocabulary_hash=identity.vocabulary.map_hash,
            context_tokens_max=identity.context_tokens_max,
            stop_tokens=tuple(sorted(identity.stop_tokens)),
            requests_max=identity.requests_max,
            pair_ready=pair_ready,
            worker_ready=worker_ready,
        )
