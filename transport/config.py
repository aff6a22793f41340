"""Configuration of a program: flag > environment > TOML file > default.

``command("worker")`` makes a click command whose options can also come from
``PP1_WORKER_<OPTION>`` and from the table ``[worker]`` of the file that
``--config`` names (keys are the options' long names). ``--print-config`` shows
every value with its origin, as a file that ``--config`` takes again.

A mistake on the command line is click's usage error, exit 2. A mistake in the
environment or the file, like every ``ProtocolError`` before a program serves,
is one line on standard error and the exit code of ``exit_code_for``.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import click
from click.core import ParameterSource

from proto_v2.errors import Code, ExitCode, ProtocolError
from transport.logs import LEVELS

ENVIRONMENT_PREFIX: Final = "PP1"
_CONFIG: Final = "config"
_PRINT: Final = "print_config"
_ORIGINS: Final = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}
_EXIT_CODES: Final = {
    Code.CONFIG_INVALID: ExitCode.CONFIG,
    Code.ADDRESS_IN_USE: ExitCode.PREFLIGHT,
    Code.MEMORY_SHORT: ExitCode.PREFLIGHT,
    Code.MODEL_MISSING: ExitCode.PREFLIGHT,
    Code.PEER_UNREACHABLE: ExitCode.UNREACHABLE,
}


def exit_code_for(code: Code) -> ExitCode:
    """The exit code of a program that could not start because of ``code``."""
    if 200 <= code < 300:  # the negotiation block of the registry
        return ExitCode.REFUSED
    return _EXIT_CODES.get(code, ExitCode.CHECK_FAILED)


class StartError(click.ClickException):
    """A ``ProtocolError`` before the program serves, as click reports it: one line."""

    def __init__(self, error: ProtocolError) -> None:
        super().__init__(str(error))
        self.exit_code = int(exit_code_for(error.code))  # type: ignore[misc]  # click reads it so

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(f"pp1: {self.message}", file=file, err=file is None)


class Program(click.Command):
    """A command whose options may also come from a TOML table and the environment.

    The callback may return an exit code. It gets its own options only.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; mistakes that are not the command line's become ``StartError``."""
        if not __debug__:
            raise StartError(
                ProtocolError(Code.CONFIG_INVALID, "python", "assertions enabled", "python -O")
            )
        try:
            return super().parse_args(ctx, args)
        except ProtocolError as error:
            raise StartError(error) from error
        except click.BadParameter as error:
            field = self._origin(ctx, error.param)
            if field is None:
                raise
            wanted = f"a valid {error.param.type.name}" if error.param else "a valid value"
            raise StartError(
                ProtocolError(Code.CONFIG_INVALID, field, wanted, error.message)
            ) from error

    def _origin(self, ctx: click.Context, parameter: click.Parameter | None) -> str | None:
        """What to call a value that came from the environment or the file; else None."""
        if parameter is None or parameter.name is None:
            return None
        source = ctx.get_parameter_source(parameter.name)
        if source is ParameterSource.ENVIRONMENT:
            return f"{ctx.auto_envvar_prefix}_{parameter.name}".upper()
        if source is ParameterSource.DEFAULT_MAP:
            return f"[{self.name}] {_key(parameter)}"
        return None

    def invoke(self, ctx: click.Context) -> None:
        """Run the callback, or print the configuration and stop."""
        ctx.params.pop(_CONFIG)
        if ctx.params.pop(_PRINT):
            click.echo(_render(ctx))
            ctx.exit(ExitCode.OK)
        try:
            result = super().invoke(ctx)
        except ProtocolError as error:
            raise StartError(error) from error
        ctx.exit(result or ExitCode.OK)


def command(program: str, **attributes: Any) -> Callable[[Callable[..., Any]], Program]:
    """A decorator: the function becomes ``Program`` ``program`` with the two options.

    ``attributes`` are those of ``click.command`` (``help``, ...).
    """
    config = click.Option(
        ["--config"],
        type=click.Path(dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=True,
        callback=_load,
        help=f"TOML file; its table [{program}] gives options.",
    )
    show = click.Option(
        ["--print-config"],
        is_flag=True,
        help="Print every option with its value and origin, and stop.",
    )

    def decorate(function: Callable[..., Any]) -> Program:
        made = click.command(
            program,
            cls=Program,
            context_settings={
                "auto_envvar_prefix": f"{ENVIRONMENT_PREFIX}_{program.upper().replace('-', '_')}"
            },
            **attributes,
        )(function)
        made.params += [config, show]
        return made

    return decorate


def service_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what every daemon has: ``log_level``, ``log_file``, ``log_format``, ``metrics_port``."""
    options = (
        click.option(
            "--log-level", type=click.Choice(LEVELS), default="info", help="Least level logged."
        ),
        click.option(
            "--log-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Append the log to this file instead of standard error.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(("auto", "json", "text")),
            default="auto",
            help="auto: text on a terminal, JSON lines elsewhere.",
        ),
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65_535),
            help="Serve Prometheus metrics on this loopback port; 0 takes any free one.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _key(parameter: click.Parameter) -> str:
    return (parameter.name or "").replace("_", "-")


def _load(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Make the program's table of the file the defaults of its options."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ProtocolError(
            Code.CONFIG_INVALID, "config", "a readable file", f"{path}: {error.strerror}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(Code.CONFIG_INVALID, "config", "TOML", f"{path}: {error}") from error
    for key, value in document.items():
        if not isinstance(value, dict):
            raise ProtocolError(Code.CONFIG_INVALID, f"{path} {key}", "tables only", "a bare key")
    field = f"{path} [{ctx.command.name}]"
    if ctx.command.name not in document:  # perhaps misspelt, so not the same as empty
        found = ", ".join(f"[{name}]" for name in document) or "no table"
        raise ProtocolError(Code.CONFIG_INVALID, field, "this table", found)
    table = document[ctx.command.name]
    known = {
        _key(parameter): parameter
        for parameter in ctx.command.params
        if isinstance(parameter, click.Option) and parameter.name not in (_CONFIG, _PRINT)
    }
    for key, value in table.items():
        if key not in known:
            wanted = "one of " + ", ".join(sorted(known))
            raise ProtocolError(Code.CONFIG_INVALID, f"{field} {key}", wanted, "an unknown key")
        _check(f"{field} {key}", known[key], value)
    ctx.default_map = {known[key].name or "": value for key, value in table.items()}
    return path


def _check(field: str, option: click.Option, value: object) -> None:
    """Take only the TOML type of the option; click would convert a string to a number."""
    values = value if option.multiple and isinstance(value, list) else [value]
    for item in values:
        if not isinstance(item, _toml_types(option)) or (
            isinstance(item, bool) and not option.is_flag
        ):
            raise ProtocolError(Code.CONFIG_INVALID, field, option.type.name, repr(item))


def _toml_types(option: click.Option) -> tuple[type, ...]:
    if option.is_flag:
        return (bool,)
    if isinstance(option.type, click.types.FloatParamType):
        return (int, float)
    if isinstance(option.type, click.types.IntParamType):
        return (int,)
    return (str,)


def _render(ctx: click.Context) -> str:
    """The options as a TOML table, each with its origin as a comment."""
    lines = [f"[{ctx.command.name}]"]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if not isinstance(parameter, click.Option) or name not in ctx.params:
            continue
        value = ctx.params[name]
        source = ctx.get_parameter_source(name) or ParameterSource.DEFAULT
        key = _key(parameter)
        line = f"# {key} is unset" if value is None else f"{key} = {_toml(value)}"
        lines.append(f"{line}  # {_ORIGINS[source]}")
    return "\n".join(lines)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return _toml_string(str(value))


def _toml_string(text: str) -> str:
    """A TOML basic string; TOML's escapes are those of JSON but for DEL."""
    escaped = "".join(
        f"\\{character}"
        if character in '"\\'
        else character
        if character >= " " and character != "\x7f"
        else f"\\u{ord(character):04x}"
        for character in text
    )
    return f'"{escaped}"'
