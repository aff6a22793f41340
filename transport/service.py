"""What every daemon of PP1 does alike: its options, its log and metrics, its run.

A daemon is a click ``Program`` with the option groups below, which builds one
machine and its links and hands both to ``serve``. Nothing listens before every
option, model and address has been checked.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from proto_v2 import limits
from proto_v2.effects import Machine
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Hello, Role
from proto_v2.negotiate import Terms, build_hello
from proto_v2.peerlink import LinkTiming
from proto_v2.representation import NAMES, Representation
from proto_v2.vocabulary import Vocabulary

from .driver import RunJob, run_machine
from .link import Link
from .logs import Format, Log
from .metrics import Metrics
from .security import Keys, read_keys
from .staging import Staging

_NS_PER_MS: Final = 1_000_000
_BY_NAME: Final = {name: representation for representation, name in NAMES.items()}


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


offer_options = _options(
    click.option(
        "--representation",
        "representations",
        multiple=True,
        type=click.Choice(sorted(_BY_NAME)),
        default=tuple(sorted(_BY_NAME)),
        help="q representation to offer; repeat for several.",
    ),
    click.option(
        "--requests-max",
        type=click.IntRange(1, limits.REQUESTS_MAX),
        default=limits.REQUESTS_MAX,
        help="Requests in one batch.",
    ),
    click.option(
        "--depth-max",
        type=click.IntRange(1, limits.DEPTH_MAX),
        default=limits.DEPTH_MAX,
        help="Drafts in one chain (num_speculative_tokens).",
    ),
    click.option(
        "--support-max",
        type=click.IntRange(1, limits.SUPPORT_MAX),
        default=limits.SUPPORT_MAX,
        help="Entries of a sparse row.",
    ),
    click.option(
        "--staging-bytes",
        type=click.IntRange(1),
        default=None,
        help="Bound on preallocated slot memory; unset offers what the other bounds need.",
    ),
)

engine_options = _options(
    click.option(
        "--engine",
        default="smollm2",
        show_default=True,
        help="A built-in engine by name, or module:Class.",
    ),
    click.option(
        "--engine-option",
        "engine_option",
        multiple=True,
        help="KEY=VALUE for the engine; repeatable.",
    ),
)

_CERTIFICATE: Final = click.Path(dir_okay=False, path_type=Path)
security_options = _options(
    click.option(
        "--allow-remote",
        is_flag=True,
        help="Listen in the open on an address that others can reach.",
    ),
    click.option(
        "--curve-key",
        type=_CERTIFICATE,
        help="This process's own keys: a secret certificate of `pp1 keygen`.",
    ),
    click.option(
        "--allow-key",
        "allow_key",
        multiple=True,
        type=_CERTIFICATE,
        help="A public certificate that may connect here, and then no others; repeatable.",
    ),
)

timing_options = _options(
    click.option(
        "--ping-ms", type=click.IntRange(1), default=1_000, help="Between liveness messages."
    ),
    click.option(
        "--silence-ms",
        type=click.IntRange(1),
        default=10_000,
        help="Silence after which a peer is lost.",
    ),
)


@dataclass(frozen=True, slots=True)
class Offer:
    """The bounds of a hello, from the options of ``offer_options``."""

    representations: tuple[Representation, ...]
    requests_max: int
    depth_max: int
    support_max: int
    staging_bytes: int | None


def hello_maker(
    role: Role,
    vocabulary: Vocabulary,
    offer: Offer,
    *,
    draft: tuple[str, bool],
    target_checkpoint: str,
    processors: str,
) -> Callable[[], Hello]:
    """Gives this process's hello, each time with a fresh nonce.

    ``draft`` is the drafter's checkpoint and whether it is native to the target.
    """
    return lambda: build_hello(
        role,
        fresh_id(),
        vocabulary,
        draft_checkpoint=draft[0],
        draft_native=draft[1],
        target_checkpoint=target_checkpoint,
        processors=processors,
        representations=offer.representations,
        requests_max=offer.requests_max,
        depth_max=offer.depth_max,
        support_max=offer.support_max,
        staging_bytes=offer.staging_bytes,
    )


def take_offer(options: dict[str, Any]) -> Offer:
    """Take the options of ``offer_options`` out of a command's keyword arguments."""
    return Offer(
        representations=tuple(_BY_NAME[name] for name in options.pop("representations")),
        requests_max=options.pop("requests_max"),
        depth_max=options.pop("depth_max"),
        support_max=options.pop("support_max"),
        staging_bytes=options.pop("staging_bytes"),
    )


def take_keys(options: dict[str, Any]) -> Keys:
    """Take ``curve-key`` and ``allow-key`` of ``security_options``."""
    return read_keys(options.pop("curve_key"), options.pop("allow_key"))


def take_timing(options: dict[str, Any]) -> LinkTiming:
    """Take the options of ``timing_options``."""
    ping_ms, silence_ms = options.pop("ping_ms"), options.pop("silence_ms")
    if silence_ms <= ping_ms:
        raise ProtocolError(
            Code.CONFIG_INVALID, "silence-ms", f"more than ping-ms ({ping_ms})", silence_ms
        )
    return LinkTiming(
        hello_retry_ns=min(500, ping_ms) * _NS_PER_MS,
        ping_every_ns=ping_ms * _NS_PER_MS,
        silence_max_ns=silence_ms * _NS_PER_MS,
    )


def engine_settings(field: str, pairs: Sequence[str]) -> dict[str, int | str]:
    """``("key=value", ...)`` as engine options; whole numbers become int.

    Raises:
        ProtocolError: CONFIG_INVALID for a pair without a key or ``=``.
    """
    settings: dict[str, int | str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ProtocolError(Code.CONFIG_INVALID, field, "KEY=VALUE", pair)
        settings[key.replace("-", "_")] = int(value) if value.lstrip("-").isdigit() else value
    return settings


def fresh_id() -> bytes:
    """A random 128-bit id: boot ids, nonces, sessions."""
    return os.urandom(limits.ID_BYTES)


class SlotStaging:
    """Allocates the slot memory of agreed terms, bounded by what was offered.

    The instance is the machine's ``make_staging``. Memory of earlier terms is
    let go when terms of another shape are agreed.
    """

    def __init__(self) -> None:
        self.staging: Staging | None = None

    def __call__(self, terms: Terms) -> Callable[[int], memoryview]:
        """Allocate for these terms; raises ``MEMORY_SHORT``."""
        if self.staging is not None:
            self.staging.close()
        self.staging = Staging(terms.slots, terms.slot_bytes, bound=terms.staging_bytes)
        return self.staging.slot


def frame_bytes(vocabulary_size: int) -> int:
    """The largest frame that a link of this vocabulary may carry."""
    return max(
        limits.BODY_BYTES_MAX,
        vocabulary_size * limits.DENSE_ENTRY_BYTES,
        limits.SUPPORT_MAX * limits.SPARSE_ENTRY_BYTES,
    )


def serve(
    program: str,
    machine: Machine,
    links: Sequence[Link],
    run_job: RunJob,
    options: Mapping[str, Any],
) -> int:
    """Serve one machine with the log and metrics of ``service_options``; the exit code."""
    log_file: Path | None = options["log_file"]
    log_format: Format = options["log_format"]
    log = Log(program, level=options["log_level"], file=log_file, format=log_format)
    metrics = Metrics()
    try:
        if options["metrics_port"] is not None:
            port = metrics.expose("127.0.0.1", options["metrics_port"])
            log.note(20, "metrics", {"port": port})
        for link in links:
            log.note(20, "link", {"name": link.name, "address": getattr(link, "address", "")})
        return run_machine(machine, links, run_job, metrics=metrics, log=log)
    finally:
        metrics.close()
        log.close()
