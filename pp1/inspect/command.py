"""``pp1 inspect``: read PP1 bytes from a file, a pipe, the command line or a capture."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from pp1.inspect import capture, stream, zmtp
from pp1.inspect.connections import Connections, Seen
from pp1.inspect.link import Link
from pp1.inspect.output import Listing
from pp1.inspect.stream import Rewound, Source, Thing, Unreadable
from proto_v2 import limits
from proto_v2.errors import ExitCode
from transport.config import command

_HEX_BYTES_MAX: Final = 1 << 24
_START_BYTES: Final = 64
_HEX: Final = frozenset(b"0123456789abcdefABCDEF \t\r\n")

# Terms that a user may name, with the most that the contract allows.
_TERMS: Final = {
    "vocabulary_size": limits.VOCABULARY_SIZE_MAX,
    "legal_size": limits.VOCABULARY_SIZE_MAX,
    "requests_max": limits.REQUESTS_MAX,
    "depth_max": limits.DEPTH_MAX,
    "support_max": limits.SUPPORT_MAX,
}


class _CannotRead(click.ClickException):
    """The input could not be read: one line, exit 2."""

    exit_code = int(ExitCode.USAGE)

    def show(self, file: object = None) -> None:
        """Print the line."""
        click.echo(f"pp1: {self.message}", err=True)


def _terms(texts: tuple[str, ...]) -> dict[str, int]:
    given: dict[str, int] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, _, number = part.partition("=")
        most = _TERMS.get(name)
        if most is None:
            raise _bad_terms("name", f"one of {', '.join(_TERMS)}", name)
        if not (number.isascii() and number.isdigit() and 1 <= int(number[:20]) <= most):
            raise _bad_terms(name, f"1..{most}", number)
        given[name] = int(number)
    if "vocabulary_size" in given:
        given.setdefault("legal_size", given["vocabulary_size"])
        if given["legal_size"] > given["vocabulary_size"]:
            most = given["vocabulary_size"]
            raise _bad_terms("legal_size", f"1..{most}", str(given["legal_size"]))
    return given


def _bad_terms(field: str, wanted: str, got: str) -> click.BadParameter:
    return click.BadParameter(f"{field}: wanted {wanted}, got {got!r}", param_hint="--terms")


@command("inspect", help="List PP1 bytes field by field, with the rule that each one breaks.")
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("--hex", metavar="STRING", help="The bytes themselves, instead of FILE.")
@click.option(
    "--format",
    type=click.Choice(("auto", "hex", "bin", "pcap")),
    default="auto",
    show_default=True,
    help="bin: messages back to back, or one direction of a ZMTP connection.",
)
@click.option(
    "--terms",
    multiple=True,
    metavar="NAME=VALUE,...",
    help=f"What the peers agreed, where the input does not say: {', '.join(_TERMS)}.",
)
@click.option("--brief", is_flag=True, help="Messages only, without fields that break no rule.")
@click.option("--json", is_flag=True, help="Print one JSON object a line.")
def inspect(
    file: str | None,
    hex: str | None,
    format: str,
    terms: tuple[str, ...],
    brief: bool,
    json: bool,
) -> ExitCode:
    """Print the listing; the exit code says whether every message parses."""
    if (file is None) == (hex is None):
        raise click.UsageError("one of FILE (- for standard input) and --hex is needed")
    given = _terms(terms)
    listing = Listing(as_json=json, brief=brief)
    connections = None
    try:
        with _opened(file, hex) as opened:
            form = "decoded" if hex is not None and format in ("auto", "hex") else format
            source, form = _recognised(opened, form)
            if form == "pcap":
                connections = Connections(given)
                for seen in _capture(source, connections):
                    _print(listing.render(seen.what, seen))
            else:
                for thing in _bytes(source, Link(given)):
                    _print(listing.render(thing))
    except Unreadable as error:
        raise _CannotRead(str(error)) from error
    _print(iter([listing.summary(None if connections is None else connections.count)]))
    if listing.broken:
        return ExitCode.CHECK_FAILED
    if not listing.messages:
        raise _CannotRead("input: wanted a PP1 message, got none")
    return ExitCode.OK


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        click.echo(line)


class _Input:
    """A file or pipe whose faults are ``Unreadable``, unlike those of the output."""

    def __init__(self, name: str, stream: Source) -> None:
        self._name = name
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        try:
            return self._stream.read(size)
        except OSError as error:
            raise Unreadable(f"{self._name}: {error.strerror}") from error


@contextmanager
def _opened(file: str | None, hex_text: str | None) -> Iterator[Source]:
    """The input, until the listing is over."""
    if file is None:
        yield io.BytesIO(_unhex(hex_text or ""))
    elif file == "-":
        yield _Input("standard input", sys.stdin.buffer)
    else:
        try:
            opened = open(file, "rb")  # noqa: SIM115  # below; only opening may fail here
        except OSError as error:
            raise Unreadable(f"{file}: {error.strerror}") from error
        with opened:
            yield _Input(file, opened)


def _recognised(source: Source, form: str) -> tuple[Source, str]:
    """The bytes themselves, and what they are: ``bin`` or ``pcap``."""
    start = source.read(_START_BYTES)
    source = Rewound(start, source)
    if form == "hex" or (form == "auto" and start and _HEX.issuperset(start)):
        return _recognised(io.BytesIO(_unhex(_all_text(source))), "decoded")
    if form in ("auto", "decoded"):
        return source, "pcap" if capture.is_capture(start) else "bin"
    return source, form


def _all_text(source: Source) -> str:
    data = source.read(_HEX_BYTES_MAX + 1)
    if len(data) > _HEX_BYTES_MAX:
        raise Unreadable(f"hex: wanted at most {_HEX_BYTES_MAX} characters, got more")
    return data.decode("ascii", errors="replace")


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise Unreadable(f"hex: wanted pairs of hexadecimal digits: {error}") from None


def _bytes(source: Source, link: Link) -> Iterator[Thing]:
    start = source.read(_START_BYTES)
    if not start:
        raise Unreadable("input: wanted a PP1 message, got no bytes")
    source = Rewound(start, source)
    if zmtp.is_greeting(start) or zmtp.is_first_frame(start):
        return stream.connection(source, link)
    return stream.back_to_back(source, link)


def _capture(source: Source, connections: Connections) -> Iterator[Seen]:
    for segment in capture.segments(source):
        yield from connections.feed(segment)
    yield from connections.end()
