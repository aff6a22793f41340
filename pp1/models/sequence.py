"""One sequence's KV cache that follows whatever tokens it is asked about."""

from collections.abc import Sequence

from .llama import KvCache, LlamaShape, Segment


class CachedSequence:
    """A KV cache together with the tokens that it holds.

    ``segment`` compares the wanted tokens with the held ones, truncates the
    cache to what they share and hands back only the rest. Rollback therefore
    needs no care of its own: positions of rejected tokens cannot be used,
    because they no longer match.
    """

    __slots__ = ("_held", "cache")

    def __init__(self, shape: LlamaShape, layers: int) -> None:
        self.cache = KvCache(shape, layers)
        self._held: list[int] = []

    def segment(self, tokens: Sequence[int], rows: int) -> Segment:
        """What to append so that the cache holds ``tokens`` and yields ``rows`` last rows."""
        shared = 0
        limit = min(len(self._held), self.cache.length, len(tokens) - rows)
        while shared < limit and self._held[shared] == tokens[shared]:
            shared += 1
        self.cache.truncate(shared)
        self._held = list(tokens)
        return Segment(tokens[shared:], self.cache)
