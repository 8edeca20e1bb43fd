"""Health of the service and findings of `trainyard doctor`: in short at `/healthz`, in full for admins.

`/healthz` is open to all: the `message` of a check names no job, path or host. Findings may: they need the admin token
or access to the machine.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal

from trainyard_protocol.message import Wire


class CheckStatus(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"  # jobs run, but something needs attention
    DOWN = "down"  # jobs are not accepted or do not run


class Check(Wire):
    """`message` is what is wrong, `advice` a sentence about what to do; "" where that depends."""

    status: CheckStatus
    message: str
    advice: str = ""
    latency_ms: float | None = None
    free_bytes: int | None = None


class Health(Wire):
    """The checks; `status` is the worst of theirs."""

    status: CheckStatus
    checks: dict[str, Check]


class Finding(Wire):
    """A finding of the doctor. `found` is the result; for a problem, `meaning` has its consequence, `advice` the
    remedy, and `command` what to type, if that is enough: a line of a shell of the machine that it is about."""

    check: str
    status: Literal["ok", "problem", "unknown"]
    found: str
    meaning: str = ""
    advice: str = ""
    command: str = ""


class ServerHealth(Health):
    """Health for admins. `time` is the server's clock; `live_runs` are the runs that have not ended, None without the
    database; `findings` are those of the doctor, if requested."""

    version: str
    time: datetime
    live_runs: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()


def worst(statuses: Iterable[CheckStatus]) -> CheckStatus:
    order = list(CheckStatus)
    return max(statuses, key=order.index, default=CheckStatus.OK)
