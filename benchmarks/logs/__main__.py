"""Seconds of CPU time to find the one ERROR at the end of a log, and to read a page of lines beside it.

The log has 100,000 lines of two replicas. Page and search alternate within one run; the ratio of the medians counts."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.logs.store import LogFilter, LogStore, ReadResult, Stream

LINES, CHUNK, PAGE, ROUNDS = 100_000, 1_000, 200, 25
STREAMS = (Stream(1, "master-replica-0"), Stream(1, "worker-replica-0"))


def main() -> None:
    with TemporaryDirectory() as directory:
        logs = LogStore(Path(directory), durable=False)
        write_s = _seconds(partial(_write, logs))
        reopened = LogStore(Path(directory), durable=False)
        open_s = _seconds(partial(reopened.counts, "p", "j"))
        filters = {
            "first ERROR": LogFilter(severity="ERROR"),
            "first ERROR of one replica": LogFilter(frozenset((STREAMS[0].task,)), "ERROR"),
            "a text that no line has": LogFilter(search="needle"),
        }
        pages: list[float] = []
        searches: dict[str, list[float]] = {name: [] for name in filters}
        for _ in range(ROUNDS):
            for name, log_filter in filters.items():
                pages.append(_seconds(partial(_page, logs)))
                searches[name].append(_seconds(partial(_first, logs, log_filter)))
    page_s = statistics.median(pages)
    print(f"write {LINES:,} lines {write_s:.2f} s, open the log {open_s:.3f} s")
    print(f"page of {PAGE} lines {page_s * 1000:.2f} ms")
    for name, seconds in searches.items():
        ratios = [second / page_s for second in seconds]
        low, median, high = min(ratios), statistics.median(ratios), max(ratios)
        print(f"{name:<28} {median * page_s * 1000:.2f} ms, {median:.2f} pages ({low:.2f} to {high:.2f})")


def _write(logs: LogStore) -> None:
    for start in range(0, LINES // 2, CHUNK):
        for stream in STREAMS:
            lines = [_line(f"step {number}: loss = 0.1234") for number in range(start, start + CHUNK)]
            logs.append("p", "j", stream, start, lines)
    logs.append("p", "j", STREAMS[0], LINES // 2, [_line("ERROR: the last line")])


def _line(text: str) -> LogLine:
    return LogLine(time="2026-11-20T12:00:00Z", stream="stdout", text=text)


def _page(logs: LogStore) -> ReadResult:
    return logs.read_back("p", "j", LINES // 2, max_lines=PAGE)


def _first(logs: LogStore, log_filter: LogFilter) -> None:
    after, more = 0, True
    while more:
        result = logs.read("p", "j", after, log_filter, max_lines=1)
        after, more = result.last, result.more and not result.entries


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
