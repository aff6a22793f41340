"""The worker leader as a process: one listening link, one engine thread."""

from functools import partial
from typing import Any, Final

import click

from proto_v2.messages import Role
from transport.config import command, service_options
from transport.security import must_be_used
from transport.service import (
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
from transport.zmq_link import ServerLink

from .engines import create
from .machine import WorkerMachine
from .proposal import execute

LINK: Final = "leader"


@command("worker", help="Run a worker leader: it drafts tokens and ships each with its exact q.")
@click.option(
    "--listen", default="tcp://127.0.0.1:5701", show_default=True, help="Address for rank 0."
)
@click.option(
    "--target-checkpoint", default=None, help="The target expected; unset is the engine's own."
)
@engine_options
@security_options
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
    offer, timing, keys = take_offer(options), take_timing(options), take_keys(options)
    must_be_used(keys, "allow-key")
    drafter = create(engine, **engine_settings("engine-option", engine_option))
    identity = drafter.identity()
    link = ServerLink(
        LINK,
        listen,
        max_frame_bytes=frame_bytes(identity.vocabulary.size),
        allow_remote=allow_remote,
        keys=keys.listen(),
    )
    machine = WorkerMachine(
        boot_id=fresh_id(),
        make_hello=hello_maker(
            Role.WORKER,
            identity.vocabulary,
            offer,
            draft=(identity.checkpoint, identity.native),
            target_checkpoint=target_checkpoint or identity.target_checkpoint,
            processors=identity.processors,
        ),
        timing=timing,
    )
    return serve("worker", machine, [link], partial(execute, drafter), options)
