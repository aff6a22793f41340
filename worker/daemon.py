"""The worker leader as a process: one listening link, one engine thread."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import click

from proto_v2.messages import Hello, Role
from proto_v2.negotiate import build_hello
from transport.config import command, service_options
from transport.service import (
    Offer,
    engine_settings,
    frame_bytes,
    fresh_id,
    offer_options,
    serve,
    take_offer,
    take_timing,
    timing_options,
)
from transport.zmq_link import ServerLink

from .engine import DraftEngine
from .engines import create
from .machine import WorkerMachine
from .proposal import execute

LINK: Final = "leader"


def hello_maker(engine: DraftEngine, offer: Offer, target: str | None) -> Callable[[], Hello]:
    """Gives this worker's hello, each time with a fresh nonce."""
    identity = engine.identity()
    return lambda: build_hello(
        Role.WORKER,
        fresh_id(),
        identity.vocabulary,
        draft_checkpoint=identity.checkpoint,
        draft_native=identity.native,
        target_checkpoint=target or identity.target_checkpoint,
        processors=identity.processors,
        representations=offer.representations,
        requests_max=offer.requests_max,
        depth_max=offer.depth_max,
        support_max=offer.support_max,
        staging_bytes=offer.staging_bytes,
    )


@command("worker", help="Run a worker leader: it drafts tokens and ships each with its exact q.")
@click.option(
    "--listen", default="tcp://127.0.0.1:5701", show_default=True, help="Address for rank 0."
)
@click.option("--allow-remote", is_flag=True, help="Listen on an address that others can reach.")
@click.option(
    "--engine",
    default="smollm2",
    show_default=True,
    help="smollm2, ngram, markov, or module:Class.",
)
@click.option(
    "--engine-option", "engine_option", multiple=True, help="KEY=VALUE for the engine; repeatable."
)
@click.option(
    "--target-checkpoint", default=None, help="The target expected; unset is the engine's own."
)
@offer_options
@timing_options
@service_options
def main(
    listen: str,
    allow_remote: bool,
    engine: str,
    engine_option: tuple[str, ...],
    target_checkpoint: str | None,
    **options: Any,
) -> int:
    """Load the engine, listen, serve."""
    offer, timing = take_offer(options), take_timing(options)
    drafter = create(engine, **engine_settings("engine-option", engine_option))
    link = ServerLink(
        LINK,
        listen,
        max_frame_bytes=frame_bytes(drafter.identity().vocabulary.size),
        allow_remote=allow_remote,
    )
    machine = WorkerMachine(
        boot_id=fresh_id(),
        make_hello=hello_maker(drafter, offer, target_checkpoint),
        timing=timing,
    )
    return serve("worker", machine, [link], partial(execute, drafter), options)
