"""Usage readings, the output of nvidia-smi, and their errors."""

import os
import stat
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from trainyard_agent.engines.fake import FakeHost, FakeRuntime, Script
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.monitoring.nvidia_smi import NotMeasured, NvidiaSmi
from trainyard_agent.monitoring.usage_reporter import UsageReporter
from trainyard_agent.runtimes.base import Launch
from trainyard_agent.runtimes.use import ReplicaUse, UseMeter, parse_gpus
from trainyard_protocol.answers.usage import GpuUsage, UsageSample
from trainyard_protocol.wire.sync import ReplicaOrder, RunOrder
from unit.agent.stub_server import StubServer, run_order

RUN = "1" * 32
CHIEF, WORKER = "master-replica-0", "worker-replica-0"
MIB = 1 << 20


def test_cores_are_the_cpu_time_between_two_readings_over_the_time_between_them() -> None:
    readings: list[tuple[str, float, float, float | None]] = [
        ("a", 100.0, 7.0, None),
        ("a", 105.0, 17.0, 2.0),
        ("b", 105.0, 50.0, None),  # of another replica
        ("a", 110.0, 17.0, 0.0),
        ("a", 115.0, 4.0, 0.0),  # a count that goes back is no use
        ("a", 115.0, 8.0, None),  # and no time no reading
        ("a", 120.0, 9.0, 1.0),
    ]
    meter = UseMeter()
    assert [(key, at, cpu_s, meter.cores(key, at, cpu_s)) for key, at, cpu_s, _ in readings] == readings
    meter.keep({"a"})
    assert (meter.cores("a", 125.0, 14.0), meter.cores("b", 125.0, 60.0)) == (1.0, None)


def test_gpus_are_read_in_shares_and_bytes_as_far_as_the_driver_can_tell() -> None:
    table = {
        "GPU-aa, 37, 1024, 15360\nGPU-bb, 0, 3, 15360\n": [
            GpuUsage(id="GPU-aa", utilization=0.37, memory_bytes=1024 * MIB, memory_total=15360 * MIB),
            GpuUsage(id="GPU-bb", utilization=0.0, memory_bytes=3 * MIB, memory_total=15360 * MIB),
        ],
        "": [],
        "No devices were found\n": [],
        "GPU-aa, [N/A], [N/A], [N/A]\n": [GpuUsage(id="GPU-aa")],
        "GPU-aa, [Not Supported], 5, 10\n": [GpuUsage(id="GPU-aa", memory_bytes=5 * MIB, memory_total=10 * MIB)],
        "GPU-aa, 250, 5, 10\nrubbish\n": [
            GpuUsage(id="GPU-aa", utilization=1.0, memory_bytes=5 * MIB, memory_total=10 * MIB)
        ],
    }
    assert {output: list(parse_gpus(output).values()) for output in table} == table


def smi(directory: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the driver's name that does this."""
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


def test_driver_that_fails_or_is_gone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, "echo Unable to determine the device handle; exit 15", monkeypatch)
    with pytest.raises(NotMeasured, match="exit status 15"):
        NvidiaSmi().measure()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotMeasured, match="nvidia-smi was removed"):
        NvidiaSmi().measure()


def test_driver_that_hangs_is_given_up_and_asked_again_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, "exec sleep 600", monkeypatch)
    devices = NvidiaSmi(limit_s=0.05)
    with pytest.raises(NotMeasured, match="not answered within"):
        devices.measure()
    smi(tmp_path, 'echo "GPU-aa, 5, 1, 2"', monkeypatch)
    devices._limit_s = 30

    def answers() -> bool:
        try:
            return set(devices.measure()) == {"GPU-aa"}
        except NotMeasured:  # it was killed, and the kernel takes its time
            return False

    deadline = time.monotonic() + 60
    while not answers():
        assert time.monotonic() < deadline


class Busy:
    """A driver whose GPUs are all half busy."""

    def __init__(self) -> None:
        self.calls = 0
        self.error = ""

    def measure(self) -> Mapping[str, GpuUsage]:
        self.calls += 1
        if self.error:
            raise NotMeasured(self.error)
        return {name: GpuUsage(id=name, utilization=0.5) for name in ("GPU-a", "GPU-b", "GPU-c")}


class Failing(FakeRuntime):
    """Cannot measure one task."""

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        if task == CHIEF:
            raise OSError("/proc is not there")
        return super().usage(run_id, task)


class Lab:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = StubServer()
        self.client = self.server.client()
        self.driver = Busy()
        self.host = FakeHost(self.clock, lambda _: Script(cores=1.5, memory_bytes=3 * MIB))
        self.runtime = FakeRuntime(self.host)
        self.reporter = UsageReporter(self.runtime, self.client, self.clock, self.driver)
        self.orders: list[RunOrder] = []

    def start(self, run_id: str, **gpus: tuple[str, ...]) -> None:
        tasks = {f"{name}-replica-0": ids for name, ids in gpus.items()}
        order = run_order(run_id, *tasks)
        replicas = [
            ReplicaOrder(task=task, machine_type="local-1", cpus=(), memory_bytes=1, gpus=ids)
            for task, ids in tasks.items()
        ]
        order = order.model_copy(update={"replicas": tuple(replicas)})
        self.orders.append(order)
        self.runtime.place(order)
        self.runtime.start(run_id, [Launch(task, ("x",), {}, (), 0) for task in tasks])

    async def measure(self, seconds: float = 5.0) -> list[UsageSample]:
        """The samples of one round."""
        self.clock.advance(seconds)
        before = len(self.server.samples)
        await self.reporter.report(
            self.orders, {order.run_id: self.runtime.observe(order.run_id) for order in self.orders}
        )
        return self.server.samples[before:]


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    lab = Lab()
    async with lab.client:
        yield lab


async def test_gpus_are_those_of_the_replica_and_the_driver_is_asked_once_a_round(lab: Lab) -> None:
    lab.start(RUN, master=("GPU-b",), worker=("GPU-a", "GPU-c"))
    samples = {s.task: [gpu.id for gpu in s.gpus] for s in await lab.measure()}
    assert samples == {CHIEF: ["GPU-b"], WORKER: ["GPU-a", "GPU-c"]}
    assert lab.driver.calls == 1


async def test_trouble_with_the_driver_is_said_once_and_the_rest_is_measured(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.start(RUN, master=("GPU-a",))
    lab.driver.error = "nvidia-smi ended with exit status 15."
    assert [s.gpus for s in [*await lab.measure(), *await lab.measure()]] == [(), ()]
    assert caplog.text.count("exit status 15") == 1
    lab.driver.error = ""
    assert [len(s.gpus) for s in await lab.measure()] == [1]


async def test_replica_that_cannot_be_measured_does_not_hide_the_others(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.reporter = UsageReporter(Failing(lab.host), lab.client, lab.clock, lab.driver)
    lab.start(RUN, master=(), worker=())
    assert [s.task for s in [*await lab.measure(), *await lab.measure()]] == [WORKER, WORKER]
    assert caplog.text.count("/proc is not there") == 1


async def test_slow_round_ends_and_who_was_left_out_comes_first_in_the_next(lab: Lab) -> None:
    class Slow(FakeRuntime):
        def usage(self, run_id: str, task: str) -> ReplicaUse | None:
            lab.clock.advance(3)
            return super().usage(run_id, task)

    lab.reporter = UsageReporter(Slow(lab.host), lab.client, lab.clock, lab.driver, limit_s=5)
    lab.start(RUN, master=(), worker=(), ps=(), evaluator=())
    seen = [[s.task.partition("-")[0] for s in await lab.measure()] for _ in range(2)]
    assert seen == [["master", "worker"], ["ps", "evaluator"]]
