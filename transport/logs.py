"""Structured log lines: JSON for machines, short text for a terminal.

A log line never stops the service: what cannot be written (a full disk, a
closed pipe) is counted in ``Log.lost`` and the process goes on.
"""

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TextIO

import msgspec

from proto_v2.errors import Code, ProtocolError

LEVELS: Final = ("debug", "info", "warning", "error")
Format = Literal["auto", "json", "text"]
_FIELDS: Final = "pp1_fields"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, _FIELDS, {})
    return fields


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes | memoryview) else repr(value)


def _time(record: logging.LogRecord) -> str:
    """UTC with milliseconds (RFC 3339)."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + (
        f".{int(record.msecs):03d}Z"
    )


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, program, event, then the event's fields."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)

    def format(self, record: logging.LogRecord) -> str:
        """Encode the record; own keys win over fields of the same name."""
        own = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "program": self._program,
            "event": record.getMessage(),
        }
        fields = {
            key: _plain(value) if isinstance(value, bytes | memoryview) else value
            for key, value in _fields(record).items()
            if key not in own
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        try:
            return self._encoder.encode(own | fields).decode()
        except (TypeError, ValueError, RecursionError):  # a field that has no JSON form
            return self._encoder.encode(
                own | {key: repr(value) for key, value in fields.items()}
            ).decode()


class TextFormatter(logging.Formatter):
    """``12:00:00 warning event key=value`` for people; always one line but for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """Render the record."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(
            f" {key}={value!r}" if isinstance(value, str) else f" {key}={_text(value)}"
            for key, value in _fields(record).items()
            if key != "traceback"
        )
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()}{fields}"
        line = line.replace("\n", "\\n")
        if record.exc_info:
            return f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)


class _CountingHandler(logging.StreamHandler[TextIO]):
    """Counts the lines it could not write instead of talking about them."""

    lost = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (stdlib name)
        self.lost += 1

    def close(self) -> None:
        try:
            if self.stream is not sys.stderr:
                self.stream.close()
        except OSError:  # what was still buffered is lost, as counted
            pass
        finally:
            super().close()


class Log:
    """A program's log. Also takes what libraries send through ``logging``.

    ``file`` None means standard error. ``format`` "auto" is text on a terminal
    and JSON elsewhere. Raises ``ProtocolError(CONFIG_INVALID)`` if the file
    cannot be opened.
    """

    def __init__(
        self,
        program: str,
        *,
        level: str = "info",
        file: Path | None = None,
        format: Format = "auto",
    ) -> None:
        try:
            stream = sys.stderr if file is None else file.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ProtocolError(
                Code.CONFIG_INVALID, "log_file", "a file to append to", str(error)
            ) from error
        text = format == "text" or (format == "auto" and stream.isatty())
        self._handler = _CountingHandler(stream)
        self._handler.setFormatter(TextFormatter() if text else JsonFormatter(program))
        self._logger = logging.getLogger(f"pp1.{program}")
        self._logger.setLevel(level.upper())
        self._logger.propagate = False
        self._root = logging.getLogger()
        for logger in (self._logger, self._root):
            logger.addHandler(self._handler)

    @property
    def lost(self) -> int:
        """How many lines could not be written."""
        return self._handler.lost

    def note(
        self,
        level: int,
        event: str,
        fields: Mapping[str, object] | None = None,
        *,
        error: BaseException | None = None,
    ) -> None:
        """Write one line; never raises. ``error`` adds its traceback."""
        self._logger.log(level, "%s", event, extra={_FIELDS: fields or {}}, exc_info=error)

    def close(self) -> None:
        """Flush and let go of the file."""
        for logger in (self._logger, self._root):
            logger.removeHandler(self._handler)
        self._handler.close()
