"""Draft engines by name; each is imported only when it is asked for."""

from importlib import import_module
from inspect import signature
from typing import Any, Final

from proto_v2.errors import Code, ProtocolError
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
    module_name, _, attribute = NAMES.get(name, name).partition(":")
    if not attribute:
        raise ProtocolError(
            Code.CONFIG_INVALID, "engine", f"{', '.join(NAMES)} or module:Class", name
        )
    try:
        constructor = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ProtocolError(
            Code.CONFIG_INVALID, "engine", "a module and class that can be imported", error
        ) from error
    try:
        signature(constructor).bind(**options)
    except (TypeError, ValueError) as error:
        raise ProtocolError(
            Code.CONFIG_INVALID, "engine options", f"what {name} takes", error
        ) from error
    engine: DraftEngine = constructor(**options)
    return engine
