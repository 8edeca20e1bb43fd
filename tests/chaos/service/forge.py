"""Starts servers and agents quickly: `python forge.py` loads them once, and forks for each that is asked for.

Each is a process of its own, which runs its own `main`; it only did not take two seconds to be loaded. What differs
from `python -m trainyard_server`: times that have no option are shorter (`knobs`), and the clock of the day, which
both take as an argument, is off by what stands in the file `clock` (seconds).

It speaks lines of JSON, one answer for each:

    {"start": "server" or "agent", "arguments": [...], "environment": {...},
     "log": FILE, "clock": FILE, "knobs": {...}}     its pid
    {"signal": PID, "number": N}                     whether it was alive
    {"status": PID}                                  its exit status; null while it lives

With the end of its input it kills all that is left.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import sys
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from quick_watchdog import quick_command  # type: ignore[import-not-found]  # beside this program

import trainyard_agent.agent
import trainyard_agent.host.clock
import trainyard_agent.lease.watchdog_files
import trainyard_agent.main
import trainyard_agent.server_client
import trainyard_server.app
import trainyard_server.main
from trainyard_agent.host.clock import SystemClock
from trainyard_server.storage.db.base import engine

IDLE_MS = 1500
"""PostgreSQL then ends a transaction of a server that stands still."""

_statuses: dict[int, int | None] = {}


class ShiftedClock(SystemClock):
    """The system's time of day plus what stands in a file; time that passes is nobody's to move."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(self._path.read_text() or 0))


def main() -> None:
    for text in sys.stdin:
        order = json.loads(text)
        _bury()
        if "start" in order:
            answer: object = _start(order)
        elif "signal" in order:
            answer = _statuses[order["signal"]] is None
            if answer:
                os.kill(order["signal"], order["number"])
        else:
            answer = _statuses[order["status"]]
        print(json.dumps(answer), flush=True)
    for pid in [pid for pid, status in _statuses.items() if status is None]:
        os.kill(pid, signal.SIGKILL)


def _bury() -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            _statuses[found[0]] = os.waitstatus_to_exitcode(found[1])


def _start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(order)
    _statuses[pid] = None
    return pid


def _become(order: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        os.setsid()
        os.environ.update(order["environment"])
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        clock = ShiftedClock(Path(order["clock"]))
        become = _server if order["start"] == "server" else _agent
        status = become(order["arguments"], clock, order["knobs"])
    except BaseException:  # noqa: BLE001 - a child that went on would be a second forge
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _server(arguments: list[str], clock: ShiftedClock, knobs: dict[str, Any]) -> int:
    setattr(  # noqa: B010 - what main imports from elsewhere
        trainyard_server.main,
        "create_app",
        lambda settings: trainyard_server.app.create_app(dataclasses.replace(settings, **knobs), clock.now),
    )
    setattr(engine, "_IDLE_MS", IDLE_MS)  # noqa: B010 - likewise
    return trainyard_server.main.main(arguments)


def _agent(arguments: list[str], clock: ShiftedClock, knobs: dict[str, Any]) -> int:
    for name, value in knobs.items():
        path, _, constant = name.rpartition(".")
        module = importlib.import_module(f"trainyard_agent.{path}")
        assert hasattr(module, constant), name
        setattr(module, constant, value)
    trainyard_agent.lease.watchdog_files.command = quick_command
    setattr(trainyard_agent.main, "SystemClock", lambda: clock)  # noqa: B010 - likewise
    return trainyard_agent.main.main(arguments)


if __name__ == "__main__":
    main()
