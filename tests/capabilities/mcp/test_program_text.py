"""The command `trainyard mcp`, and text of programs for a language model."""

import importlib.util

import pytest

from trainyard_cli.capabilities.mcp.program_text import LONGEST_LINE, cut, plain, quoted
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run


def test_control_and_invisible_characters_are_removed() -> None:
    for given, shown in (
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("\x1b]0;title\x07text\x08", "text"),
        ("left \u202eright\u2066", "left right"),
        ("tags \U000e0041\U000e0042", "tags "),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("tab\tline\nGrüße 漢字 👍", "tab\tline\nGrüße 漢字 👍"),
    ):
        assert plain(given) == shown, ascii(given)


def test_long_line_is_cut_with_the_number_of_characters_that_are_missing() -> None:
    assert cut("a" * LONGEST_LINE) == "a" * LONGEST_LINE
    assert cut("a" * (LONGEST_LINE + 7)) == "a" * LONGEST_LINE + "... (7 more characters)"
    assert cut("a\nb") == "a b"


def test_marks_around_data_differ_from_call_to_call() -> None:
    first, second = (quoted(["text", ">>> LOG 00000000"], "LOG").splitlines() for _ in range(2))
    assert first[1:3] == second[1:3] == ["text", ">>> LOG 00000000"]
    assert (first[-1].startswith(">>> LOG "), first[-1] == second[-1]) == (True, False)


def test_mcp_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(trainyard, "trainyard", ["mcp"]) == 1
    assert "pip install 'trainyard[mcp]'" in capsys.readouterr().err
