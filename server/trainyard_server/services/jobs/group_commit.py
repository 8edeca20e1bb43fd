"""Group commit: what waits while a transaction is written shares the next one."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")

_GAP_S = 0.004
"""Longest wait for one more item of a group, where as many are expected as were there last time."""


class _Entry(Generic[_T]):
    """An item, and the thread that brought it: it wakes up when the item is settled, or when it has to lead."""

    def __init__(self, item: _T) -> None:
        self.item = item
        self.error: BaseException | None = None
        self.settled = False
        self.woken = threading.Event()


class GroupCommit(Generic[_T]):
    """Transactions of several items, of which each is answered after the commit of its own. Thread-safe.

    `write` writes the items in one transaction, and returns for each the error that refuses it alone. Where it raises,
    nothing was written: the items are then written one by one, unless `is_outage` says that each would fail.
    """

    def __init__(
        self,
        write: Callable[[Sequence[_T]], Sequence[BaseException | None]],
        is_outage: Callable[[BaseException], bool],
    ) -> None:
        self._write = write
        self._is_outage = is_outage
        self._changed = threading.Condition()  # guards what follows
        self._waiting: list[_Entry[_T]] = []
        self._is_led = False
        self._expected = 1

    def add(self, item: _T) -> None:
        """Write the item, with those that wait. Returns once it is committed. Raises its error."""
        entry = _Entry(item)
        with self._changed:
            self._waiting.append(entry)
            self._changed.notify()
            follows, self._is_led = self._is_led, True
        if follows:
            entry.woken.wait()
        if not entry.settled:
            self._lead()
        if entry.error is not None:
            raise entry.error

    def _lead(self) -> None:
        """Write all that wait, and let one of those that come meanwhile lead next."""
        group = self._gathered()
        self._commit(group)
        with self._changed:
            self._expected = len(group) + len(self._waiting)
            self._is_led = bool(self._waiting)
            woken = [*group, *self._waiting[:1]]
        for entry in woken:
            entry.woken.set()

    def _gathered(self) -> Sequence[_Entry[_T]]:
        """All that wait. Those who were answered last may be about to come again: a transaction for each of them would
        take longer than they do."""
        with self._changed:
            while len(self._waiting) < self._expected and self._changed.wait(_GAP_S):
                pass
            group, self._waiting = self._waiting, []
            return group

    def _commit(self, group: Sequence[_Entry[_T]]) -> None:
        try:
            errors = self._write([entry.item for entry in group])
        except BaseException as error:  # noqa: BLE001 - raised by each `add`
            if len(group) > 1 and not self._is_outage(error):
                for entry in group:
                    self._commit([entry])
                return
            errors = [error] * len(group)
        for entry, refused in zip(group, errors, strict=True):
            entry.error, entry.settled = refused, True
