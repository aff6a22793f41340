"""A cheap drafter out of the target's own first layers: a fitted linear read-out.

The state after a few blocks predicts the target's final state linearly well
enough to draft from. The map is fitted once by ridge regression on a small
text that ships with the package (written by the model, no source of facts),
restricted to its best ``rank`` directions (reduced-rank regression, Izenman
1975, in the metric of the logits), and cached on disk. Low rank is what makes
it cheap: the full head alone costs a fifth of the target.

Expected acceptance at T = 1 and milliseconds a token, as ``pp1.bench_acceptance``
measures them, on one core where the target takes 61 ms:

    layers  rank    dense q   ids only    ms
       1     128      .15       .05        4
       2      64      .17       .06        4
       2     128      .18       .07        6
       2     576      .19       .08       11
      10     128      .21       .09       18
      10     576      .21       .10       24
      15     576      .25       .12       30
      25     576      .45       .24       45

Two layers and rank 128 are the default: most of what a cheap drafter accepts
at a tenth of the target's cost. Only nearly the whole model does much better,
and that costs nearly as much as the target. A corpus three times as long adds
.01 and triples the time of the fit.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from proto_v2.errors import Code, ProtocolError

from .cache import Progress, cache_root, ensure, no_progress
from .llama import F32, KvCache, Llama, Segment, rms_norm
from .smollm2 import SmolLM2

LAYERS: Final = 2
RANK: Final = 128
RANK_MIN: Final = 16

_VERSION: Final = "readout-v1"
_PERSON: Final = b"PP1-readout-v1\0\0"
_RIDGE: Final = 0.03  # per position; features have unit mean square
_FILE: Final = "readout.npy"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a read-out is fitted from; its digest names the result.

    The digest covers the inputs and not the fitted numbers, whose last bits
    depend on the machine. Nothing relies on those bits: rows travel with the
    counts that drew them.
    """

    target_checkpoint: str
    layers: int
    rank: int

    @classmethod
    def of(
        cls, target_checkpoint: str, layers: int | None = None, rank: int | None = None
    ) -> "Recipe":
        """A recipe with defaults filled in. Raises CONFIG_INVALID below the minima."""
        recipe = cls(
            target_checkpoint,
            LAYERS if layers is None else layers,
            RANK if rank is None else rank,
        )
        if recipe.layers < 1:
            raise ProtocolError(Code.CONFIG_INVALID, "layers", "at least 1", layers)
        if recipe.rank < RANK_MIN:
            raise ProtocolError(Code.CONFIG_INVALID, "rank", f"at least {RANK_MIN}", rank)
        return recipe

    def digest(self) -> str:
        """32 hexadecimal digits over the version, the target, the sizes and the corpus."""
        fields = [_VERSION, self.target_checkpoint, str(self.layers), str(self.rank), str(_RIDGE)]
        message = "\0".join(fields).encode() + b"\0" + _corpus_bytes()
        return blake2b(message, digest_size=16, person=_PERSON).hexdigest()

    def checkpoint(self) -> str:
        """The drafter's identity for HELLO."""
        return f"smollm2-first{self.layers}-rank{self.rank}/readout:{self.digest()}"


class Readout:
    """Draft logits from the state after ``recipe.layers`` blocks.

    ``project [width + 1, rank]`` takes the normalised state and a constant;
    ``head [rank, vocabulary]`` is derived from the model's own head.
    """

    def __init__(self, recipe: Recipe, epsilon: float, project: F32, head: F32) -> None:
        self.recipe = recipe
        self._epsilon = epsilon
        self._project = project
        self._head = head

    def logits(self, hidden: F32) -> F32:
        """float32 ``[rows, vocabulary]`` from residual rows ``[rows, width]``."""
        narrow: F32 = np.matmul(_features(hidden, self._epsilon), self._project)
        result: F32 = np.matmul(narrow, self._head)
        return result


def load(
    model: SmolLM2,
    recipe: Recipe,
    *,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Readout:
    """The read-out of a recipe, fitted first when the cache does not hold it.

    ``progress(done, total)`` counts corpus tokens while fitting.

    Raises:
        ProtocolError: CONFIG_INVALID for sizes that the model does not have,
            or for the cache.
    """
    shape = model.llama.shape
    if not recipe.layers < shape.layers or not recipe.rank <= shape.width:
        raise ProtocolError(
            Code.CONFIG_INVALID,
            "layers, rank",
            f"layers below {shape.layers}, rank up to {shape.width}",
            f"{recipe.layers}, {recipe.rank}",
        )

    def build(into: Path) -> None:
        np.save(into / _FILE, _fit(model, recipe, progress))

    directory = ensure(cache_root(cache), f"{_VERSION}-{recipe.digest()}", build)
    both = np.load(directory / _FILE, allow_pickle=False)
    project, basis = both[: shape.width + 1], both[shape.width + 1 :]
    head = np.ascontiguousarray(basis.T) @ model.llama.weights.head
    return Readout(recipe, shape.norm_epsilon, np.ascontiguousarray(project), head)


def _features(hidden: F32, epsilon: float) -> F32:
    ones = np.ones((len(hidden), 1), np.float32)
    return np.concatenate([rms_norm(hidden, epsilon), ones], axis=1)


def _fit(model: SmolLM2, recipe: Recipe, progress: Progress) -> F32:
    """``[width + 1 + width, rank]``: the projection, then the basis of the head."""
    features, states = _observe(model, recipe.layers, progress)
    gram = features.T @ features + _RIDGE * len(features) * np.eye(features.shape[1])
    full = np.linalg.solve(gram, features.T @ states)
    root, inverse = _logit_metric(model.llama)
    directions = np.linalg.svd(features @ full @ root, full_matrices=False)[2][: recipe.rank].T
    return np.concatenate([full @ root @ directions, inverse @ directions]).astype(np.float32)


def _observe(
    model: SmolLM2, layers: int, progress: Progress
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features and final states, float64 rows, at every corpus position."""
    llama = model.llama
    documents = list(_documents(model))
    total = sum(map(len, documents))
    features, states, done = [], [], 0
    for tokens in documents:
        progress(done, total)
        early = llama.hidden([Segment(tokens, KvCache(llama.shape, layers))], layers)[0]
        final = llama.hidden(
            [Segment(tokens, KvCache(llama.shape, llama.shape.layers))], llama.shape.layers
        )[0]
        features.append(_features(early, llama.shape.norm_epsilon))
        states.append(llama.final_state(final))
        done += len(tokens)
    progress(total, total)
    return np.concatenate(features).astype(np.float64), np.concatenate(states).astype(np.float64)


def _documents(model: SmolLM2) -> Iterator[list[int]]:
    tokenizer = model.tokenizer()
    entries: list[dict[str, Any]] = json.loads(_corpus_bytes())
    for entry in entries:
        prompt = tokenizer.encode(entry["prompt"], chat=True) if entry["prompt"] else []
        yield prompt + tokenizer.encode(entry["text"])


def _corpus_bytes() -> bytes:
    return files(__package__).joinpath("corpus.json").read_bytes()


def _logit_metric(llama: Llama) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Square root, and its inverse, of the head's covariance over the vocabulary.

    Centred, because a constant added to all logits changes nothing.
    """
    head = llama.weights.head
    mean = head.mean(axis=1, dtype=np.float64)
    second = (head @ head.T).astype(np.float64) / head.shape[1]
    values, vectors = np.linalg.eigh(second - np.outer(mean, mean))
    values = np.sqrt(np.maximum(values, values[-1] * 1e-9))
    return (vectors * values) @ vectors.T, (vectors / values) @ vectors.T
