"""How long an agent may go on without its server.

After the lease the server may start a run on another machine, so by then nothing of it may live here. An
agent that restarts remembers when it last heard of the server.
"""

from datetime import datetime
from pathlib import Path

from trainyard_agent.clock import Clock
from trainyard_agent.files import read_json, write_json

_MARGIN_S = 5.0  # for killing, and for clocks that differ


class Lease:
    """Counts from the moment when the last answered request was *sent*: the server's count began later.

    `path` is where it is remembered; without one, it is not.
    """

    def __init__(self, clock: Clock, path: Path | None = None) -> None:
        self._clock = clock
        self._path = path
        self._lease_s: float | None = None
        self._heard = clock.monotonic()
        known = read_json(path) if path else None
        if known is not None:
            self._lease_s = float(known["lease_s"])
            age = (clock.now() - datetime.fromisoformat(known["heard_at"])).total_seconds()
            self._heard -= max(0.0, age)

    def renew(self, sent: float, lease_s: float | None) -> None:
        """The server answered a request that was sent at `sent` (monotonic). None: the lease never ends."""
        self._heard, self._lease_s = sent, lease_s
        if self._path is None:
            return
        if lease_s is None:
            self._path.unlink(missing_ok=True)
        else:
            write_json(self._path, {"lease_s": lease_s, "heard_at": self._clock.now().isoformat()})

    def is_over(self, grace_s: float) -> bool:
        """Whether a run with this grace must be stopped now, so that it is gone when the lease ends.

        However long the grace, half of the lease is always left for the server to come back in.
        """
        if self._lease_s is None:
            return False
        allowed = max(self._lease_s - grace_s - _MARGIN_S, self._lease_s / 2)
        return self._clock.monotonic() - self._heard >= allowed
