"""SmolLM2's text: byte-level BPE, the chat form, and streaming decode.

User text is always encoded literally: the spelling of a control token in it
becomes ordinary pieces, never the control token, so a prompt cannot forge a
chat turn.
"""

import codecs
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proto_v2.errors import Code, ProtocolError
from proto_v2.vocabulary import map_hash

if TYPE_CHECKING:
    from tokenizers import Tokenizer as BpeTokenizer

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SYSTEM: Final = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

_START, _END, _END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def _byte_letters() -> dict[str, int]:
    """GPT-2's printable stand-in of every byte (Radford et al. 2019, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    letters |= {chr(256 + index): byte for index, byte in enumerate(others)}
    return letters


_LETTERS: Final = _byte_letters()


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """What the model file says of its text; ``chat`` when it has the known template."""

    tokens: tuple[str, ...]
    control: frozenset[int]
    merges: tuple[str, ...]
    chat: bool

    def token_bytes(self) -> list[bytes]:
        """The bytes that each id stands for; a control token's are its spelling."""
        return [
            token.encode("utf-8")
            if index in self.control
            else bytes(_LETTERS[letter] for letter in token)
            for index, token in enumerate(self.tokens)
        ]

    def map_hash(self) -> bytes:
        """The 32-byte vocabulary map hash for HELLO."""
        return map_hash(self.token_bytes())

    def stop_tokens(self) -> frozenset[int]:
        """Ids of ``<|im_end|>`` and ``<|endoftext|>``: either ends a text."""
        return frozenset(i for i in self.control if self.tokens[i] in (_END, _END_OF_TEXT))

    def save(self, path: Path) -> None:
        """Write as JSON."""
        fields = {
            "tokens": self.tokens,
            "control": sorted(self.control),
            "merges": self.merges,
            "chat": self.chat,
        }
        path.write_text(json.dumps(fields), "utf-8")

    @classmethod
    def load(cls, path: Path) -> "TokenizerData":
        """Read what ``save`` wrote."""
        fields = json.loads(path.read_text("utf-8"))
        return cls(
            tuple(fields["tokens"]),
            frozenset(fields["control"]),
            tuple(fields["merges"]),
            fields["chat"],
        )


class Tokenizer:
    """Text to ids and back."""

    def __init__(self, data: TokenizerData) -> None:
        self._data = data
        self._bytes = data.token_bytes()
        self._bpe = _byte_level_bpe(data)
        self._ids = {data.tokens[index]: index for index in data.control}

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The ids that end a text."""
        return self._data.stop_tokens()

    def encode(self, text: str, chat: bool = False) -> list[int]:
        """Ids of ``text``; with ``chat``, of a user turn and the opened answer.

        Raises:
            ProtocolError: PARAMETER_RANGE for text that is not valid Unicode
                or when the model file has another chat template.
        """
        if not chat:
            return self._pieces(text)
        if not self._data.chat:
            raise ProtocolError(
                Code.PARAMETER_RANGE, "chat", "a model with SmolLM2's chat template", "another one"
            )
        start = self._ids[_START]
        newline = self._pieces("\n")
        system = self._turn("system", SYSTEM)
        return [*system, *self._turn("user", text), start, *self._pieces("assistant"), *newline]

    def stream(self) -> "TextStream":
        """A decoder for one generated text."""
        return TextStream(self._bytes, self._data.control)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of ``tokens``; control tokens have none."""
        stream = self.stream()
        return "".join([*map(stream.push, tokens), stream.finish()])

    def _turn(self, role: str, content: str) -> list[int]:
        body = self._pieces(f"{role}\n{content}")
        return [self._ids[_START], *body, self._ids[_END], *self._pieces("\n")]

    def _pieces(self, text: str) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ProtocolError(
                Code.PARAMETER_RANGE, "text", "valid Unicode", f"a lone surrogate at {error.start}"
            ) from None
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        return ids


class TextStream:
    """Decodes ids one at a time and never emits part of a character.

    Bytes that cannot start or continue a character become U+FFFD.
    """

    def __init__(self, token_bytes: list[bytes], control: frozenset[int]) -> None:
        self._bytes = token_bytes
        self._control = control
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that ``token`` completes, often the token's own text."""
        return "" if token in self._control else self._decoder.decode(self._bytes[token])

    def finish(self) -> str:
        """What is left of a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def _byte_level_bpe(data: TokenizerData) -> "BpeTokenizer":
    try:
        from tokenizers import Tokenizer as BpeTokenizer  # optional dependency, needed only here
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    except ImportError as error:
        raise ProtocolError(
            Code.MODEL_MISSING, "tokenizer", "the tokenizers package (extra smollm2)", error
        ) from error
    vocabulary = {token: index for index, token in enumerate(data.tokens)}
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in data.merges)]
    bpe = BpeTokenizer(BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    return bpe
