"""The ``pp1`` command. Each verb is imported only when it is asked for."""

import importlib
from typing import Final

import click

from pp1.models.threads import limit_threads

_VERBS: Final = {
    "demo": ("pp1.demo", "demo"),
    "generate": ("pp1.generate", "generate"),
    "worker": ("worker.daemon", "main"),
    "rank": ("spark_rank.daemon", "main"),
    "keygen": ("pp1.keygen", "keygen"),
    "bench": ("pp1.bench", "bench"),
    "inspect": ("pp1.inspect.command", "inspect"),
}


class Verbs(click.Group):
    """A group that loads a verb's module on first use, so that ``pp1 --help`` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order in which a person meets them."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of a verb."""
        if name not in _VERBS:
            return None
        module, attribute = _VERBS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pp1")
def cli() -> None:
    """Speculative decoding across machines, exact under sampling."""


def main() -> None:
    """Entry point of the console command."""
    limit_threads()  # the verbs import NumPy later
    cli()
