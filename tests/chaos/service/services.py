"""The servers and agents of a history: processes that can be started, killed, paused and told to end."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos.plan import SCHEDULER_LEASE_S

SERVER_KNOBS: Mapping[str, Any] = {
    "backoff_first_s": 0.05,
    "backoff_max_s": 0.2,
    "grace_s": 0.6,
    "sync_wait_max_s": 1.0,
    "tick_s": 0.1,
    "scheduler_lease_s": SCHEDULER_LEASE_S,
    "ping_s": 0.5,
    "durable": False,
}
LEASE_S: Mapping[str, float] = {"process": 6.0, "docker": 20.0, "kubernetes": 6.0}
"""An agent is silent while it starts containers."""
SILENT_S: Mapping[str, float] = {"process": 1.5, "docker": 6.0, "kubernetes": 3.0}
RETRIES = 12
AGENT_KNOBS: Mapping[str, Any] = {
    "agent.HOLD_S": 1.0,
    "agent.WATCH_S": 0.05,
    "agent.SHIP_S": 0.05,
    "agent._FIRST_BACKOFF_S": 0.05,
    "agent._MAX_BACKOFF_S": 0.4,
    "monitoring.disk_watch.EVERY_S": 0.2,
    "server_client._CONNECT_S": 1.0,
    "server_client._ANSWER_S": 1.5,
}
CLUSTER_KNOBS: Mapping[str, Any] = {
    "engines.kubernetes.api.client._CALL_S": 2.0,
    "engines.kubernetes.api.client._RETRY_S": 0.1,
    "engines.kubernetes.pods.watch._RETRY_S": 0.1,
    "engines.kubernetes.pods.ends.SETTLE_S": 0.5,
    "engines.kubernetes.logs.logs._QUIET_S": 1.0,
    "engines.kubernetes.runtime._RETRY_S": 0.3,
    "engines.kubernetes.pods.removal._REMOVE_S": 5.0,
}
"""Of an agent of Kubernetes, besides."""
_PATIENCE_S = 60.0
_SOON_S = 10.0


class Forge:
    """`forge.py` as a process; see there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forge.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(self, order: Mapping[str, Any]) -> int:
        return int(self._ask(order))

    def signal(self, pid: int, number: int) -> bool:
        """False if it had ended."""
        return bool(self._ask({"signal": pid, "number": number}))

    def status(self, pid: int) -> int | None:
        """None while it lives."""
        answer = self._ask({"status": pid})
        return None if answer is None else int(answer)

    def close(self) -> None:
        self._process.communicate(timeout=_PATIENCE_S)

    def _ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


class Service:
    """One server or agent, which may be down or stand still for a while, one thing at a time."""

    def __init__(
        self,
        forge: Forge,
        kind: str,
        name: str,
        arguments: list[str],
        root: Path,
        knobs: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        *,
        may_end: bool = False,
    ) -> None:
        """`may_end`: it may end by itself, and something like systemd starts it again."""
        self.name = name
        self.log = root / f"{name}.log"
        self._clock = root / f"{name}.clock"
        self._forge = forge
        self._order = {
            "start": kind,
            "arguments": arguments,
            "log": str(self.log),
            "clock": str(self._clock),
            "knobs": dict(knobs),
            "environment": dict(environment or {}),
        }
        self._busy = threading.Lock()
        self._pid = 0
        self._may_end = may_end
        self.shift(0)

    @property
    def pid(self) -> int:
        return self._pid

    def start(self) -> None:
        self._pid = self._forge.start(self._order)

    def shift(self, seconds: float) -> None:
        """Its clock of the day, from now on."""
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._clock)

    def down(self, how: signal.Signals, down_s: float, when_down: Callable[[], None] = lambda: None) -> None:
        """It is killed, or told to end, and comes back after a while."""
        with self._busy:
            status = self.stop(how)
            when_down()
            is_fine = status in (-how, 0) or self._may_end  # it may not have listened yet
            assert is_fine, f"{self.name} ended with {status}"
            time.sleep(down_s)
            self.start()

    @contextmanager
    def away(self) -> Iterator[None]:
        """It is killed, and starts again after the block."""
        with self._busy:
            self.stop(signal.SIGKILL)
            yield
            self.start()

    def use(self, arguments: list[str]) -> None:
        """Start with these arguments from now on."""
        self._order["arguments"] = arguments

    def keep_up(self) -> None:
        """Start it again if it has ended by itself, as systemd does."""
        with self._busy:
            if self._forge.status(self._pid) is not None:
                self.start()

    def pause(
        self, for_s: float, is_ready: Callable[[], bool] = lambda: True, is_moment: Callable[[], bool] = lambda: True
    ) -> None:
        """Let it stand still for a while once it is ready, from a moment on that is asked for while it does, if that
        comes soon."""
        with self._busy:
            give_up_at = time.monotonic() + _SOON_S
            while not is_ready() and time.monotonic() < give_up_at:
                time.sleep(0.05)
            self._signal(signal.SIGSTOP)
            while not is_moment() and time.monotonic() < give_up_at:
                self._signal(signal.SIGCONT)
                time.sleep(0.01)
                self._signal(signal.SIGSTOP)
            time.sleep(for_s)
            self._signal(signal.SIGCONT)

    def stop(self, how: signal.Signals) -> int:
        """Its exit status. One that does not end is killed: -9."""
        self._signal(how)
        give_up_at = time.monotonic() + _PATIENCE_S
        while (status := self._forge.status(self._pid)) is None:
            if time.monotonic() > give_up_at:
                self._forge.signal(self._pid, signal.SIGKILL)
            time.sleep(0.01)
        return status

    def kill(self) -> None:
        """Kill it after a history that failed, whatever became of it."""
        if self._pid:
            self._forge.signal(self._pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        alive = self._forge.signal(self._pid, number)
        if not alive and self._may_end:
            self.start()
            alive = self._forge.signal(self._pid, number)
        assert alive, f"{self.name} ended by itself with {self._forge.status(self._pid)}: see {self.log}"
