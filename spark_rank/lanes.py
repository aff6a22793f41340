"""The requests of rank 0: those that wait, and the few that have a lane.

A lane is a place in the batch: its number is the request's slot, and decides
which rank owns it. Who is admitted, and when, depends on the order of arrival
alone.
"""

from collections import deque
from collections.abc import Callable

from proto_v2 import limits
from proto_v2.effects import Count, Effect, Peer
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Generate

from .active import Active
from .clients import Clients, Identity, open_message
from .request import RANKS, MakeTickets, open_request, seeded_session_id

# Whether a request, by its client and key, is concerned.
Concerns = Callable[[Peer, int], bool]


class Lanes:
    """Queues, admits and cancels. ``entropy(n)`` gives n random bytes."""

    def __init__(
        self,
        clients: Clients,
        identity: Identity,
        entropy: Callable[[int], bytes],
        make_tickets: MakeTickets,
        out: list[Effect],
    ) -> None:
        self._clients = clients
        self._identity = identity
        self._entropy = entropy
        self._make_tickets = make_tickets
        self._out = out
        self._waiting: deque[tuple[Peer, Generate]] = deque()
        self._lanes: list[Active | None] = [None] * limits.REQUESTS_MAX

    @property
    def actives(self) -> list[Active]:
        """The requests in lanes, by slot."""
        return [active for active in self._lanes if active is not None]

    def by_session(self, session_id: bytes) -> Active | None:
        """The request of a session, if it has a lane."""
        for active in self.actives:
            if active.request.session_id == session_id:
                return active
        return None

    def queue(self, source: Peer, message: Generate, *, pair_ready: bool) -> None:
        """Let a request wait, or tell its client why not."""
        known = self._known(source, message.key)
        error: ProtocolError | None = None
        if known == message:
            self._out.append(Count("pp1_requests_repeated_total"))
            return
        if known is not None:
            error = ProtocolError(
                Code.PARAMETER_RANGE, "key", "one that no other request has", message.key
            )
        elif len(self._waiting) >= limits.REQUESTS_WAITING_MAX:
            error = ProtocolError(
                Code.REQUEST_LIMIT, "requests", limits.REQUESTS_WAITING_MAX, "one more"
            )
        elif not pair_ready:
            error = ProtocolError(Code.RANK_LOST, "pair", "an agreed rank 1", "none")
        if error is not None:
            self._clients.failed(source, message.key, error)
            return
        self._waiting.append((source, message))

    def _known(self, client: Peer, key: int) -> Generate | None:
        """The request that a client's key stands for while it runs or waits."""
        running = [(active.client, active.params) for active in self.actives]
        for owner, params in (*running, *self._waiting):
            if owner == client and params.key == key:
                return params
        return None

    def cancel(self, concerns: Concerns) -> None:
        """Cancel requests; those in a lane end with the next decision or before the next round."""
        self.refuse_waiting(Code.CANCELLED, concerns)
        for active in self.actives:
            if concerns(active.client, active.params.key):
                active.cancelled = Code.CANCELLED

    def refuse_waiting(self, code: Code, concerns: Concerns) -> None:
        """End requests that have no lane yet."""
        waiting, self._waiting = self._waiting, deque()
        for client, params in waiting:
            if concerns(client, params.key):
                error = ProtocolError(code, "request", "a request that begins", code.name)
                self._clients.failed(client, params.key, error)
            else:
                self._waiting.append((client, params))

    def admit(self, lanes: int, held_until_ns: int) -> list[Active]:
        """Give waiting requests the free ones among the first ``lanes`` lanes."""
        admitted = []
        for slot in range(lanes):
            if self._lanes[slot] is None and self._waiting:
                active = self._open(*self._waiting.popleft(), slot, held_until_ns)
                self._lanes[slot] = active
                admitted.append(active)
        return admitted

    def free(self, active: Active) -> None:
        """The request is over."""
        self._lanes[active.request.slot] = None

    def _open(self, client: Peer, params: Generate, slot: int, held_until_ns: int) -> Active:
        message = open_message(
            params,
            self._identity,
            session_id=self._session_id(params),
            request_id=params.key,
            slot=slot,
            owner=slot % RANKS,
            session_seed=params.seed or self._entropy(limits.SEED_BYTES),
        )
        request = open_request(
            message,
            target_checkpoint=self._identity.target_checkpoint,
            processors=self._identity.processors,
            legal_size=self._identity.vocabulary.legal_size,
            context_tokens_max=self._identity.context_tokens_max,
            make_tickets=self._make_tickets,
        )
        return Active(request, client, params, opening=message, held_until_ns=held_until_ns)

    def _session_id(self, params: Generate) -> bytes:
        """Random, or with a seed the same for the same seed and key, unless that one is live."""
        if params.seed:
            named = seeded_session_id(params.seed, params.key)
            if self.by_session(named) is None:
                return named
        return self._entropy(limits.ID_BYTES)
