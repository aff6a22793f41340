"""Target engines by name; each is imported only when it is asked for."""

from typing import Any, Final

from pp1.models.plugin import construct
from spark_rank.engine import TargetEngine

NAMES: Final = {
    "smollm2": "spark_rank.engines.smollm2:SmolLM2Target",
    "markov": "spark_rank.engines.markov:MarkovTarget",
}


def create(name: str, **options: Any) -> TargetEngine:
    """The engine called ``name`` in ``NAMES``, or an out-of-tree ``module:Class``.

    ``options`` are the keyword arguments of its constructor.

    Raises:
        ProtocolError: CONFIG_INVALID for an unknown name or option; what the
            engine itself raises.
    """
    engine: TargetEngine = construct(NAMES, name, options)
    return engine
