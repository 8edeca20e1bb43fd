"""What replicas use, as their agents measure it.

`POST /agent/v1/usage` takes a `UsageBatch` and answers with a `UsageReceipt`. Measurements decide nothing: a batch that
is lost is not sent again, and a server that does not know the path is left alone.
"""

from typing import Annotated

from pydantic import AwareDatetime, Field

from trainyard_protocol.sync import Wire

Bytes = Annotated[int, Field(ge=0, lt=1 << 63)]
Cores = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class GpuUsage(Wire):
    """One device. `id` is the driver's; `utilization` is the share of the time in which it computed, over the driver's
    own short window, None where the driver cannot tell. The memory is that of all who use the device."""

    id: str
    utilization: Share | None = None
    memory_bytes: Bytes = 0
    memory_total: Bytes = 0


class UsageSample(Wire):
    """What one replica uses. `time` is its machine's clock. `cpu` is how many cores were busy with it, on average since
    the sample before; None in the first one. `memory_bytes` is resident: of all its processes together, or of its
    container without the pages that the kernel may drop at once."""

    run_id: str
    task: str
    time: AwareDatetime
    cpu: Cores | None = None
    memory_bytes: Bytes = 0
    gpus: tuple[GpuUsage, ...] = ()


class UsageBatch(Wire):
    samples: tuple[UsageSample, ...]


class UsageReceipt(Wire):
    """How many of the samples were taken: those of replicas that the server knows and whose run is not over."""

    taken: int


class GpuSeries(Wire):
    """One device over the times of its `UsageSeries`. None: not known then."""

    utilization: tuple[float | None, ...]
    memory_bytes: tuple[int | None, ...]
    memory_total: int = 0


class UsageSeries(Wire):
    """What one replica used over time, the oldest first. `cpus` and `memory_given` (bytes) are what it was given.
    A value stands for the time since the one before: CPU and utilization are means, memory is the most."""

    task: str
    cpus: int
    memory_given: int
    time: tuple[AwareDatetime, ...] = ()
    cpu: tuple[float | None, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    gpus: dict[str, GpuSeries] = Field(default_factory=dict)


class UsageView(Wire):
    """One run's replicas, the primary first. `run` 0: the job has had none."""

    project: str
    job_id: str
    run: int = 0
    replicas: tuple[UsageSeries, ...] = ()
