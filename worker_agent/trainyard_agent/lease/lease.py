"""The agent's lease: how long its replicas may run without an answer of the server.

After the lease the server may start a run on another machine, so by then all its replicas here must be dead. The lease
is saved for an agent that restarts, and for the watchdog (`watchdog.py`), which enforces it when no agent does.
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
    """Counts from the time at which the last answered request was *sent*: the server's lease begins later.

    `path` is the file to save it to; None: it is not saved. `on_grant` is called after every renewal that is saved; it
    starts the watchdog.
    """

    def __init__(self, clock: Clock, path: Path | None = None, on_grant: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._path = path
        self._on_grant = on_grant
        self._boot_id = lease_file.boot_id()
        self._saved = _read_saved(path)
        self._grant: Grant | None = None
        if self._saved is not None and self._saved.boot_id == self._boot_id:
            # A lease of an earlier boot has ended with its replicas.
            try:
                self._save(replace(self._saved, version=__version__))
            except OSError as error:
                _log.warning("the lease is not saved or has no watchdog: %s", error)

    def renew(self, sent: float, lease_s: float | None) -> None:
        """Renew the lease from `sent` (monotonic), when the answered request was sent. None: it never expires. Raises
        OSError if it cannot be saved; it is renewed all the same."""
        if lease_s is not None:
            self._save(Grant(lease_s, sent, self._boot_id, __version__))
            return
        self._grant = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._saved = None

    def keep(self, since: float) -> None:
        """Renew the lease from `since` (monotonic), when a majority of its members had no answer of the server. Raises
        OSError as `renew` does."""
        if self._grant is not None and since > self._grant.renewed_at:
            self._save(replace(self._grant, renewed_at=since))

    def must_stop(self, grace_s: float) -> bool:
        """Whether a run with this grace must be stopped now."""
        return self.stop_in(grace_s) <= 0

    def stop_in(self, grace_s: float) -> float:
        """Seconds until a run with this grace must be stopped, so that it has ended when the lease expires; infinite
        without one."""
        return float("inf") if self._grant is None else self._grant.stop_at(grace_s) - self._clock.monotonic()

    def grace_left(self, grace_s: float) -> float:
        """The remaining grace in seconds: less than `grace_s` if the run was not stopped in time."""
        if self._grant is None:
            return grace_s
        return min(grace_s, max(0.0, self._grant.kill_at(grace_s) - self._clock.monotonic()))

    def _save(self, grant: Grant) -> None:
        self._grant = grant
        if self._path is None:
            return
        if self._needs_write(grant):
            lease_file.write(self._path, grant)
            self._saved = grant
        self._on_grant()

    def _needs_write(self, grant: Grant) -> bool:
        """Whether the saved lease is too old: the watchdog acts later than the agent in any case."""
        saved = self._saved
        if saved is None or (saved.lease_s, saved.boot_id, saved.version) != (
            grant.lease_s,
            grant.boot_id,
            grant.version,
        ):
            return True
        return grant.renewed_at - saved.renewed_at >= grant.watchdog_delay_s / 2


def _read_saved(path: Path | None) -> Grant | None:
    try:
        return lease_file.read(path) if path else None
    except DamagedFile as error:
        _log.warning("%s: treated as no lease until the server answers", error)
        return None
