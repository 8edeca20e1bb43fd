"""Group commit: what waits together is written together, and each item has its own error."""

import threading
import time
from collections.abc import Callable, Sequence

from trainyard_server.services.jobs.group_commit import GroupCommit


class Outage(Exception):
    pass


class Writes:
    """Records the groups that are written. The first one waits until `others` threads have brought theirs."""

    def __init__(self, broken: Callable[[Sequence[int]], BaseException | None] = lambda _: None) -> None:
        self.groups: list[list[int]] = []
        self._broken = broken
        self._started, self._go_on = threading.Event(), threading.Event()
        self._commits = GroupCommit(self._write, is_outage=lambda error: isinstance(error, Outage))

    def run(self, *items: int) -> dict[int, BaseException | None]:
        """Errors that `add` raises, by item. Those after the first wait together."""
        errors: dict[int, BaseException | None] = {}

        def add(item: int) -> None:
            try:
                self._commits.add(item)
                errors[item] = None
            except (ValueError, KeyError, Outage) as error:
                errors[item] = error

        threads = [threading.Thread(target=add, args=(item,), daemon=True) for item in items]
        threads[0].start()
        assert self._started.wait(60)
        for thread in threads[1:]:
            thread.start()
        deadline = time.monotonic() + 60
        while len(self._commits._waiting) < len(items) - 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        self._go_on.set()
        for thread in threads:
            thread.join(60)
        return errors

    def _write(self, group: Sequence[int]) -> list[BaseException | None]:
        self._started.set()
        assert self._go_on.wait(60)
        self.groups.append(sorted(group))
        if error := self._broken(group):
            raise error
        return [ValueError(item) if item < 0 else None for item in group]


def test_items_that_wait_are_written_together_and_a_refusal_is_of_one_alone() -> None:
    writes = Writes()
    errors = writes.run(1, 2, -3, 4, 5)
    assert writes.groups == [[1], [-3, 2, 4, 5]]
    assert {item for item, error in errors.items() if error} == {-3}


def test_item_that_cannot_be_written_fails_alone() -> None:
    writes = Writes(lambda group: KeyError(4) if 4 in group else None)
    errors = writes.run(1, 2, 3, 4)
    assert writes.groups[:2] == [[1], [2, 3, 4]]
    assert sorted(writes.groups[2:]) == [[2], [3], [4]]
    assert {item for item, error in errors.items() if error} == {4}
