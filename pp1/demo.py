"""``pp1 demo``: worker leader and two ranks as processes here, one prompt through them."""

import signal
import sys
import time
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pp1.client import Client
from pp1.generate import request_options, run_request, show_result
from pp1.models import readout, smollm2
from pp1.processes import DaemonFailed, Trio, all_clean
from proto_v2.errors import ExitCode, ProtocolError
from transport.config import command

PROMPT: Final = "Explain why the sky is blue, then write a short poem about it."


def prepare_models(draft_engine: str, *, quiet: bool) -> smollm2.SmolLM2:
    """Unpack the model and fit the read-out if the cache lacks them, with a progress bar.

    Where standard error is no terminal, one line for each instead.
    """
    console = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bars:

        def bar(description: str) -> Any:
            task = None

            def update(done: int, total: int) -> None:
                nonlocal task
                if task is None:
                    task = bars.add_task(description, total=total)
                    if not console.is_terminal:
                        console.print(f"{description} (once)")
                bars.update(task, completed=done, total=total)

            return update

        model = smollm2.load(progress=bar("unpacking the model"))
        if draft_engine == "smollm2":
            recipe = readout.Recipe.of(model.checkpoint)
            readout.load(model, recipe, progress=bar("fitting the drafter's read-out"))
    return model


@command("demo", help="Start worker and both ranks on this machine and generate from one prompt.")
@click.option("--prompt", default=PROMPT, show_default=True)
@click.option("--raw", is_flag=True, help="Take the prompt as plain text, without chat turns.")
@click.option(
    "--draft-engine",
    type=click.Choice(("smollm2", "ngram")),
    default="smollm2",
    show_default=True,
    help="First layers with a read-out, or prompt lookup.",
)
@request_options
def demo(prompt: str, raw: bool, draft_engine: str, **options: Any) -> int:
    """Run the demo; every process is gone when it ends."""
    as_json: bool = options["as_json"]
    # A terminal that closes and a supervisor that stops us end the children as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    model = prepare_models(draft_engine, quiet=as_json)
    tokenizer = model.tokenizer()
    began = time.monotonic()
    trio = None
    try:
        trio = Trio(
            worker=["--engine", draft_engine],
            ranks=["--engine", "smollm2", "--draft-engine", draft_engine],
        )
        with Client(trio.address) as client:
            info = client.wait_ready(trio.start_timeout_s, worker=True)
            if not as_json:
                click.echo(
                    f"worker, rank 0 and rank 1 are three processes on {trio.address}; "
                    f"ready in {time.monotonic() - began:.1f} s\n\n> {prompt}\n"
                )
            ids = tokenizer.encode(prompt, chat=not raw)
            result = run_request(client, ids, tokenizer.stream(), options, 120.0, info)
        exit_codes = trio.stop()
    except DaemonFailed as error:
        click.echo(f"pp1: {error}", err=True)
        return error.exit_code
    except ProtocolError:
        if trio is not None and (failure := trio.failure()) is not None:
            click.echo(f"pp1: {failure}", err=True)  # the cause; what we saw is the effect
            return failure.exit_code
        raise
    except KeyboardInterrupt:
        click.echo("\npp1: interrupted", err=True)
        return 128 + signal.SIGINT
    finally:
        if trio is not None:
            trio.stop()
    result["exit_codes"] = exit_codes
    show_result(result, as_json)
    if not as_json:
        codes = ", ".join(f"{name} {code}" for name, code in exit_codes.items())
        click.echo(f"exit codes: {codes}")
    return ExitCode.OK if all_clean(exit_codes) else ExitCode.CHECK_FAILED


def _interrupt(number: int, frame: object) -> None:
    sys.stdout.flush()
    raise KeyboardInterrupt
