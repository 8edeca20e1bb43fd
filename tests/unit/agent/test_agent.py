"""The agent with a fake runtime, a stub server and a clock that stands still."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beds.agents import agent_of
from beds.run_ids import unique_run
from trainyard_agent.agent import HOLD_S, SHIP_S, WATCH_S, Agent
from trainyard_agent.control.log_shipper import MAX_BYTES, MAX_CHUNKS, SILENT_EVERY, SILENT_ROUNDS
from trainyard_agent.engines.fake import FOREVER, SUCCEEDS, Exit, FakeHost, FakeRuntime, Print, Script, by_module
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.lease.lease import Lease
from trainyard_agent.runtimes.base import EngineUnavailable, Handle, Launch, LogSlice, SecretFile, StartFailed
from trainyard_agent.staging.base import ReadyAtOnce
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.agents import RuntimeOffer
from trainyard_protocol.wire.sync import ExitReport, ReplicaReport, RunOrder, SyncRequest, SyncResponse
from unit.agent.stub_server import StubServer, agent_info

RUN, OTHER = unique_run("1"), unique_run("2")
CHIEF, WORKER = "master-replica-0", "worker-replica-0"
INFO = agent_info(replica_environment={"STORAGE_EMULATOR_HOST": "http://gcs", "TF_CONFIG": "not this one"})


class World:
    """One server, one machine, and agents that come and go."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = StubServer()
        self.host = FakeHost(self.clock, by_module({"trainer.task": {"*": SUCCEEDS}}))
        self.stager: ReadyAtOnce = ReadyAtOnce()
        self.info = INFO
        self.client = self.server.client()
        self.agent = self.new_agent()

    def use_real_time(self) -> None:
        self.clock = self.host.clock = RealTime()

    def programs(self, **by_type: Script) -> None:
        self.host.programs = by_module(
            {"trainer.task": {f"{name}-replica-0": script for name, script in by_type.items()}}
        )

    def new_agent(self, runtime: FakeRuntime | None = None, lease: Lease | None = None) -> Agent:
        runtime = runtime or FakeRuntime(self.host)
        self.agent = agent_of(runtime, self.client, self.stager, self.clock, lambda: self.info, lease)
        return self.agent

    async def begin(self, *tasks: str, run_id: str = RUN, **training_input: Any) -> None:
        """Order a run, and let the agent start it."""
        self.server.order(run_id, *tasks, **training_input)
        await self.steps()

    async def steps(self, count: int = 3) -> None:
        for _ in range(count):
            assert await self.agent.step()

    def exit(self, task: str, run_id: str = RUN) -> ExitReport:
        ended = self.server.reports[run_id][task].exit
        assert ended is not None
        return ended

    def states_or_none(self, run_id: str) -> list[ReplicaState] | None:
        return self.states(run_id) if run_id in self.server.reports else None

    def states(self, run_id: str = RUN) -> list[ReplicaState]:
        return [report.state for report in self.server.reports[run_id].values()]


class RealTime(ManualClock):
    """Sleeps no longer than a moment, so that the loops turn quickly."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))


@asynccontextmanager
async def looping(agent: Agent) -> AsyncIterator[None]:
    """The agent runs in its loops, for a minute at most."""
    running = asyncio.create_task(agent.run())
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    async with world.client:
        yield world


SECRETS = [{"name": "HF", "env": "HF_TOKEN"}, {"name": "key", "file": "/run/key"}]


async def test_run_starts_with_its_secrets_once_the_server_gives_them(world: World) -> None:
    world.server.secrets = None
    world.programs(master=Script(((0.0, Print("it is the token")), (1.0, Exit(0)))))
    world.server.order(RUN, CHIEF, secrets=SECRETS)
    await world.steps(5)
    assert world.states() == [ReplicaState.PENDING]

    world.server.secrets = {"HF": "the token\n", "key": "the key\n", "another": "x"}
    world.clock.advance(5)
    await world.steps()

    ((_, launch),) = world.host.launches
    assert launch.secrets == {"HF_TOKEN": "the token"}, "without the newline at the end, as of $(cat)"
    assert launch.secret_files == (SecretFile("key", "/run/key", "key_FILE", "the key\n"),)
    assert "the key" not in repr(launch)
    assert world.server.texts(RUN, CHIEF) == ["it is ***"]


async def test_secret_that_was_deleted_ends_the_run_with_what_to_do(world: World) -> None:
    await world.begin(CHIEF, WORKER, secrets=SECRETS)
    for task in (CHIEF, WORKER):
        ended = world.exit(task)
        assert (ended.reason, ended.message) == (Reason.SECRETS_FAILED, "It was deleted.")
    assert world.host.launches == []


def fails_to_start_a_worker(launch: Launch) -> Script:
    if launch.task == WORKER:
        raise StartFailed(launch.task, "The machine has no room.")
    return FOREVER


async def test_log_of_a_failed_start_is_ended_only_after_the_failure_is_reported(world: World) -> None:
    world.host.programs = fails_to_start_a_worker
    world.new_agent()
    world.server.order(RUN, CHIEF, WORKER)
    await world.steps(1)
    assert world.server.complete == set()

    world.programs(master=Script(((0.0, Print("one")), (1.0, Exit(0)))))
    world.new_agent()  # it knows of no failure, and starts the run
    await world.steps()
    world.clock.advance(2)
    await world.steps()
    assert world.server.texts(RUN, CHIEF) == ["one"]


class NotifyingRuntime(FakeRuntime):
    """Counts its observations and looks at logs, and tells of a change when the test says so."""

    def __init__(self, host: FakeHost) -> None:
        super().__init__(host)
        self.traits = replace(self.traits, tells_changes=True)
        self.observations = self.looks = 0
        self.notify: Callable[[], None] = lambda: None

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.notify = changed
        return lambda: None

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        self.observations += 1
        return super().observe(run_id)

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        self.looks += 1
        return super().read_log(run_id, task, start, max_lines, max_bytes)


async def test_run_that_only_runs_is_rarely_looked_at_and_its_end_observed_when_it_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.programs(master=FOREVER)
    world.server.order(RUN, CHIEF)
    runtime = NotifyingRuntime(world.host)
    agent = world.new_agent(runtime)
    await world.steps()
    held = hold_syncs(world, monkeypatch)
    async with looping(agent):
        while not held.is_set():
            await settle(world, 1.0)
        runtime.observations = runtime.looks = 0
        await settle(world, 10.0)
        assert 1 <= runtime.observations <= 10
        assert 1 <= runtime.looks <= SILENT_ROUNDS + 10.0 / SHIP_S / SILENT_EVERY + 1
        world.host.vanish(RUN, CHIEF)
        runtime.notify()
        while world.server.reports[RUN][CHIEF].exit is None:  # in less than a second of the clock
            world.clock.advance(0.0005)
            await asyncio.sleep(0.005)
        assert world.exit(CHIEF).reason is Reason.VANISHED


async def settle(world: World, seconds: float) -> None:
    """Let so much time of the clock pass in small steps, and all loops turn at each."""
    for _ in range(round(seconds / WATCH_S)):
        world.clock.advance(WATCH_S)
        await asyncio.sleep(0.01)


async def test_environment_of_a_run_is_that_of_its_runtime(world: World) -> None:
    elsewhere = RuntimeOffer(name="fake", replica_environment={"STORAGE_EMULATOR_HOST": "http://h:1/s3cret"})
    world.info = INFO.model_copy(update={"runtimes": (elsewhere,)})
    await world.begin(CHIEF)
    ((_, launch),) = world.host.launches
    assert launch.environment["STORAGE_EMULATOR_HOST"] == "http://h:1/s3cret"
    assert "s3cret" not in "".join(request.model_dump_json() for request in world.server.requests)
    assert world.server.requests[-1].agent.environment_in("fake") == {"STORAGE_EMULATOR_HOST": "http://h:1/***"}
    assert {run.runtime for run in world.server.requests[-1].runs} == {"fake"}


async def test_unreachable_server_leaves_replicas_alone_and_is_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.programs(master=Script(((0.0, Print("one")), (50.0, Print("two")))))
    await world.begin(CHIEF)
    world.server.down = True

    for _ in range(20):
        assert not await world.agent.step()
        world.clock.advance(60)

    assert len([r for r in caplog.records if "trying again" in r.message]) == 1
    world.server.down = False
    await world.steps()
    assert world.states() == [ReplicaState.RUNNING]
    assert world.server.texts(RUN, CHIEF) == ["one", "two"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("a bug"), Reason.START_FAILED),
        (OSError(errno.ENOSPC, "No space left on device"), Reason.HOST_FAILED),
        (EngineUnavailable("the API server is busy"), Reason.GIVEN_BACK),
    ],
)
async def test_trouble_with_one_run_does_not_hold_up_the_others(world: World, error: Exception, reason: Reason) -> None:
    class Stumbles(FakeRuntime):
        def place(self, order: RunOrder) -> Handle:
            if order.run_id == RUN:
                raise error
            return super().place(order)

    world.new_agent(Stumbles(world.host))
    world.server.order(RUN, CHIEF)
    world.server.order(OTHER, CHIEF)

    await world.steps()

    assert world.states(OTHER) == [ReplicaState.RUNNING]
    assert world.states(RUN) == [ReplicaState.EXITED]
    assert world.exit(CHIEF).reason is reason
    assert str(error) in world.exit(CHIEF).message


def hold_syncs(world: World, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The server holds what it may hold, for longer than any test. Set once it has."""
    held = asyncio.Event()
    sync = world.client.sync

    async def holding(request: SyncRequest) -> SyncResponse:
        answer = await sync(request)
        if request.wait_s and request.seen == answer.version:
            held.set()
            await asyncio.sleep(3600)
        return answer

    monkeypatch.setattr(world.client, "sync", holding)
    return held


async def test_agent_survives_a_round_that_fails(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class FullDisk(FakeRuntime):
        failures = 0

        def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
            if self.failures < 3:
                self.failures += 1
                raise OSError("no space left on device")
            return super().observe(run_id)

    world.use_real_time()
    world.programs(master=FOREVER)
    world.server.order(RUN, CHIEF)
    async with looping(world.new_agent(FullDisk(world.host))):
        await until(lambda: world.states_or_none(RUN) == [ReplicaState.RUNNING])
    assert "no space left on device" in caplog.text


class FailsToRemove(FakeRuntime):
    """A file of the first run cannot be removed, the first few times."""

    def __init__(self, host: FakeHost, failures: int = 1000) -> None:
        super().__init__(host)
        self.left = failures
        self.attempts = 0

    def remove(self, run_id: str) -> None:
        if run_id == RUN:
            self.attempts += 1
            if self.attempts <= self.left:
                raise OSError("device or resource busy")
        super().remove(run_id)


async def ended_and_removed(world: World, runtime: FailsToRemove) -> None:
    """The server wants no more of RUN."""
    world.new_agent(runtime)
    await world.begin(CHIEF)
    world.clock.advance(2)
    await world.steps()
    world.server.orders.clear()


async def test_action_that_fails_is_tried_again_after_a_growing_pause_until_it_succeeds(world: World) -> None:
    runtime = FailsToRemove(world.host)
    for last in (6, 1):  # after a success the pauses are short again
        runtime.attempts, runtime.left = 0, last
        await ended_and_removed(world, runtime)
        await world.steps(5)
        assert runtime.attempts == 1
        for attempts, longest in enumerate((0.2, 0.4, 0.8, 1.6, 3.0, 3.0)[:last], start=1):
            world.clock.advance(0.49 * longest)
            await world.steps(2)
            assert runtime.attempts == attempts
            world.clock.advance(longest)
            await world.steps(2)
            assert runtime.attempts == attempts + 1
        assert RUN not in world.host.runs


@pytest.mark.parametrize("case", ["remove fails", "stop takes long"])
async def test_sync_is_held_while_nothing_moves(world: World, case: str) -> None:
    """Else the agent and the server would turn as fast as they can."""
    if case == "remove fails":
        await ended_and_removed(world, FailsToRemove(world.host))
    else:
        world.programs(master=Script(ignores_sigterm=True))
        world.server.order(RUN, CHIEF)
        await world.steps()
        world.server.stop(RUN)

    for _ in range(5):
        await world.agent._sync_round()

    assert [request.wait_s for request in world.server.requests[-3:]] == [HOLD_S] * 3


async def test_agent_in_its_loops_tries_again_though_the_server_has_nothing_new(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.use_real_time()
    hold_syncs(world, monkeypatch)
    runtime = FailsToRemove(world.host, failures=2)
    await ended_and_removed(world, runtime)

    def gone() -> bool:
        world.clock.advance(0.1)
        return RUN not in world.host.runs

    async with looping(world.agent):
        await until(gone)
    assert runtime.attempts == 3


async def test_run_that_cannot_be_observed_keeps_its_last_report_and_hides_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class CannotBeRead(FakeRuntime):
        broken = False

        def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
            if self.broken and run_id == RUN:
                raise OSError("input/output error")
            return super().observe(run_id)

    runtime = CannotBeRead(world.host)
    world.programs(master=Script(((5.0, Exit(3)),)))
    world.new_agent(runtime)
    for run_id in (RUN, OTHER):
        world.server.order(run_id, CHIEF)
    await world.steps()

    runtime.broken = True
    world.clock.advance(10)
    await world.steps()

    assert world.states(RUN) == [ReplicaState.RUNNING]
    assert world.states(OTHER) == [ReplicaState.EXITED]
    assert caplog.text.count("cannot be observed") == 1

    runtime.broken = False
    await world.steps()
    assert world.exit(CHIEF).code == 3


async def test_lease_that_cannot_be_saved_does_not_stop_the_agent(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lease = Lease(world.clock, tmp_path / "gone" / "lease.json")
    world.server.lease_s = 600.0
    world.new_agent(lease=lease)
    await world.begin(CHIEF)

    assert world.states() == [ReplicaState.RUNNING]
    assert "the lease is not saved" in caplog.text
    world.clock.advance(599)
    assert lease.must_stop(5.0)


async def test_lease_that_runs_out_stops_every_run_though_one_cannot_be_stopped(world: World) -> None:
    class CannotStopTheFirst(FakeRuntime):
        def stop(self, run_id: str, grace_s: float, reason: Reason = Reason.STOPPED) -> None:
            if run_id == RUN:
                raise OSError("input/output error")
            super().stop(run_id, grace_s, reason)

    world.programs(master=FOREVER)
    world.server.lease_s = 600.0
    runtime = CannotStopTheFirst(world.host)
    world.new_agent(runtime)
    for run_id in (RUN, OTHER):
        world.server.order(run_id, CHIEF)
    await world.steps()
    world.server.down = True
    world.clock.advance(600)

    with pytest.raises(OSError, match="input/output"):
        await world.agent.step()

    assert [runtime.observe(run_id)[0].exit is None for run_id in (RUN, OTHER)] == [True, False]


async def test_agent_in_its_loops_sends_a_long_log_without_a_pause_between_its_shares(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OneLineAtATime(FakeRuntime):
        def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
            return super().read_log(run_id, task, start, 1, max_bytes)

    lines = [f"line {n}" + " " * (MAX_BYTES // 4) for n in range(3 * MAX_CHUNKS)]
    world.programs(master=Script((*((0.0, Print(line)) for line in lines), (0.0, Exit(0)))))
    await world.begin(CHIEF)
    world.server.logs.clear()
    world.server.complete.clear()
    async with looping(world.new_agent(OneLineAtATime(world.host))):
        await until(lambda: world.server.complete)  # and the clock stands still
    assert world.server.texts(RUN, CHIEF) == lines
