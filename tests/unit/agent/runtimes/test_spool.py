"""The output of a program outlives its supervisor, and no line of it is lost or comes twice."""

import json
import os
import random
from pathlib import Path

import pytest

from trainyard_agent.runtimes import spool as spool_module
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.spool import STREAMS, Spool
from trainyard_agent.runtimes.supervisor import LineSplitter, SupervisorLog, finish_log

PIECES = (b"one\n", b"two two", b"\n", b"\r", b"50%\r", b"\r\n", b"\x1b[A\n", b"x" * 5000, b"secret", b"\xc3\xa9\n")

MESSAGE = "the supervisor's own line"


def texts(path: Path, stream: str) -> list[str]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [entry["text"] for entry in entries if entry["stream"] == stream and entry["text"] != MESSAGE]


def expected(output: bytes) -> list[str]:
    splitter = LineSplitter(mask=Mask(["secret"]))
    return [text for text, _ in (*splitter.feed(output), *splitter.end())]


@pytest.mark.parametrize("seed", range(20))
def test_log_of_a_supervisor_killed_at_any_moment_is_finished_by_another_process(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    spools = {stream: Spool() for stream in STREAMS}
    log = SupervisorLog(f"{tmp_path}/log.jsonl", mask=Mask(["secret"]))
    outputs = dict.fromkeys(STREAMS, b"")
    for _ in range(random_.randrange(60)):
        stream = random_.choice(STREAMS)
        piece = b"".join(random_.choices(PIECES, k=random_.randrange(1, 4)))
        os.write(spools[stream].writer, piece)
        outputs[stream] += piece
        if random_.random() < 0.6:
            log.feed(stream, spools[stream].consume(random_.choice([1, 7, 1 << 16])))
            if random_.random() < 0.8:
                log.mark(stream, spools[stream])
        if random_.random() < 0.1:
            log.say(MESSAGE)
            for name, spool in spools.items():
                log.mark(name, spool)
    if random_.random() < 0.5:  # killed before it fed what it had taken
        stream = random_.choice(STREAMS)
        os.write(spools[stream].writer, b"last\n")
        outputs[stream] += b"last\n"
        spools[stream].consume(1 << 16)
    with (tmp_path / "log.jsonl").open("ab") as file:  # killed as it wrote
        file.write(b'{"time": "2026-01-01T00:0' * random_.randrange(2))
    held = {stream: Spool.of_process(os.getpid(), spool.pipe, spool.memory) for stream, spool in spools.items()}

    count = finish_log(str(tmp_path), 0, Mask(["secret"]), held)

    assert {stream: texts(tmp_path / "log.jsonl", stream) for stream in STREAMS} == {
        stream: expected(output) for stream, output in outputs.items()
    }
    assert count == len((tmp_path / "log.jsonl").read_bytes().splitlines())
    assert finish_log(str(tmp_path), 0, Mask(["secret"]), held) == count, "again after a full disk"
    for spool in (*spools.values(), *held.values()):
        spool.close()
    for spool in spools.values():
        spool.close_writer()


def test_spool_keeps_little_memory_however_much_a_program_writes() -> None:
    spool, splitter = Spool(), LineSplitter()
    for _ in range(400):
        os.write(spool.writer, (b"x" * 100 + b"\r") * 500)
        splitter.feed(spool.consume(1 << 16))
        splitter.mark(spool, 0)
    found = os.fstat(spool.memory)
    assert found.st_size > 19 << 20
    assert found.st_blocks * 512 < 8 << 20
    assert spool.read_mark().line == b"x" * 100
    spool.close()
    spool.close_writer()


def test_spool_without_files_in_memory_passes_all_on_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "_libc", object())
    spool = Spool()
    os.write(spool.writer, b"one\n")
    assert spool.consume(100) == b"one\n"
    spool.mark(4)
    assert not spool.is_kept
    spool.close()
    spool.close_writer()
