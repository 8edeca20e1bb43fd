"""How the service stands, and what `trainyard doctor` found: for the open `/healthz`, and in full for admins.

`/healthz` is open: a check's `message` names no job, no path and no host. Findings may: they need the admin token,
or are made on the machine itself.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal

from trainyard_protocol.sync import Wire


class CheckStatus(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"  # jobs run, but something is to be seen to
    DOWN = "down"  # nothing can be taken or run as long as it is so


class Check(Wire):
    status: CheckStatus
    message: str
    latency_ms: float | None = None
    free_bytes: int | None = None


class Health(Wire):
    """`status` is that of the worst check."""

    status: CheckStatus
    checks: dict[str, Check]


class Finding(Wire):
    """One thing that was looked at. `found` says how it stands; for a problem, `meaning` says what that brings about
    and `advice` what to do. `fixable`: `trainyard doctor --fix` mends it."""

    check: str
    status: Literal["ok", "problem", "fixed", "unknown"]
    found: str
    meaning: str = ""
    advice: str = ""
    fixable: bool = False


class ServerHealth(Health):
    """For admins. `time` is the server's clock; `live_runs` are the runs that are not over, None where the database
    could not say; `findings` are only there where they were asked for."""

    version: str
    time: datetime
    live_runs: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()


def worst(statuses: Iterable[CheckStatus]) -> CheckStatus:
    order = list(CheckStatus)
    return max(statuses, key=order.index, default=CheckStatus.OK)


def sized(count: float) -> str:
    """Bytes for people, with the units of disks: `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
