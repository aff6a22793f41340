"""Draft engines by name; each is imported only when it is asked for."""

from typing import Any, Final

from pp1.models.plugin import construct
from worker.engine import DraftEngine

NAMES: Final = {
    "smollm2": "worker.engines.smollm2:SmolLM2Draft",
    "ngram": "worker.engines.ngram:for_target",
    "markov": "worker.engines.markov:MarkovDraft",
}


def create(name: str, **options: Any) -> DraftEngine:
    """The engine called ``name`` in ``NAMES``, or an out-of-tree ``module:Class``.

    ``options`` are the keyword arguments of its constructor.

    Raises:
        ProtocolError: CONFIG_INVALID for an unknown name or option; what the
            engine itself raises.
    """
    engine: DraftEngine = construct(NAMES, name, options)
    return engine
