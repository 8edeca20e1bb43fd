"""Attachments to containers: what they have started is found by a variable and ended with them.

An engine lets a command go on whose caller is gone, and what it has started after its end. A file of the replica tells
the next agent of each attachment that an agent leaves when it is killed.
"""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from trainyard_agent.engines.docker.run_files import AttachmentKey, RunFiles
from trainyard_agent.engines.docker.streams.exec_attachment import ExecAttachment
from trainyard_agent.host import process_tags, procfs
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.runtimes.attaching.guard import HANG_UP_S
from trainyard_agent.runtimes.attaching.inside_end import end_command
from trainyard_agent.runtimes.base import EngineUnavailable
from trainyard_protocol.wire.attachments import Terminal

if TYPE_CHECKING:
    from trainyard_agent.engines.docker.client import DockerClient

_PAUSE_S, _KILL_S = 0.05, 10.0
_log = logging.getLogger(__name__)


class ContainerAttachments:
    def __init__(self, engine: "DockerClient", files: RunFiles) -> None:
        self._engine, self._files = engine, files

    def start(
        self,
        replica: tuple[str, str],
        container: str,
        command: Sequence[str],
        terminal: Terminal | None,
        *,
        leaves: bool,
    ) -> ExecAttachment:
        """Start a command in a container. `leaves`: it may leave processes. Raises EngineUnavailable."""
        attachment = process_tags.new_attachment()
        key = (*replica, attachment)

        def end(is_running: bool) -> None:
            if is_running or leaves:
                self._end(key, container, HANG_UP_S)
            else:
                self._files.forget_attachment(key)

        try:
            self._files.note_attachment(key)
        except OSError as error:  # somebody may attach to a full disk to make room on it
            _log.warning("the next agent does not find an attachment to container %s: %s", container[:12], error)
        variables = {process_tags.ATTACHMENT: attachment}
        try:
            return self._engine.start_exec(container, command, terminal, variables, end)
        except EngineUnavailable:
            self._end(key, container, 0.0)  # it may have started
            raise

    def end_left(self, container_of: Callable[[str, str], str | None], pool: Executor) -> None:
        """End what an agent that was killed has left. `container_of` returns the container of a replica that runs."""
        for key in self._files.attachments():
            container = container_of(*key[:2])
            if container is None:
                self._files.forget_attachment(key)
            else:
                pool.submit(self._end, key, container, 0.0)

    def _end(self, key: AttachmentKey, container: str, grace_s: float) -> None:
        """End all processes of an attachment. What cannot be ended now is left to the next agent."""
        try:
            if self._is_seen(container):
                _end_from_here(key[-1], grace_s)
            else:
                self._engine.start_exec(container, end_command(key[-1], int(grace_s)), None).wait()
        except (EngineUnavailable, OSError, process_tags.StillAlive) as error:
            _log.warning("what an attachment has started in container %s cannot be ended: %s", container[:12], error)
        else:
            self._files.forget_attachment(key)

    def _is_seen(self, container: str) -> bool:
        """Whether the processes of a container, and their variables, are seen from here; so they are once it ended."""
        info = self._engine.inspect(container)
        first = int(info["State"]["Pid"]) if info is not None else 0
        if not first:
            return True
        try:
            with open(f"/proc/{first}/environ", "rb") as file:  # noqa: PTH123
                file.read(1)
        except OSError:
            return False
        return os.geteuid() == 0 and procfs.is_in_container(first, container)


def _end_from_here(attachment: str, grace_s: float) -> None:
    """Raises OSError, StillAlive."""

    def find() -> list[int]:
        return sorted({pid for marked in process_tags.attached(attachment) for pid in procfs.tree(marked)})

    for pid in find():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not find(), deadline_in(grace_s), _PAUSE_S)
    process_tags.kill_until_gone(find, f"attachment {attachment}", _KILL_S)
