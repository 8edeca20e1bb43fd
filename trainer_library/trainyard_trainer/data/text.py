"""Text for a language model: its bytes, or the tokens of --tokenizer, and samples of a network.

A tokenizer is a SentencePiece model (Kudo and Richardson, arXiv:1808.06226) or a tokenizer.json of Hugging Face's, such
as GPT-2's. The packages sentencepiece and tokenizers are needed for --tokenizer alone.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.errors import FileError
from trainyard_trainer.storage import open_folder, read_file

FILE = "tokenizer.model"
"""The tokenizer of a training, in its job directory."""
BYTES = 256
"""Tokens of text without a tokenizer."""
_SPACE = "▁"  # what SentencePiece writes for a space, and decodes as one

Infer = Callable[[NDArray[np.int32]], Any]


class Tokenizer(Protocol):
    """Text as numbers below `len`; `content` is that of its file."""

    content: bytes

    def __len__(self) -> int: ...

    def encode(self, text: str) -> NDArray[np.int32]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class SentencePiece:
    """A SentencePiece model. With one that `tokenizer_of` has trained, decoding gives every text back."""

    def __init__(self, content: bytes, name: str) -> None:
        """Raises FileError if it is none."""
        self.content = content
        package = _sentencepiece()
        try:
            self._model: Any = package.SentencePieceProcessor(model_proto=content) if content else None
        except RuntimeError:
            self._model = None
        if self._model is None:
            raise FileError(f"--tokenizer {name} is no SentencePiece model and no tokenizer.json of Hugging Face's.")
        bytes_ = [self._model.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode()]
        adds_space = "".join(self._model.encode("x", out_type=str)).startswith(_SPACE)
        self._of_space = bytes_ if all(map(self._model.is_byte, bytes_)) and not adds_space else None

    def __len__(self) -> int:
        return int(self._model.vocab_size())

    def encode(self, text: str) -> NDArray[np.int32]:
        if self._of_space is None or _SPACE not in text:
            return np.asarray(self._model.encode(text), np.int32)
        first, *others = self._model.encode(text.split(_SPACE))
        for other in others:
            first += self._of_space + other
        return np.asarray(first, np.int32)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._model.decode(list(tokens)))


class HuggingFaceTokenizer:
    """A tokenizer.json. With GPT-2's, or another of bytes, decoding gives every text back."""

    def __init__(self, content: bytes, name: str) -> None:
        """Raises FileError if it is none."""
        self.content = content
        try:
            import tokenizers
        except ImportError as error:
            raise FileError(f"--tokenizer {name} needs the package tokenizers: pip install tokenizers.") from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the package raises no other
            raise FileError(
                f"--tokenizer {name} is no tokenizer.json of Hugging Face's: {error}. Name that file, not vocab.json "
                "or tokenizer_config.json."
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __len__(self) -> int:
        return 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def read_tokenizer(content: bytes, name: str) -> Tokenizer:
    """The tokenizer of the content of a file of this name, of either kind. Raises FileError if it is none."""
    kind = HuggingFaceTokenizer if content.lstrip().startswith(b"{") else SentencePiece
    return kind(content, name)


def tokenizer_of(name: str, job_dir: str, texts: Callable[[], Iterator[str]]) -> Tokenizer:
    """The tokenizer of --tokenizer: of a file, or of as many pieces as it says, trained on the text.

    The latter is kept in the job directory, where a resumed training finds it.

    Raises:
        FileError: there is no such file, or the text has not so many pieces.
    """
    if not name.isdecimal():
        content = read_file(name)
        if content is None:
            raise FileError(
                f"--tokenizer {name} is not there. Name a SentencePiece model, a tokenizer.json of Hugging Face's, or "
                "a number of pieces."
            )
        return read_tokenizer(content, name)
    kept = open_folder(job_dir)
    content = kept.read(FILE)
    if content is None:
        content = _trained(int(name), texts())
        kept.write(FILE, content)
    return read_tokenizer(content, name)


def _trained(pieces: int, texts: Iterator[str]) -> bytes:
    package, out = _sentencepiece(), io.BytesIO()
    lines = (line for text in texts for line in text.split("\n"))
    try:
        package.SentencePieceTrainer.train(
            sentence_iterator=lines, model_writer=out, vocab_size=pieces, model_type="bpe", minloglevel=2,
            # Nothing of a text is lost: not a rare character, a space or a line's end.
            byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
            add_dummy_prefix=False, user_defined_symbols=["\n"], unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1,
            max_sentence_length=2**20,
        )  # fmt: skip
    except RuntimeError as error:
        raise FileError(f"No tokenizer of {pieces} pieces can be made of the text: {error}") from error
    return out.getvalue()


def _sentencepiece() -> Any:
    """The package. Raises FileError without it."""
    try:
        import sentencepiece
    except ImportError as error:
        raise FileError("--tokenizer needs the package sentencepiece: pip install sentencepiece.") from error
    return sentencepiece


def read_text(path: Path) -> str:
    """The text as it is, with its ends of lines; what is no UTF-8 is U+FFFD."""
    return path.read_bytes().decode(errors="replace")


class Text:
    """Example i is the tokens [i*T, i*T+T) of a file; its labels are the tokens that follow each."""

    in_memory = True  # or memory-mapped
    label_names: tuple[str, ...] | None = None

    def __init__(self, url: str, path: Path, input_shape: tuple[int, ...], tokenizer: Tokenizer | None = None) -> None:
        self.url = url
        if len(input_shape) != 1:
            raise FileError(f"{url} is text: it does not fit the input shape {input_shape}; allowed is (T,).")
        (self._length,) = input_shape
        self._tokens: NDArray[Any]
        if tokenizer is not None:
            self._tokens = tokenizer.encode(read_text(path))
        else:  # an empty file cannot be mapped
            self._tokens = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
        if len(self._tokens) <= self._length:
            kind = "bytes" if tokenizer is None else "tokens"
            raise FileError(
                f"{url} has {len(self._tokens)} {kind}; an example of the input shape {input_shape} takes "
                f"{self._length + 1}."
            )

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        at = np.asarray(indices)[:, np.newaxis] * self._length + np.arange(self._length + 1)
        tokens = np.asarray(self._tokens[at]).astype(np.int32)
        return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def sample(infer: Infer, prompt: NDArray[np.int32], count: int, length: int, seed: int) -> list[int]:
    """Tokens [count] that follow a prompt, drawn from a network's distribution.

    Args:
        infer: tokens [1, T] -> logits [1, T, K] of the next ones.
        length: T.
    """
    random = np.random.default_rng(seed)
    tokens = [int(token) for token in prompt]
    for _ in range(count):
        window = np.zeros((1, length), np.int32)
        last = tokens[-length:]
        window[0, : len(last)] = last  # what follows has no effect on the logits before
        logits_K = np.asarray(infer(window))[0, len(last) - 1].astype(np.float64)
        weights_K = np.exp(logits_K - logits_K.max())
        tokens.append(int(random.choice(len(weights_K), p=weights_K / weights_K.sum())))
    return tokens[len(prompt) :]


def decode(tokenizer: Tokenizer | None, tokens: Iterable[int], classes: int) -> str:
    """The text of tokens. Without a tokenizer it is that of bytes, or the numbers of more than 256 classes."""
    numbers = [int(token) for token in tokens]
    if tokenizer is not None:
        return tokenizer.decode(numbers)
    return bytes(numbers).decode(errors="replace") if classes <= BYTES else " ".join(map(str, numbers))


def printable(tokenizer: Tokenizer | None, classes: int) -> tuple[str, ...]:
    """A name for each token, for predictions."""
    if tokenizer is None:
        return tuple(map(str, range(classes)))
    return tuple(tokenizer.decode([token]) for token in range(classes))
