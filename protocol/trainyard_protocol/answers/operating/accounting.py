"""Reports of what runs used, by project, user, month or label (`/trainyard/v1/usage`)."""

from datetime import datetime

from trainyard_protocol.message import Wire


class UsageReportRow(Wire):
    """`keys`: a value for each group of the report. Hours are those of one CPU, or of one GPU. `idle_gpu_hours`: the
    part of the GPU-hours in which the GPU was used less than 5 %, as far as it was measured. `mean_wait_s`: how long
    jobs waited for their first run; None without one."""

    keys: tuple[str, ...]
    runs: int
    failed_runs: int
    cpu_hours: float
    gpu_hours: float
    idle_gpu_hours: float
    mean_wait_s: float | None = None


class UsageReport(Wire):
    """Runs that ended from `first_day` to `last_day` (UTC, both included), and those that run now. `groups`: the names
    of the keys of each row. The rows with the most GPU-hours, then CPU-hours, come first; months in their order."""

    first_day: str
    last_day: str
    groups: tuple[str, ...]
    rows: tuple[UsageReportRow, ...]
    total: UsageReportRow
    at: datetime
