"""Bound of the audit's rows of refused calls: the first of a caller are rows, the others of that minute are counted.

In the memory of this server process. A caller is a person by name, or an address without a known name.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard_protocol.answers.audit import AuditEntry

ROWS = 10
"""Rows of one caller and action in a window; what exceeds them is one row with a count."""

MOST_ROWS = 100
"""Rows of one person, or of all addresses together, in a window. Further addresses are counted together by action."""

WINDOW = timedelta(minutes=1)


@dataclass(slots=True)
class _Count:
    """Refused calls of one caller and action: those that are rows, and the others. `entry` is what those have in
    common."""

    rows: int = 0
    others: int = 0
    entry: AuditEntry | None = None

    def add(self, entry: AuditEntry) -> None:
        self.others += 1
        before = self.entry or entry
        differing = {name: "" for name in _MAY_DIFFER if getattr(before, name) != getattr(entry, name)}
        self.entry = before.model_copy(update=differing) if differing else before


class RefusalCounts:
    """Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], _Count] = {}
        self._rows: Counter[str] = Counter()  # by person; "" for all others
        self._since: datetime | None = None
        self._lock = threading.Lock()

    def admit(self, entry: AuditEntry) -> bool:
        """Whether the entry is to be a row; it is counted otherwise."""
        with self._lock:
            self._since = self._since or entry.time
            key = (entry.actor, "" if entry.actor else entry.address, entry.action)
            is_full = self._rows[entry.actor] >= MOST_ROWS
            if is_full and key not in self._counts and not entry.actor:
                key = ("", "", entry.action)
            count = self._counts.setdefault(key, _Count())
            if is_full or count.rows >= ROWS:
                count.add(entry)
                return False
            self._rows[entry.actor] += 1
            count.rows += 1
            return True

    def collect(self, now: datetime, *, closing: bool = False) -> Sequence[AuditEntry]:
        """The counts of a window that is over, or with `closing` of the present one, as entries. Starts a new one."""
        with self._lock:
            if self._since is None or not (closing or abs(now - self._since) >= WINDOW):
                return ()
            counts = list(self._counts.values())
            self._counts, self._rows, self._since = {}, Counter(), None
        return [
            count.entry.model_copy(update={"time": now, "count": count.others})
            for count in counts
            if count.entry is not None
        ]


_MAY_DIFFER = ("credential", "role", "project", "subject", "address", "user_agent", "request_id")
