"""A rank of the pair as a process.

Rank 1 listens for rank 0. Rank 0 connects to rank 1 and to the worker, and
listens for clients. Both load the same target engine.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from pp1.models.checkpoints import draft_checkpoint, draft_native
from proto_v2.messages import Hello, Role
from proto_v2.peerlink import LinkTiming
from transport.clock import monotonic_ns
from transport.config import command, service_options
from transport.link import Link
from transport.security import Keys, must_be_used
from transport.service import (
    Offer,
    SlotStaging,
    engine_options,
    engine_settings,
    frame_bytes,
    fresh_id,
    hello_maker,
    offer_options,
    security_options,
    serve,
    take_keys,
    take_offer,
    take_timing,
    timing_options,
)
from transport.zmq_link import ClientLink, ServerLink

from .breaker import Breaker
from .clients import Identity
from .engine import TargetEngine, TargetIdentity
from .engines import create
from .follower import RankOneMachine
from .jobs import EngineRunner
from .machine import PAIR_PEER, WORKER_PEER, RankZeroMachine, Timing

REQUESTS_LINK: Final = "requests"
_NS_PER_MS: Final = 1_000_000


def _hello_maker(
    role: Role, identity: TargetIdentity, offer: Offer, draft: tuple[str, bool]
) -> Callable[[], Hello]:
    return hello_maker(
        role,
        identity.vocabulary,
        offer,
        draft=draft,
        target_checkpoint=identity.checkpoint,
        processors=identity.processors,
    )


def expected_draft(
    engine: str, settings: dict[str, int | str], checkpoint: str | None, native: bool
) -> tuple[str, bool]:
    """Identity of the drafter that this pair is set up for."""
    if checkpoint is not None:
        return checkpoint, native
    return draft_checkpoint(engine, settings), draft_native(engine)


@command("rank", help="Run one rank of the pair that verifies: --rank 0 leads, --rank 1 follows.")
@click.option("--rank", type=click.IntRange(0, 1), required=True, help="Which rank this is.")
@click.option(
    "--pair",
    default="tcp://127.0.0.1:5702",
    show_default=True,
    help="Rank 1 listens here, rank 0 connects here.",
)
@click.option(
    "--worker",
    default="tcp://127.0.0.1:5701",
    show_default=True,
    help="The worker's address (rank 0).",
)
@click.option(
    "--requests",
    default="tcp://127.0.0.1:5700",
    show_default=True,
    help="Address for clients (rank 0).",
)
@click.option(
    "--draft-engine",
    default="smollm2",
    show_default=True,
    help="The drafter expected at the worker, by name.",
)
@click.option(
    "--draft-option", "draft_option", multiple=True, help="KEY=VALUE of that drafter; repeatable."
)
@click.option(
    "--draft-checkpoint", default=None, help="The drafter expected, by its stated identity."
)
@click.option("--draft-native", is_flag=True, help="With --draft-checkpoint: a native drafter.")
@click.option(
    "--step-ms", type=click.IntRange(1), default=10_000, help="For a whole proposal (rank 0)."
)
@click.option(
    "--pair-ms", type=click.IntRange(1), default=20_000, help="For rank 1 to answer (rank 0)."
)
@click.option(
    "--target-ms", type=click.IntRange(1), default=120_000, help="For one evaluation (rank 0)."
)
@click.option(
    "--connect-ms",
    type=click.IntRange(1),
    default=60_000,
    help="For the first agreement with rank 1 (rank 0).",
)
@click.option(
    "--breaker-failures",
    type=click.IntRange(1),
    default=3,
    help="Failed rounds in a row that open the circuit breaker (rank 0).",
)
@click.option(
    "--breaker-rounds",
    type=click.IntRange(1),
    default=16,
    help="Target-only rounds before a probe (rank 0).",
)
@click.option(
    "--pair-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Rank 1's public certificate: talk CURVE to it (rank 0).",
)
@click.option(
    "--worker-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The worker's public certificate: talk CURVE to it (rank 0).",
)
@engine_options
@security_options
@offer_options
@timing_options
@service_options
def main(rank: int, **options: Any) -> int:
    """Load the engine, connect and listen, serve."""
    offer, link_timing, keys = take_offer(options), take_timing(options), take_keys(options)
    draft = expected_draft(
        options["draft_engine"],
        engine_settings("draft-option", options["draft_option"]),
        options["draft_checkpoint"],
        options["draft_native"],
    )
    engine = create(options["engine"], **engine_settings("engine-option", options["engine_option"]))
    if rank == 1:
        return _serve_one(engine, offer, link_timing, draft, keys, options)
    return _serve_zero(engine, offer, link_timing, draft, keys, options)


def _serve_one(
    engine: TargetEngine,
    offer: Offer,
    timing: LinkTiming,
    draft: tuple[str, bool],
    keys: Keys,
    options: dict[str, Any],
) -> int:
    must_be_used(keys, "allow-key")
    identity = engine.identity()
    link = ServerLink(
        PAIR_PEER.link,
        options["pair"],
        max_frame_bytes=frame_bytes(identity.vocabulary.size),
        allow_remote=options["allow_remote"],
        keys=keys.listen(),
    )
    machine = RankOneMachine(
        boot_id=fresh_id(),
        make_hello=_hello_maker(Role.RANK_ONE, identity, offer, draft),
        make_staging=SlotStaging(),
        context_tokens_max=identity.context_tokens_max,
        timing=timing,
    )
    return serve("rank-1", machine, [link], EngineRunner(engine).run, options)


def _serve_zero(
    engine: TargetEngine,
    offer: Offer,
    timing: LinkTiming,
    draft: tuple[str, bool],
    keys: Keys,
    options: dict[str, Any],
) -> int:
    identity = engine.identity()
    size = frame_bytes(identity.vocabulary.size)
    trusted = {
        name: keys.connect(f"{name}-key", options[f"{name}_key"])
        for name in (PAIR_PEER.link, WORKER_PEER.link)
    }
    must_be_used(keys, "allow-key, pair-key or worker-key", *trusted.values())
    links: list[Link] = [
        ServerLink(
            REQUESTS_LINK,
            options["requests"],
            max_frame_bytes=size,
            allow_remote=options["allow_remote"],
            keys=keys.listen(),
        ),
        *(
            ClientLink(name, options[name], max_frame_bytes=size, keys=key)
            for name, key in trusted.items()
        ),
    ]
    machine = RankZeroMachine(
        boot_id=fresh_id(),
        make_hello=_hello_maker(Role.RANK_ZERO, identity, offer, draft),
        make_staging=SlotStaging(),
        entropy=os.urandom,
        identity=Identity(
            target_checkpoint=identity.checkpoint,
            processors=identity.processors,
            vocabulary=identity.vocabulary,
            context_tokens_max=identity.context_tokens_max,
            stop_tokens=identity.stop_tokens,
            requests_max=offer.requests_max,
        ),
        timing=Timing(
            link=timing,
            step_ns=options["step_ms"] * _NS_PER_MS,
            pair_ns=options["pair_ms"] * _NS_PER_MS,
            target_ns=options["target_ms"] * _NS_PER_MS,
            pair_connect_ns=options["connect_ms"] * _NS_PER_MS,
        ),
        start_ns=monotonic_ns(),
        breaker=Breaker(options["breaker_failures"], options["breaker_rounds"]),
    )
    return serve("rank-0", machine, links, EngineRunner(engine).run, options)
