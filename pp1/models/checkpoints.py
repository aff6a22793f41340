"""Checkpoint identities by engine name, without loading any weights.

Each side of a link states in HELLO what it runs and what it expects of the
other. The functions here derive the expectation from the engine's name and
options alone, exactly as the engine itself will state it.
"""

from collections.abc import Mapping
from typing import Any, Final

from proto_v2.errors import Code, ProtocolError
from proto_v2.vocabulary import Vocabulary

from . import smollm2
from .markov import PROCESSORS, VOCABULARY_SIZE, MarkovLaw
from .readout import Recipe

TARGET_NAMES: Final = ("smollm2", "markov")
DRAFT_NAMES: Final = ("smollm2", "ngram", "markov")
NGRAM_MAX: Final = 4

Options = Mapping[str, Any]


def target_checkpoint(name: str, options: Options) -> str:
    """What ``spark_rank.engines.create(name, **options)`` will state.

    Raises:
        ProtocolError: CONFIG_INVALID for a name that is not built in: such an
            engine's identity has to be configured. MODEL_MISSING.
    """
    if name == "smollm2":
        return smollm2.checkpoint_of(options.get("path"))
    if name == "markov":
        return _markov(options).target_checkpoint()
    raise _unknown(name, TARGET_NAMES)


def target_vocabulary(name: str, options: Options) -> Vocabulary:
    """The id map of ``target_checkpoint(name, options)``. Raises alike."""
    if name == "smollm2":
        return smollm2.vocabulary_of(options.get("path"))
    if name == "markov":
        return _markov(options).vocabulary()
    raise _unknown(name, TARGET_NAMES)


def target_processors(name: str) -> str:
    """The processor policy id that the built-in target ``name`` states."""
    if name == "smollm2":
        return smollm2.PROCESSORS
    if name == "markov":
        return PROCESSORS
    raise _unknown(name, TARGET_NAMES)


def draft_checkpoint(name: str, options: Options) -> str:
    """What ``worker.engines.create(name, **options)`` will state. Raises alike."""
    if name == "smollm2":
        model = smollm2.checkpoint_of(options.get("path"))
        return Recipe.of(model, options.get("layers"), options.get("rank")).checkpoint()
    if name == "ngram":
        return ngram_checkpoint(options.get("ngram_max", NGRAM_MAX))
    if name == "markov":
        return _markov(options).draft_checkpoint()
    raise _unknown(name, DRAFT_NAMES)


def draft_native(name: str) -> bool:
    """Whether the built-in drafter ``name`` was made together with its target."""
    if name not in DRAFT_NAMES:
        raise _unknown(name, DRAFT_NAMES)
    return name == "markov"


def ngram_checkpoint(ngram_max: int) -> str:
    """The identity of prompt lookup with suffixes of at most ``ngram_max`` tokens."""
    return f"ngram-smoothed-v1/max{ngram_max}"


def _markov(options: Options) -> MarkovLaw:
    return MarkovLaw(options.get("vocabulary_size", VOCABULARY_SIZE), options.get("seed", 0))


def _unknown(name: str, known: tuple[str, ...]) -> ProtocolError:
    return ProtocolError(
        Code.CONFIG_INVALID, "engine", f"one of {', '.join(known)}, or a stated identity", name
    )
