"""Finite distributions over token ids, exactly."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

Number = Fraction | int | float


class OracleError(ValueError):
    """The oracle was given something that is not a distribution."""


def _exact(weights: Sequence[Number]) -> list[Fraction]:
    """The weights' exact values; refuses what is not finite or is negative."""
    if not weights:
        raise OracleError("no weights")
    exact = []
    for token, weight in enumerate(weights):
        if isinstance(weight, float) and not math.isfinite(weight):
            raise OracleError(f"weight {token} is {weight}")
        if weight < 0:
            raise OracleError(f"weight {token} is negative")
        exact.append(Fraction(weight))
    return exact


@dataclass(frozen=True, slots=True)
class Categorical:
    """Probabilities of the ids ``0 .. V-1``; they sum to exactly one."""

    probabilities: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if any(p < 0 for p in self.probabilities) or sum(self.probabilities) != 1:
            raise OracleError("probabilities are not a distribution")

    @classmethod
    def dense(cls, weights: Sequence[Number]) -> Self:
        """Normalise weights over the whole vocabulary."""
        exact = _exact(weights)
        total = sum(exact)
        if total == 0:
            raise OracleError("the weights have no mass")
        return cls(tuple(weight / total for weight in exact))

    def sparse_topk(self, k: int) -> Self:
        """Keep the k most probable ids, the lowest among equals, and normalise on them.

        Every other id has probability exactly zero afterwards, so a token must
        be drawn from the result and not from ``self``.
        """
        if k < 1:
            raise OracleError(f"k is {k}")
        order = sorted(range(len(self.probabilities)), key=lambda t: (-self.probabilities[t], t))
        kept = set(order[:k])
        return type(self).dense(
            [p if token in kept else 0 for token, p in enumerate(self.probabilities)]
        )

    def __len__(self) -> int:
        return len(self.probabilities)

    def __getitem__(self, token: int) -> Fraction:
        if not 0 <= token < len(self.probabilities):
            raise OracleError(f"no token {token}")
        return self.probabilities[token]

    @property
    def support(self) -> tuple[int, ...]:
        """Ids of positive probability, ascending."""
        return tuple(token for token, p in enumerate(self.probabilities) if p)

    @property
    def tickets(self) -> int:
        """The least number of equal tickets that describes the distribution."""
        return math.lcm(*(p.denominator for p in self.probabilities))

    def token_at(self, ticket: int) -> int:
        """The first id whose cumulative tickets exceed ``ticket``."""
        if not 0 <= ticket < self.tickets:
            raise OracleError(f"no ticket {ticket}")
        cumulative = Fraction(0)
        for token, p in enumerate(self.probabilities):
            cumulative += p
            if cumulative * self.tickets > ticket:
                return token
        raise AssertionError("probabilities sum to one")


def from_counts(counts: Sequence[int]) -> Categorical:
    """The distribution that integer counts describe."""
    return Categorical.dense(counts)


def fp32_weights(weights: Sequence[float]) -> tuple[Fraction, ...]:
    """Each weight rounded to FP32 (to nearest, ties to even), as its exact value.

    Sender and receiver that normalise these hold equal distributions. Weights
    that underflow become zero; overflow and a total of zero are refused.
    """
    _exact(weights)
    rounded = []
    for token, weight in enumerate(weights):
        try:
            (single,) = struct.unpack("<f", struct.pack("<f", weight))
        except OverflowError:
            raise OracleError(f"weight {token} overflows FP32") from None
        rounded.append(Fraction(single))
    if not any(rounded):
        raise OracleError("the weights have no mass in FP32")
    return tuple(rounded)


def dyadic_counts(q: Sequence[Number], mass_bits: int) -> tuple[int, ...]:
    """Floor plus largest remainders to a total of ``2**mass_bits``, ties to the lowest id.

    ``q`` is taken as it is, never normalised: tickets left over that are not
    between zero and the number of positive remainders mean that it is not
    normalised well enough, and are refused.
    """
    scaled = [value * (1 << mass_bits) for value in _exact(q)]
    counts = [math.floor(value) for value in scaled]
    remainders = [value - count for value, count in zip(scaled, counts, strict=True)]
    left = (1 << mass_bits) - sum(counts)
    if not 0 <= left <= sum(1 for remainder in remainders if remainder):
        raise OracleError(f"{left} tickets left over")
    order = sorted(range(len(q)), key=lambda token: (-remainders[token], token))
    for token in order[:left]:
        counts[token] += 1
    return tuple(counts)


def target_counts(p: Sequence[Number], target_bits: int) -> tuple[int, ...]:
    """Floors of ``2**target_bits * p``; what is missing goes to the most probable id.

    The lowest id among equals. An id of probability zero gets nothing.
    """
    exact = _exact(p)
    counts = [math.floor(value * (1 << target_bits)) for value in exact]
    missing = (1 << target_bits) - sum(counts)
    if missing < 0:
        raise OracleError("the probabilities exceed one")
    counts[exact.index(max(exact))] += missing
    return tuple(counts)
