"""``pp1 keygen``: CURVE keys for links that leave the machine."""

from pathlib import Path

import click

from transport.config import command
from transport.security import create_key


@command("keygen", help="Make a CURVE key pair: NAME.key to give away, NAME.key_secret to keep.")
@click.option("--name", required=True, type=click.Path(path_type=Path), help="Path without suffix.")
def keygen(name: Path) -> None:
    """Write both certificates and say where."""
    public, secret = create_key(name)
    click.echo(f"public certificate, for the peers: {public}")
    click.echo(f"secret certificate, for --curve-key: {secret}")
