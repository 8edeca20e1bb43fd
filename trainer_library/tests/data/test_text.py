"""Tokenizers give every text back, and say what they are not."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainyard_trainer.data import text as texts
from trainyard_trainer.errors import FileError

PLAY = "To be, or not to be: that is the question.\n\nWhether ’tis nobler in the mind to suffer\n" * 20
DIFFICULT = ("▁", " ", "\n", "\r", "\t", "\0", "ﬁ", "½", "<0x41>", "<unk>", "⁇", "\ufeff", "\ufffd", "\U0010ffff", "é")


def of_hugging_face(size: int = 300) -> bytes:
    """A tokenizer.json like GPT-2's."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([PLAY], trainer)
    tokenizer.enable_truncation(4)  # as of a model that reads no more at once: not of what it learns from
    return tokenizer.to_str().encode()


@functools.cache
def tokenizers_of_both_kinds() -> tuple[texts.Tokenizer, texts.Tokenizer]:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        trained = texts.tokenizer_of("300", directory, lambda: iter([PLAY]))
    return trained, texts.read_tokenizer(of_hugging_face(), "tokenizer.json")


@given(st.lists(st.one_of(st.sampled_from(DIFFICULT), st.text(st.characters(exclude_categories=["Cs"])))).map("".join))
@example("▁ a▁▁b ▁<|endoftext|>")
def test_every_text_is_encoded_and_decoded_again_by_tokenizers_of_both_kinds(text: str) -> None:
    for tokenizer in tokenizers_of_both_kinds():
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens.tolist()) == text
        assert all(0 <= token < len(tokenizer) for token in tokens.tolist())


def test_file_is_read_with_its_ends_of_lines_and_what_is_no_utf8_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_bytes(b"one\r\ntwo\rthree\n" + b"\xff")
    assert texts.read_text(file) == "one\r\ntwo\rthree\n\ufffd"


def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path) -> None:
    for name, content in {"empty": b"", "garbage": b"garbage", "words.json": b'["a", "b"]'}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError, match=re.escape(f"{tmp_path / name} is no SentencePiece model and no tokenizer")):
            texts.tokenizer_of(str(tmp_path / name), str(tmp_path), lambda: iter([]))
    (tmp_path / "vocab.json").write_bytes(b'{"a": 0, "b": 1}')
    with pytest.raises(FileError, match=r"Name that file, not vocab\.json or tokenizer_config\.json"):
        texts.tokenizer_of(str(tmp_path / "vocab.json"), str(tmp_path), lambda: iter([]))
    with pytest.raises(
        FileError, match=r"Name a SentencePiece model, a tokenizer\.json of Hugging Face's, or a number"
    ):
        texts.tokenizer_of(str(tmp_path / "nothing"), str(tmp_path), lambda: iter([]))


def test_tokens_without_a_tokenizer_are_read_as_bytes_or_as_numbers() -> None:
    assert texts.decode(None, [72, 105, 255], 256) == "Hi\ufffd"
    assert texts.decode(None, [72, 50256], 50257) == "72 50256"
