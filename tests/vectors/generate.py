"""Write the test vectors anew: ``python -m tests.vectors.generate``.

The same tree gives the same bytes. Nothing of the product is used: messages
and sums are packed by hand, numbers come from ``specs/oracle``.
"""

from .families import (
    completions,
    conversations,
    digests,
    envelope,
    messages,
    negotiation,
    numbers,
    pair,
    rows,
    steps,
    verifier,
)
from .schema import schema_text
from .values import DIRECTORY

MAKERS = (
    envelope.make,
    messages.make,
    steps.make,
    rows.make,
    completions.make,
    negotiation.make,
    conversations.make_links,
    conversations.make_sessions,
    conversations.make_requests,
    pair.make,
    digests.make,
    digests.make_vocabulary,
    numbers.make_rng,
    numbers.make_allocation,
    numbers.make_sampling,
    verifier.make_law,
    verifier.make_chains,
)


def texts() -> dict[str, str]:
    """Every file by its name."""
    files = [make() for make in MAKERS]
    return {
        "schema.json": schema_text(),
        **{f"{file.name}.json": file.text() for file in files},
    }


def main() -> None:
    """Write every file, and remove those that nothing makes any more."""
    written = texts()
    for name, text in written.items():
        (DIRECTORY / name).write_text(text)
    for path in DIRECTORY.glob("*.json"):
        if path.name not in written:
            path.unlink()
    print(f"{len(written)} files in {DIRECTORY.name}")


if __name__ == "__main__":
    main()
