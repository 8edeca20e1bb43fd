"""Several processes write and read the same log; some of them are killed or stopped in the middle of it."""

import random
import subprocess
import sys
import time
from pathlib import Path

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.wire.logs import LogEnd, LogLine, digest
from trainyard_server.storage.logs.index import lines_of
from trainyard_server.storage.logs.store import LogStore, Stream

TASKS = ("master-replica-0", "worker-replica-0", "worker-replica-1")
LINES = 500

# Each writer sends the lines of all replicas, as agents do whose answers are lost: a chunk begins anywhere in what is
# known.
WRITER = """
import random, sys
from pathlib import Path
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.logs.store import LogStore, Stream

directory, seed, tasks, count = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4])
store, dice = LogStore(directory, durable=False), random.Random(seed)
have = dict.fromkeys(tasks, 0)
print("writing", flush=True)
while (unfinished := [task for task in tasks if have[task] < count]):
    task = dice.choice(unfinished)
    start = max(0, have[task] - dice.randint(0, 20))
    texts = [f"{task} {n} " + "x" * (n % 90) for n in range(start, min(count, start + dice.randint(1, 120)))]
    lines = [LogLine(time="2026-11-20T12:00:00Z", stream="stdout", text=text) for text in texts]
    have[task] = store.append("p", "j", Stream(1, task), start, lines).next
"""


def run(script: str, *arguments: object, stdout: int | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=stdout, text=True)


def line(text: str) -> LogLine:
    return LogLine(time="2026-11-20T12:00:00Z", stream="stdout", text=text)


def everything(store: LogStore, after: int = 0) -> list[LogEntry]:
    entries: list[LogEntry] = []
    while True:
        result = store.read("p", "j", after)
        entries += result.entries
        after = result.last
        if not result.more:
            return entries


def expected(task: str) -> list[str]:
    return [f"{task} {n} " + "x" * (n % 90) for n in range(LINES)]


def test_writers_of_one_log_in_several_processes_one_of_them_killed_write_each_line_once(tmp_path: Path) -> None:
    dice = random.Random()
    writers = [run(WRITER, tmp_path, seed, ",".join(TASKS), LINES) for seed in range(3)]
    victims = [
        run(WRITER, tmp_path, 100 + dice.randrange(10**6), ",".join(TASKS), LINES, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    seen: list[LogEntry] = []
    reader = LogStore(tmp_path, durable=False)
    try:
        for victim in victims:
            assert victim.stdout is not None
            victim.stdout.readline()
            until = time.monotonic() + dice.uniform(0, 0.3)
            while time.monotonic() < until:
                seen += everything(reader, len(seen))
            victim.kill()
            victim.wait()
        while any(writer.poll() is None for writer in writers):
            seen += everything(reader, len(seen))
        assert [writer.wait() for writer in writers] == [0] * len(writers)
    finally:
        for process in [*writers, *victims]:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    seen += everything(reader, len(seen))
    assert [entry.cursor for entry in seen] == list(range(1, len(TASKS) * LINES + 1))
    for task in TASKS:
        mine = [entry for entry in seen if entry.task == task]
        assert [entry.number for entry in mine] == list(range(LINES))
        assert [entry.text for entry in mine] == expected(task)
    for store in (reader, LogStore(tmp_path)):
        assert everything(store) == seen, "what a reader saw while they wrote is what there is"
        for task in TASKS:
            end = LogEnd(count=LINES, sha256=digest(map(line, expected(task))))
            assert store.verify("p", "j", Stream(1, task), end)
    assert lines_of(tmp_path / "p" / "j" / "segment.records") == len(seen)
