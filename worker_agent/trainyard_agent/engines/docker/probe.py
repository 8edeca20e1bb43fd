"""Probe of the container engine, polled in a thread of its own: an engine may start later, end, or hang."""

import contextlib
import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass, replace

from trainyard_agent.engines.docker.client import DockerClient, EngineDown, EngineError, EngineInfo
from trainyard_agent.host import disk

POLL_S = 2.0
"""Between two requests to the engine."""

ANSWER_S = 20.0
"""An engine that needs longer to answer counts as away: it hangs."""

_ADVICE = {"Permission denied": "Permission denied: this user must join the group of that socket, usually docker"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineState:
    """The result of the last poll. `info` and `images` are from the last answer, None and empty before the first;
    `problem` is why the engine does not answer now, or has no room for containers, or ""."""

    info: EngineInfo | None = None
    images: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def about(self) -> str:
        return f"Docker engine {self.info.version}" if self.info is not None else ""


class EngineProbe:
    """Polls an engine, also for which of the `images` it has. `engine` should time out after ANSWER_S."""

    def __init__(self, engine: DockerClient, images: Collection[str] = (), reserve: int = 0) -> None:
        """`reserve`: bytes that its disk keeps free."""
        self.engine = engine
        self._images = images
        self._reserve = reserve
        self._closed = threading.Event()
        self.state = EngineState()
        """Replaced as a whole, so any thread may read it."""

    def poll(self) -> EngineState:
        """Ask the engine once."""
        before = self.state
        try:
            if before.info is None or before.problem:
                info = self.engine.about()
            else:
                self.engine.ping()
                info = before.info
            images = frozenset(name for name in self._images if self.engine.image(name) is not None)
            self.state = EngineState(info, images, disk.shortage(info.root, self._reserve))
        except EngineError as error:
            problem = f"the Docker engine at {self.engine.url} refuses: {error.message}"
            if isinstance(error, EngineDown):
                cause = f" ({_ADVICE.get(error.cause, error.cause)})" if error.cause else ""
                problem = f"no Docker engine answers at {self.engine.url}{cause}"
            self.state = replace(before, problem=problem)
        if (self.state.about, self.state.problem) != (before.about, before.problem):
            _log.info("%s", self.state.problem or f"{self.state.about} answers at {self.engine.url}")
        return self.state

    def start(self) -> None:
        threading.Thread(target=self._run, name="engine-probe", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(POLL_S):
            with contextlib.suppress(Exception):  # a bug here must not end the polling
                self.poll()
