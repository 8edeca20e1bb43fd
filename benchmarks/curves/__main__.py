"""CPU seconds to read a log of 100,000 progress lines with four metrics into curves, to downsample them to 1,000 points
each, and to do both again after one more line; compared with json.loads of the same lines."""

import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard_protocol.wire.logs import LogLine
from trainyard_server.services.measurements.curves import JobCurves
from trainyard_server.storage.logs.store import LogStore, Stream

LINES, AT_ONCE, POINTS, ROUNDS = 100_000, 5_000, 1_000, 5
MASTER = Stream(1, "master-replica-0")


def main() -> None:
    lines = [_line(step) for step in range(LINES)]
    with TemporaryDirectory() as directory:
        logs = LogStore(Path(directory), durable=False)
        for start in range(0, LINES, AT_ONCE):
            logs.append("p", "j", MASTER, start, lines[start : start + AT_ONCE])
        read, downsampled, more = [], [], []
        for number in range(ROUNDS):
            job = JobCurves("p", "j")
            read.append(_seconds(partial(job.catch_up, logs)))
            downsampled.append(_seconds(partial(_downsample, job)))
            logs.append("p", "j", MASTER, LINES + number, [_line(LINES + number)])
            more.append(_seconds(partial(job.catch_up, logs)) + _seconds(partial(_downsample, job)))
        parsed = [_seconds(lambda: [json.loads(line.text) for line in lines]) for _ in range(ROUNDS)]
    json_s = statistics.median(parsed)
    for name, seconds in (("read", read), ("downsample", downsampled), ("one line more", more)):
        print(
            f"{name:<14} {statistics.median(seconds):.4f} s  {statistics.median(seconds) / json_s:.2f} of json.loads"
        )


def _line(step: int) -> LogLine:
    values = {"loss": math.exp(-step / LINES), "accuracy": step / LINES, "rate": step % 97, "lr": 0.1}
    text = json.dumps({"event": "progress", "step": step, "steps": LINES, "epoch": step // 1000} | values)
    return LogLine(time="2026-11-20T12:00:00Z", stream="stdout", text=text)


def _downsample(job: JobCurves) -> None:
    for curve in job.curves.values():
        curve.points().thinned(POINTS)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
