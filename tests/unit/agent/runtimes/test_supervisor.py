"""Splitting of a replica's output into lines."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard_agent.runtimes import supervisor
from trainyard_agent.runtimes.supervisor import (
    MAX_LINE_BYTES,
    OVERWRITTEN,
    PARTIAL,
    PROGRESS_BYTES,
    WHOLE,
    LineSplitter,
    SteadyPrinting,
    SupervisorLog,
)


def cut(*blocks: bytes, max_line: int = MAX_LINE_BYTES, progress: int = PROGRESS_BYTES) -> list[tuple[str, int]]:
    cutter = LineSplitter(max_line, progress)
    lines: list[tuple[str, int]] = []
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
        ([b"two\r\r\n"], ["two"]),
        ([b"10%\r20%\rdone\n"], ["done"]),
        ([b"\r10%", b"\r20%", b"\rdone", b"\n"], ["done"]),
        ([b"10%\r", b"20%\r", b"done\r", b"\n"], ["done"]),
        ([b"10%\r20%"], ["20%"]),
        ([b"10%\r20%\r"], ["20%"]),
        ([b"\r"], []),
        ([b"\r\n"], [""]),
        ([b"bar\r   \rlater\n"], ["later"]),
        ([b"\xff\xfe\n"], ["\ufffd\ufffd"]),
        (["é".encode()[:1], "é".encode()[1:] + b"\n"], ["é"]),
        ([b"nul\0\x1b[1m\n"], ["nul\0\x1b[1m"]),
        ([b"1/9 [=>..]" + b"\b" * 10 + b"\r9/9 [====]" + b"\b" * 10 + b"\n"], ["9/9 [====]"]),  # Keras
        (
            [b"\router 0\n", b"\rinner 0\x1b[A\n\rinner 1\x1b", b"[A\n\rinner 2\x1b[A\router 1\n"],
            ["outer 0", "outer 1"],
        ),
        ([b"outer\n\rinner\x1b[A"], ["outer", "inner"]),
        ([], []),
    ],
)
def test_lines_of_odd_bytes_have_a_defined_fate(blocks: list[bytes], expected: list[str]) -> None:
    assert cut(*blocks) == [(text, WHOLE) for text in expected]


def test_line_above_the_limit_is_cut_into_partial_lines() -> None:
    assert cut(b"abcdefgh\n", max_line=3) == [("abc", PARTIAL), ("def", PARTIAL), ("gh", WHOLE)]
    assert cut(b"abc\n", max_line=3) == [("abc", WHOLE)]


def test_line_above_the_limit_is_never_cut_within_a_character() -> None:
    text = "aé€😀" * 50
    for limit in range(4, 12):
        lines = cut(text.encode() + b"\n", max_line=limit)
        assert "".join(piece for piece, _ in lines) == text
        assert [kind for _, kind in lines] == [PARTIAL] * (len(lines) - 1) + [WHOLE]
        assert all(len(piece.encode()) <= limit for piece, _ in lines)


def test_progress_bar_is_its_last_state_and_some_on_the_way() -> None:
    bar = b"".join(b"\r%4d of 10,000" % n for n in range(10_000)) + b"\n"
    lines = cut(bar)
    each = -(-PROGRESS_BYTES // 14)  # so many states until enough is dropped
    shown = [*range(each - 1, 9_999, each), 9_999]
    assert lines == [(f"{n:4d} of 10,000", OVERWRITTEN) for n in shown[:-1]] + [("9999 of 10,000", WHOLE)]
    assert len(lines) == 35
    assert cut(*(bar[n : n + 100] for n in range(0, len(bar), 100))) == lines


def test_progress_is_seen_before_the_line_has_an_end() -> None:
    cutter = LineSplitter(progress=10)
    assert cutter.feed(b"  0%\r 10%\r 20%\r") == []
    assert cutter.feed(b" 30%\r") == [(" 20%", OVERWRITTEN)]
    assert cutter.feed(b" 40%\r\n") == [(" 40%", WHOLE)]


def test_progress_that_was_wiped_is_not_shown() -> None:
    cutter = LineSplitter(progress=5)
    assert cutter.feed(b"10%\r   \r20%") == []
    assert cutter.feed(b"\r   \rdone\n") == [("20%", OVERWRITTEN), ("done", WHOLE)]


def test_lines_do_not_depend_on_how_the_bytes_arrive() -> None:
    chance = random.Random(7)
    data = bytes(chance.choice(b"abc\r\n\xff\xc3\xa9") for _ in range(5000))
    for _ in range(5):
        places = sorted(chance.randrange(len(data)) for _ in range(30))
        blocks = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        for max_line, progress in ((MAX_LINE_BYTES, PROGRESS_BYTES), (3, PROGRESS_BYTES), (9, 6)):
            assert cut(*blocks, max_line=max_line, progress=progress) == cut(data, max_line=max_line, progress=progress)


def log_of(path: Path, quota: int, *texts: str) -> SupervisorLog:
    log = SupervisorLog(str(path), quota)
    for text in texts:
        log.feed("stdout", text.encode())
    log.end("stdout")
    return log


def test_log_keeps_what_its_quota_has_room_for(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log_of(path, 0, *(f"line {n}\n" for n in range(5)))
    lines = path.read_text().splitlines(keepends=True)
    for room in range(sum(map(len, lines)) + 2):
        path.unlink()
        log = log_of(path, room, *(f"line {n}\n" for n in range(5))) if room else SupervisorLog(str(path), 1)
        kept = [json.loads(line)["text"] for line in path.read_text().splitlines()]
        assert kept == [f"line {n}" for n in range(len(kept))]
        assert path.stat().st_size <= room
        assert log.count == len(kept)
        assert log.is_cut == (room > 0 and len(kept) < 5)


def test_log_that_is_cut_keeps_no_later_line_though_it_were_shorter(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.jsonl", 200, "a\n", "b" * 200 + "\n", "c\n")
    assert log.is_cut
    assert log.count == 1


def test_lines_gather_of_a_stream_that_is_printed_to_without_a_pause() -> None:
    printing = SteadyPrinting()
    gathers = []
    for number, (stream, size, pause) in enumerate(
        [*[(5, 80, 0.0005)] * 100, (5, 30_000, 0.0005), (5, 80, 0.0005), (7, 80, 0.0005), (5, 80, 1.0)]
    ):
        printing.add(stream, size, number + pause if pause == 1.0 else number * pause)
        gathers.append(printing.stream)
    assert gathers[:10] == [-1] * 10, "a few lines are read as they come"
    assert gathers[50:] == [5] * 50 + [-1, 5, -1, -1], "much at once; again; the other stream; after a pause"


def test_supervisor_loads_a_compiled_module_and_little_else() -> None:
    """Each replica has one, and a launch waits for it."""
    package = str(Path(supervisor.__file__).parents[2])
    program = f"import sys; sys.path.append({package!r}); import {supervisor.__name__}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-I", "-S", "-c", program], text=True).split()
    slow = {"asyncio", "dataclasses", "inspect", "logging", "pathlib", "pydantic", "subprocess", "threading"}
    assert not (slow | {"typing"}) & set(loaded)
