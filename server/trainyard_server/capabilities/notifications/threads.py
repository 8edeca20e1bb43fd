"""Threads for calls that block and that nothing can stop, shared fairly by projects."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    project: str
    function: Callable[[], Any]
    result: "asyncio.Future[Any]"


class FairThreads:
    """At most `in_all` calls at the same time, and `of_project` of each project. Those that wait begin in turns by
    project.

    A caller may give a call up, whose thread counts until it ends. The threads are daemons, so none of them delays
    the end of the server. For one event loop.
    """

    def __init__(self, name: str, in_all: int, of_project: int) -> None:
        self._name = name
        self._in_all = in_all
        self._of_project = of_project
        self._waiting: list[_Call] = []
        self._running: Counter[str] = Counter()

    async def run(self, project: str, function: Callable[[], Result]) -> Result:
        """The result of the function, called in a thread once the project has a turn."""
        call = _Call(project, function, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        self._begin()
        try:
            result: Result = await call.result
            return result
        finally:
            if call in self._waiting:
                self._waiting.remove(call)

    def _begin(self) -> None:
        while (call := self._next()) is not None:
            self._waiting.remove(call)
            thread = threading.Thread(target=_make, args=(call, self._ended), name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the machine has no further thread
                call.result.set_exception(error)
            else:
                self._running[call.project] += 1

    def _next(self) -> _Call | None:
        if self._running.total() >= self._in_all:
            return None
        wanted = [call for call in self._waiting if not call.result.done()]
        free = [call for call in wanted if self._running[call.project] < self._of_project]
        return min(free, key=lambda call: self._running[call.project], default=None)

    def _ended(self, call: _Call, value: object, error: BaseException | None) -> None:
        self._running -= Counter((call.project,))  # without those that come to zero
        if not call.result.done():
            if error is None:
                call.result.set_result(value)
            else:
                call.result.set_exception(error)
        self._begin()


def _make(call: _Call, ended: Callable[[_Call, object, BaseException | None], None]) -> None:
    value, error = None, None
    try:
        value = call.function()
    except BaseException as raised:  # noqa: BLE001 - raised in the caller
        error = raised
    with suppress(RuntimeError):  # the loop has ended with the server
        call.result.get_loop().call_soon_threadsafe(ended, call, value, error)
