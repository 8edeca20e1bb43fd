"""Two machines, one of which has no room: what starts where, what users are told, and how it goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.mounts import SmallDisk, small_disk
from beds.world import Machine, World
from trainyard_agent.engines.fake import FOREVER, Exit, FakeRuntime, Print, Script, by_module
from trainyard_agent.host.files import write_json
from trainyard_agent.monitoring.disk_watch import DiskWatch
from trainyard_agent.runtimes.base import Handle, StartFailed
from trainyard_protocol.states import JobState, Reason
from trainyard_protocol.wire.sync import RunOrder
from trainyard_server.domain.scheduling.avoidance import AVOIDED_FOR

PROGRAMS = by_module(
    {
        "forever.task": {"*": FOREVER},
        "fails.task": {"*": Script(((0.0, Print("OSError: No space left on device")), (1.0, Exit(1))))},
    }
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


class WritesFirst(FakeRuntime):
    """A runtime that writes a file to a disk before each start, as the real ones do."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        super().__init__(machine.host)
        self._directory = directory

    def place(self, order: RunOrder) -> Handle:
        try:
            write_json(self._directory / order.run_id, {"run": "x" * 4096})
        except OSError as error:
            words = f"There is no room for it: {error}."
            raise StartFailed(order.replicas[0].task, words, Reason.HOST_FAILED) from error
        return super().place(order)


def on_disk(world: World, name: str, disk: SmallDisk) -> Machine:
    """A machine whose state is on that disk, and which is filled before others."""
    machine = world.machine(name, PROGRAMS, cpus=1)
    machine.runtime = WritesFirst(machine, disk.path)
    machine.disks = DiskWatch([disk.path])
    machine.disks.look()
    machine.boot()
    return machine


async def agents_of(world: World, job_id: str) -> list[str]:
    """The agents of its runs, in their order."""
    return [run.agent for run in (await world.detail(job_id)).runs]


async def test_job_of_a_machine_without_room_runs_on_another_and_there_again_when_it_has_room(
    world: World, disk: SmallDisk
) -> None:
    full = on_disk(world, "a-full", disk)
    world.machine("b-healthy", PROGRAMS, cpus=1)
    await world.settle()

    disk.fill()  # since the agent last looked
    await world.begin("first", module="forever.task")
    world.clock.advance(2)  # the backoff
    await world.settle()

    detail = await world.detail("first")
    assert detail.state is JobState.RUNNING
    assert await agents_of(world, "first") == ["a-full", "b-healthy"]
    verdict = detail.runs[0].verdict
    assert verdict is not None
    assert verdict.reason is Reason.HOST_FAILED
    assert f"{disk.path} is full (No space left on device), 0 B are free" in verdict.message

    await world.begin("second", module="forever.task")
    assert (await world.detail("second")).state is JobState.QUEUED
    assert await agents_of(world, "second") == [], "nothing is tried on the machine that said it has no room"
    why = (await world.call("GET", "/trainyard/v1/projects/p/jobs/second/why")).json()
    lacks = {one["agent"]: one["lacks"] for one in why["agents"]}
    assert lacks["a-full"] == f"no room on its disk: {disk.path} is full (No space left on device), 0 B are free"
    assert "room on the disk of agent a-full" in " ".join(change["message"] for change in why["changes"])
    health = (await world.call("GET", "/healthz")).json()
    assert health["checks"]["agents"]["status"] == "degraded"
    assert "1 of them start nothing: no room on a disk" in health["checks"]["agents"]["message"]
    assert "Nothing starts here until there is room" in (await world.call("GET", "/cluster")).text

    disk.free()
    full.disks.look()
    await world.settle()
    assert await agents_of(world, "second") == ["a-full"]
    assert (await world.detail("second")).state is JobState.RUNNING


async def test_job_waits_for_the_only_machine_until_it_can_be_written_again(world: World, disk: SmallDisk) -> None:
    only = on_disk(world, "laptop", disk)
    disk.forbid_writes()
    only.disks.look()
    await world.settle()
    await world.begin("j", module="forever.task")

    detail = await world.detail("j")
    assert (detail.state, detail.runs) == (JobState.QUEUED, ())
    assert detail.waiting == (
        f"needs room on a disk: on agent laptop {disk.path} cannot be written (Read-only file system), 16.8 MB are free"
    )
    disk.allow_writes()
    only.disks.look()
    await world.settle()
    assert (await world.detail("j")).state is JobState.RUNNING


async def test_program_that_fails_on_a_full_disk_is_told_that_this_may_be_why(world: World, disk: SmallDisk) -> None:
    on_disk(world, "laptop", disk)
    await world.settle()
    await world.begin("j", module="fails.task")
    disk.fill()
    world.clock.advance(2)
    await world.settle()

    detail = await world.detail("j")
    assert detail.state is JobState.FAILED
    message = str(detail.job["errorMessage"])
    full = f"When it ended, {disk.path} is full (No space left on device), 0 B are free, which may be why."
    assert message.startswith(f"The replica master 0 exited with a non-zero status of 1. {full}")


async def test_job_returns_to_the_machine_that_failed_it_when_no_other_had_room_for_long(world: World) -> None:
    """A machine whose disks have room, and which starts nothing all the same."""

    class Fails(FakeRuntime):
        is_broken = True

        def place(self, order: RunOrder) -> Handle:
            if self.is_broken:
                raise StartFailed(order.replicas[0].task, "Its fork failed.", Reason.HOST_FAILED)
            return super().place(order)

    broken = world.machine("a-broken", PROGRAMS, cpus=1)
    runtime = broken.runtime = Fails(broken.host)
    broken.boot()
    await world.settle()
    other = world.machine("b-busy", PROGRAMS, cpus=1)
    await other.step()
    await world.begin("busy", module="forever.task", masterType="local-1")
    world.clock.advance(2)
    await world.settle()
    assert await agents_of(world, "busy") == ["a-broken", "b-busy"]

    await world.begin("j", module="forever.task")
    world.clock.advance(2)
    await world.settle()
    assert await agents_of(world, "j") == ["a-broken"]
    detail = await world.detail("j")
    assert "; agent a-broken, on which its last run failed, is avoided until " in detail.waiting

    runtime.is_broken = False
    for _ in range(int(AVOIDED_FOR.total_seconds() // 20)):  # no agent becomes silent
        world.clock.advance(20)
        await world.settle(1)
    await world.settle()
    assert await agents_of(world, "j") == ["a-broken", "a-broken"]
    assert (await world.detail("j")).state is JobState.RUNNING
