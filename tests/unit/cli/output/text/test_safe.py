import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_cli import commands
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.text.safe import printable

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31mre\x1bcd\x1b]52;c;Y2F0\x1b\\ \r\b\x00\x1bP1$q\x1b\\x\x1b["


def test_text_keeps_what_is_no_control_character() -> None:
    assert printable(f"a\tb\nü {HOSTILE}") == "a\tb\nü red x"


@given(st.text(st.sampled_from("\x1b\x9b\x9d\x90]P[0;m\\\x07\x9cab\n")))
def test_no_text_has_a_control_character_left(text: str) -> None:
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printable(text)) is None


@pytest.mark.parametrize("start", ["\x1b]", "\x9d", "\x1b[", "\x1b", "\x9b0", "\x1bP"])
def test_unterminated_sequences_take_linear_time(start: str) -> None:
    assert len(printable(start * 200_000)) <= 200_000


def test_json_keeps_every_value_and_no_control_character() -> None:
    text = formats.render(formats.parse("json"), {"errorMessage": HOSTILE})
    assert json.loads(text) == {"errorMessage": HOSTILE}
    assert printable(text) == text


def test_commands_print_through_one_function_only() -> None:
    """`runtimes` prints the steps of a build as they come."""
    printing = {
        path.name
        for path in Path(commands.__path__[0]).rglob("*.py")
        if re.search(r"click\.echo\(|(?<!\w)print\(", path.read_text(encoding="utf-8"))
    }
    assert printing == {"runtimes.py"}
