"""Disk limit of replicas in containers.

An engine limits the writable layer of a container on few file systems only, so it is measured here, and a container
beyond the limit is killed.
"""

import logging
import threading
import time
from collections.abc import Mapping

from trainyard_agent.engines.docker.client import DockerClient, EngineError
from trainyard_agent.engines.docker.run_files import Key, RunFiles
from trainyard_agent.runtimes.exits import beyond_disk_limit
from trainyard_protocol.states import Reason

MEASURE_S = 10.0
"""Between two measurements of all containers."""

_log = logging.getLogger(__name__)


class DiskLimit:
    """Kills replicas whose containers hold more than `limit_bytes`; 0: none."""

    def __init__(self, engine: DockerClient, files: RunFiles, limit_bytes: int) -> None:
        self._engine = engine
        self._files = files
        self._limit_bytes = limit_bytes
        self._measuring = threading.Lock()
        self._next = 0.0

    def check(self, running: Mapping[Key, str]) -> None:
        """Measure these containers, given by id, in a thread of its own; nothing if it is not time yet, or while the
        last measurement lasts."""
        if not self._limit_bytes or not running or time.monotonic() < self._next:
            return
        if self._measuring.acquire(blocking=False):
            self._next = time.monotonic() + MEASURE_S
            threading.Thread(target=self._measure, args=(dict(running),), daemon=True).start()

    def _measure(self, running: Mapping[Key, str]) -> None:
        try:
            for (run_id, task), container in running.items():
                try:
                    if self._engine.disk_bytes(container) > self._limit_bytes:
                        _log.warning("killing %s of run %s: it exceeds its disk limit", task, run_id)
                        self._files.save_kill(run_id, task, Reason.OUT_OF_DISK, beyond_disk_limit(self._limit_bytes))
                        self._engine.kill(container)
                except (EngineError, OSError) as error:
                    _log.warning("the disk usage of %s of run %s is unknown: %s", task, run_id, error)
        finally:
            self._next = time.monotonic() + MEASURE_S
            self._measuring.release()
