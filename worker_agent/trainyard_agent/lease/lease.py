"""How long an agent may go on without its server.

After the lease the server may start a run on another machine, so by then nothing of it may live here. An
agent that restarts remembers when it last heard of the server, and a fence (`fence.py`) keeps the lease where no
agent does.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trainyard_agent.host.clock import Clock
from trainyard_agent.host.files import DamagedFile
from trainyard_agent.lease import lease_file
from trainyard_agent.lease.lease_file import Grant
from trainyard_protocol import __version__

_log = logging.getLogger(__name__)


class Lease:
    """Counts from the moment when the last answered request was *sent*: the server's count began later.

    `path` is where it is remembered; without one, it is not. `on_grant` is called whenever there is a lease that is
    remembered, so that somebody watches over it.
    """

    def __init__(
        self, clock: Clock, path: Path | None = None, on_grant: Callable[[], None] = lambda: None
    ) -> None:
        self._clock = clock
        self._path = path
        self._on_grant = on_grant
        self._boot_id = lease_file.boot_id()
        self._written = _known(path)
        self._grant: Grant | None = None
        if self._written is not None and self._written.boot_id == self._boot_id:
            # One of an earlier boot is over, and so is all that ran under it.
            try:
                self._remember(replace(self._written, version=__version__))
            except OSError as error:
                _log.warning("nobody else watches over the lease: %s", error)

    def renew(self, sent: float, lease_s: float | None) -> None:
        """The server answered a request that was sent at `sent` (monotonic). None: the lease never ends.

        Raises OSError where that cannot be remembered; it holds all the same.
        """
        if lease_s is not None:
            self._remember(Grant(lease_s, sent, self._boot_id, __version__))
            return
        self._grant = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._written = None

    def is_over(self, grace_s: float) -> bool:
        """Whether a run with this grace must be stopped now, so that it is gone when the lease ends."""
        return self._grant is not None and self._clock.monotonic() >= self._grant.stop_at(grace_s)

    def grace_left(self, grace_s: float) -> float:
        """What is left of the grace of a run whose lease is over: less, where nobody was awake to stop it in time."""
        if self._grant is None:
            return grace_s
        return min(grace_s, max(0.0, self._grant.stop_at(grace_s) + grace_s - self._clock.monotonic()))

    def _remember(self, grant: Grant) -> None:
        self._grant = grant
        if self._path is None:
            return
        if self._is_news(grant):
            lease_file.write(self._path, grant)
            self._written = grant
        self._on_grant()

    def _is_news(self, grant: Grant) -> bool:
        """Whether the file says too little: who reads it acts later than this agent in any case."""
        known = self._written
        if known is None or (known.lease_s, known.boot_id, known.version) != (
            grant.lease_s,
            grant.boot_id,
            grant.version,
        ):
            return True
        return grant.heard - known.heard >= grant.later_s / 2


def _known(path: Path | None) -> Grant | None:
    try:
        return lease_file.read(path) if path else None
    except DamagedFile as error:
        _log.warning("%s: as if there were no lease until the server answers", error)
        return None
