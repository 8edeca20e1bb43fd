"""Resource usage of replicas, as measured by their agents.

`POST /agent/v1/usage` accepts a `UsageBatch` and returns a `UsageReceipt`. Scheduling does not depend on usage: a lost
batch is not sent again.
"""

from typing import Annotated

from pydantic import AwareDatetime, Field

from trainyard_protocol.message import Many, Wire

Bytes = Annotated[int, Field(ge=0, lt=1 << 63)]
Cores = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class GpuUsage(Wire):
    """One GPU. `id` is the driver's. `utilization` is the driver's, 0 to 1 over a short window; None if unknown. Memory
    is in bytes, of all users of the device."""

    id: str
    utilization: Share | None = None
    memory_bytes: Bytes = 0
    memory_total: Bytes = 0


class UsageSample(Wire):
    """Usage of one replica. `time`: its machine's clock. `cpu`: mean number of busy cores since the previous sample;
    None in the first. `memory_bytes`: resident memory of its processes, or of its container without page cache."""

    run_id: str
    task: str
    time: AwareDatetime
    cpu: Cores | None = None
    memory_bytes: Bytes = 0
    gpus: Many[GpuUsage] = ()


class UsageBatch(Wire):
    samples: Many[UsageSample]


class UsageReceipt(Wire):
    """Number of samples stored: those of known replicas whose run has not ended."""

    taken: int


class GpuSeries(Wire):
    """One GPU over the times of its `UsageSeries`. None: unknown at that time."""

    utilization: tuple[float | None, ...]
    memory_bytes: tuple[int | None, ...]
    memory_total: int = 0


class UsageSeries(Wire):
    """Usage of one replica over time, oldest first. `cpus` and `memory_given` (bytes) are its resources. A value covers
    the time since the previous one: the mean of CPU and utilization, the maximum of memory."""

    task: str
    cpus: int
    memory_given: int
    time: tuple[AwareDatetime, ...] = ()
    cpu: tuple[float | None, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    gpus: dict[str, GpuSeries] = Field(default_factory=dict)


class UsageView(Wire):
    """Usage of one run's replicas, the primary first. `run` is 0 if the job has had none."""

    project: str
    job_id: str
    run: int = 0
    replicas: tuple[UsageSeries, ...] = ()
