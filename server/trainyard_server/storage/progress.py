"""How far each replica is and what it measures, by its own lines: read as the lines come, written to the database
every while.

What is in memory is a second's worth at most. A process that has not seen all lines of a replica (it was started later,
or another server process took some) reads them once more when the log is complete, so what the verdict of a run stands
on is exact, whatever happened in between.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from trainyard_protocol.progress import CHECKPOINT, Mark, parse
from trainyard_protocol.sync import LogLine
from trainyard_server.domain.metrics.summary import Digest
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.logs.store import LogStore, Stream

_REMEMBERED = 10_000  # replicas; one that is forgotten is read once more at its end


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a replica stands. The names are those of the columns of its row."""

    first_step: int | None = None
    step: int | None = None
    steps: int | None = None
    step_at: datetime | None = None
    durable_step: int | None = None
    durable_at: datetime | None = None

    def after(self, mark: Mark, at: datetime) -> "Progress":
        """Pure. `at` is the time of the line. `step_at` is when it was first heard of this step."""
        if mark.step is None:
            return self
        news = self
        if mark.step != self.step:
            first = mark.step if self.first_step is None else self.first_step
            news = replace(news, first_step=first, step=mark.step, step_at=at)
        if mark.steps is not None:
            news = replace(news, steps=mark.steps)
        if mark.event == CHECKPOINT:
            news = replace(news, durable_step=mark.step, durable_at=at)
        return news


@dataclass(slots=True)
class _Replica:
    """`next` is the number of the line that comes next; None: there was one that we have not seen."""

    next: int | None = 0
    progress: Progress = field(default_factory=Progress)
    written: Progress = field(default_factory=Progress)
    digest: Digest = field(default_factory=Digest)
    digest_news: bool = False

    def take(self, line: LogLine) -> None:
        mark = parse(line.text) if line.stream == "stdout" and not line.partial else None
        if mark is None:
            return
        try:
            at = datetime.fromisoformat(line.time)
        except ValueError:
            return
        if at.tzinfo is None:
            return
        self.progress = self.progress.after(mark, at)
        if mark.metrics or mark.epoch is not None or mark.epochs is not None:
            self.digest.add(mark)
            self.digest_news = True

    def values(self) -> dict[str, object]:
        """Those of its row."""
        values: dict[str, object] = {name: getattr(self.progress, name) for name in Progress.__slots__}
        return values | {"metrics": self.digest.json()}


def _nothing() -> None:
    """No digest is kept yet."""


class Steps:
    """Safe to use from any thread."""

    def __init__(self, store: Store, logs: LogStore) -> None:
        self._store = store
        self._logs = logs
        self._lock = threading.Lock()
        self._replicas: dict[tuple[str, str], _Replica] = {}

    def take(
        self,
        run_id: str,
        task: str,
        start: int,
        lines: Sequence[LogLine],
        kept: Callable[[], Mapping[str, Any] | None] = _nothing,
    ) -> None:
        """Lines `start`, `start + 1`, ... of a replica are in its log. `kept` reads the digest that its row has: it is
        asked where lines before these were not seen here."""
        with self._lock:
            known = self._replicas.get((run_id, task))
            seen = start == 0 if known is None else known.next == start
        before = Digest() if seen else Digest.of(kept())
        with self._lock:
            known = self._replicas.setdefault((run_id, task), _Replica())
            if before.taken > known.digest.taken:
                known.digest = before
            known.next = start + len(lines) if known.next == start else None
            for line in lines:
                known.take(line)

    def flush(self) -> bool:
        """Writes what is new, in one transaction; whether there was anything."""
        with self._lock:
            news = {
                key: (r.progress, r.values())
                for key, r in self._replicas.items()
                if r.progress != r.written or r.digest_news
            }
            for key in news:
                self._replicas[key].digest_news = False
            if len(self._replicas) > _REMEMBERED:
                oldest = [key for key in self._replicas if key not in news][: -_REMEMBERED // 2]
                for key in oldest:
                    del self._replicas[key]
        if not news:
            return False
        try:
            with self._store.write() as writer:
                for (run_id, task), (_, values) in news.items():
                    writer.note_steps(run_id, task, values, complete=False)
        except BaseException:
            with self._lock:
                for key in news:
                    if key in self._replicas:
                        self._replicas[key].digest_news = True
            raise
        with self._lock:
            for key, (progress, _) in news.items():
                if key in self._replicas:
                    self._replicas[key].written = progress
        return True

    def whole(self, project: str, job_id: str, stream: Stream, run_id: str, count: int) -> dict[str, object]:
        """What the log of a replica, which is complete with `count` lines, says: the values of its row. It is
        forgotten here."""
        with self._lock:
            known = self._replicas.pop((run_id, stream.task), _Replica())
        if known.next != count:
            known = _Replica()
            for line in self._logs.objects(project, job_id, stream):
                known.take(line)
        return known.values()
