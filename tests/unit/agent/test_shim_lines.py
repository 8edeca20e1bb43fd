"""How a replica's bytes become lines."""

import random

import pytest

from trainyard_agent.runtimes.shim import MAX_LINE_BYTES, LineCutter, rfc3339


def cut(*blocks: bytes, max_line: int = MAX_LINE_BYTES) -> list[tuple[str, bool]]:
    cutter = LineCutter(max_line)
    lines: list[tuple[str, bool]] = []
    for block in blocks:
        lines += cutter.feed(block)
    return lines + cutter.end()


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([b"a\nb\n"], ["a", "b"]),
        ([b"a", b"b\nc", b"\n"], ["ab", "c"]),
        ([b"no newline"], ["no newline"]),
        ([b"\n\n"], ["", ""]),
        ([b"dos\r\n"], ["dos"]),
        ([b"split dos\r", b"\n"], ["split dos"]),
        ([b"two\r\r\n"], ["two\r"]),
        ([b"10%\r20%\rdone\n"], ["10%\r20%\rdone"]),
        ([b"\xff\xfe\n"], ["\ufffd\ufffd"]),
        (["é".encode()[:1], "é".encode()[1:] + b"\n"], ["é"]),
        ([b"nul\0\x1b[1m\n"], ["nul\0\x1b[1m"]),
        ([], []),
    ],
)
def test_lines_of_odd_bytes_have_a_defined_fate(blocks: list[bytes], expected: list[str]) -> None:
    assert cut(*blocks) == [(text, False) for text in expected]


def test_line_above_the_limit_is_cut_into_partial_lines() -> None:
    assert cut(b"abcdefgh\n", max_line=3) == [("abc", True), ("def", True), ("gh", False)]
    assert cut(b"abc\n", max_line=3) == [("abc", False)]


def test_line_above_the_limit_is_never_cut_within_a_character() -> None:
    text = "aé€😀" * 50
    for limit in range(4, 12):
        lines = cut(text.encode() + b"\n", max_line=limit)
        assert "".join(piece for piece, _ in lines) == text
        assert [partial for _, partial in lines] == [True] * (len(lines) - 1) + [False]
        assert all(len(piece.encode()) <= limit for piece, _ in lines)


def test_lines_do_not_depend_on_how_the_bytes_arrive() -> None:
    chance = random.Random(7)
    data = bytes(chance.choice(b"abc\r\n\xff\xc3\xa9") for _ in range(5000))
    for _ in range(20):
        places = sorted(chance.randrange(len(data)) for _ in range(30))
        blocks = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        assert cut(*blocks) == cut(data)


def test_time_of_a_line_has_microseconds() -> None:
    assert rfc3339(1_795_178_770_000_001_999) == "2026-11-20T12:46:10.000001Z"
