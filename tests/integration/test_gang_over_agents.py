"""Gangs over several agents: all parts start or none, one verdict for all, and nothing that is left behind."""

import json
from datetime import timedelta

import pytest

from beds.world import Machine, World
from trainyard_agent.engines.fake import FOREVER, Exit, Print, Script, by_module
from trainyard_agent.staging.base import ReadyAtOnce, Staging
from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState

MASTER, WORKERS = "master-replica-0", [f"worker-replica-{number}" for number in range(3)]
CRASHES = Script(((0.1, Print("works")), (1.0, Exit(3))))
PROGRAMS = by_module(
    {
        "forever.task": {"*": FOREVER},
        "short.task": {MASTER: Script(((1.0, Exit(0)),)), "*": FOREVER},
        "fails.task": {WORKERS[2]: CRASHES, WORKERS[0]: Script(((1.2, Exit(1)),)), "*": FOREVER},
        "lost.task": {WORKERS[2]: Script(((1.0, Exit(137)),)), "*": FOREVER},
    }
)


@pytest.fixture
async def boxes(world: World) -> list[Machine]:
    """Two machines of two CPUs: a gang of four has two replicas on each."""
    machines = [world.machine(name, PROGRAMS, cpus=2) for name in ("box-1", "box-2")]
    await world.settle()
    return machines


def started(machine: Machine) -> list[str]:
    return [launch.task for _, launch in machine.host.launches]


def states(machine: Machine) -> list[ReplicaState]:
    return [report.state for run_id in machine.host.runs for report in machine.runtime.observe(run_id)]


async def test_replicas_know_each_other_by_the_addresses_of_their_machines(world: World, boxes: list[Machine]) -> None:
    await world.begin("j", 6, workers=3, module="short.task")
    detail = await world.detail("j")
    (run,) = detail.runs
    assert (detail.state, run.state, run.agent) == (JobState.RUNNING, RunState.RUNNING, "box-1, box-2")
    hosts = {replica.task: (replica.agent, replica.address.partition(":")[0]) for replica in run.replicas}
    assert hosts == {
        **dict.fromkeys([MASTER, WORKERS[0]], ("box-1", "box-1")),
        **dict.fromkeys(WORKERS[1:], ("box-2", "box-2")),
    }
    addresses = [replica.address for replica in run.replicas]
    launches = [launch for machine in boxes for _, launch in machine.host.launches]
    for launch in launches:
        config = json.loads(launch.environment["TF_CONFIG"])
        assert config["cluster"] == {"chief": addresses[:1], "worker": addresses[1:]}
        assert launch.environment["JAX_COORDINATOR_ADDRESS"] == addresses[0]
        assert (launch.environment["MASTER_ADDR"], launch.environment["WORLD_SIZE"]) == ("box-1", "4")
    assert sorted(launch.environment["RANK"] for launch in launches) == ["0", "1", "2", "3"]
    explained = (await world.call("GET", f"/trainyard/v1/projects/p/jobs/j/explain?task={WORKERS[2]}")).json()
    mine = next(launch for launch in launches if launch.task == WORKERS[2])
    assert json.loads(explained["environment"]["TF_CONFIG"]) == json.loads(mine.environment["TF_CONFIG"])
    assert "Its replicas run on box-1 (master-replica-0 to worker-replica-0, 2 in all)" in str(detail.events)
    assert "on box-2" in (await world.call("GET", "/projects/p/jobs/j")).text
    agents = (await world.call("GET", "/trainyard/v1/status")).json()["agents"]
    assert [(agent["runs"], agent["cpus_given"]) for agent in agents] == [(1, 2), (1, 2)]
    why = (await world.call("GET", "/trainyard/v1/projects/p/jobs/j/why")).json()
    assert "it runs on agent box-1 and box-2" in why["summary"]

    world.restart_server()
    world.clock.advance(1.0)
    await world.settle(6)
    assert (await world.detail("j")).state is JobState.SUCCEEDED
    assert [machine.host.runs for machine in boxes] == [{}, {}]
    assert not world.listeners


async def test_no_part_starts_before_every_part_is_ready(world: World, boxes: list[Machine]) -> None:
    first, second = boxes
    await world.submit("j", workers=3, module="forever.task")
    world.tick()
    await first.step(6)
    assert (started(first), len(world.listeners)) == ([], 2), "it is placed, and waits"
    (run,) = (await world.detail("j")).runs
    assert run.activity == "waiting for the parts on other agents"
    await second.step(6)
    assert (started(first), started(second)) == ([], []), "the first has not reached it yet"
    await first.step(3)
    await second.step(2)
    await first.step()
    assert (sorted(started(first)), sorted(started(second))) == ([MASTER, WORKERS[0]], WORKERS[1:])


async def test_part_that_cannot_be_prepared_gives_the_whole_run_back(world: World, boxes: list[Machine]) -> None:
    class Broken(ReadyAtOnce):
        def status(self) -> dict[str, Staging]:
            failed = Staging("failed", reason=Reason.STAGING_FAILED, message="The package index is gone.")
            return dict.fromkeys(super().status(), failed)

    boxes[1].stager = Broken()
    await boxes[1].close()
    boxes[1].boot()
    await world.begin("j", 8, workers=3, module="forever.task")
    detail = await world.detail("j")
    verdict = detail.runs[0].verdict
    assert verdict is not None
    assert (verdict.reason, verdict.replica) == (Reason.STAGING_FAILED, WORKERS[1])
    assert verdict.message == (
        "The replica worker 1 could not fetch what it needs on agent box-2: The package index is gone."
    )
    assert [started(machine) for machine in boxes] == [[], []]


async def test_cancel_stops_the_parts_that_it_reaches_and_waits_for_a_lost_one_no_longer_than_its_lease(
    world: World, boxes: list[Machine]
) -> None:
    first, second = boxes
    await world.begin("j", 6, workers=3, module="forever.task")
    second.network.cut = True
    await world.cancel("j")
    await world.settle()
    assert set(states(first)) <= {ReplicaState.EXITED}, "at once"
    detail = await world.detail("j")
    until = f"until {world.clock.now() + timedelta(seconds=world.settings.lease_s):%Y-%m-%dT%H:%M:%SZ} at the latest"
    waits = f"for agent box-2 to stop it, {until} if that does not answer"
    assert (detail.state, detail.waiting) == (JobState.CANCELLING, waits)
    for _ in range(int(world.settings.lease_s / 10)):
        world.clock.advance(10)
        await world.settle(1)
    detail = await world.detail("j")
    has = f"has a lease of {world.settings.lease_s:g} s, {until}"
    assert detail.state is JobState.CANCELLING
    assert detail.waiting.startswith("for agent box-2, which is silent since ")
    assert detail.waiting.endswith(has)
    world.clock.advance(1)
    await world.settle(1)
    assert (await world.detail("j")).state is JobState.CANCELLED


async def test_lost_machine_ends_the_parts_on_others_after_its_lease(world: World, boxes: list[Machine]) -> None:
    first, second = boxes
    await world.begin("j", 6, workers=3, module="forever.task")
    lease_s = world.settings.lease_s
    second.network.cut = True
    for _ in range(10):
        world.clock.advance((lease_s - 60) / 10)
        await world.settle(1)
    assert states(first) == [ReplicaState.RUNNING] * 2, "the lease of the other has not ended"
    for _ in range(20):
        world.clock.advance(5)
        await world.settle(1)
    detail = await world.detail("j")
    assert detail.runs[0].verdict is not None
    assert (detail.state, detail.runs[0].verdict.reason) == (JobState.QUEUED, Reason.HOST_LOST)
    assert not states(first)
    assert set(states(second)) <= {ReplicaState.EXITED}, "it has stopped them by itself"
    assert "box-2, which is silent" in detail.waiting
    second.network.cut = False
    await world.settle(8)
    detail = await world.detail("j")
    assert (detail.state, len(detail.runs)) == (JobState.RUNNING, 2)


async def test_evaluator_of_a_gang_over_agents_starts_again_where_it_was(world: World, boxes: list[Machine]) -> None:
    programs = by_module({"e.task": {"evaluator-replica-0": CRASHES, "*": FOREVER}})
    for machine in boxes:
        machine.host.programs = programs
    await world.begin("j", workers=2, module="e.task", evaluatorType="local-1", evaluatorCount="1")
    for _ in range(3):
        world.clock.advance(1.5)
        await world.settle(3)
    (run,) = (await world.detail("j")).runs
    assert run.state is RunState.RUNNING
    assert run.restarts
    assert [task for task in started(boxes[1]) if task.startswith("evaluator")] == ["evaluator-replica-0"] * (
        1 + len(run.restarts)
    )
    launches = [launch for _, launch in boxes[1].host.launches if launch.task.startswith("evaluator")]
    assert len({json.dumps(json.loads(launch.environment["TF_CONFIG"])["cluster"]) for launch in launches}) == 1


async def test_job_dir_of_one_machine_is_refused_with_the_agents_that_would_need_it(
    world: World, boxes: list[Machine]
) -> None:
    fields = {"scaleTier": "CUSTOM", "masterType": "local-1", "workerType": "local-1", "workerCount": "3"}
    job = {"jobId": "j", "trainingInput": {**fields, "pythonModule": "m", "jobDir": "/data/out"}}
    refused = await world.call("POST", "/v1/projects/p/jobs", job)
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        400,
        "The job needs several agents: box-1 and box-2 together have room for it, but its job-dir is below /data/out, "
        "which its machines do not share (--shared-job-dirs). Use a job-dir on gs:// or below a shared directory, "
        "or ask for less.",
    )


@pytest.mark.parametrize("ahead", [timedelta(minutes=5), timedelta(minutes=-5)])
async def test_first_failure_is_the_first_though_the_clocks_differ(
    world: World, boxes: list[Machine], ahead: timedelta
) -> None:
    """`worker 2` on the second machine fails 0.2 s before `worker 0` on the first."""
    boxes[1].clock.ahead = ahead
    boxes[1].host.set_clock()
    for machine in boxes:
        await machine.step()
    await world.begin("j", 6, workers=3, module="fails.task")
    world.clock.advance(2.0)
    await world.settle(6)
    detail = await world.detail("j")
    assert detail.verdict is not None
    assert (detail.verdict.replica, detail.exit_code) == (WORKERS[2], 3)
    (run,) = detail.runs
    times = {replica.task: (replica.started_at, replica.finished_at) for replica in run.replicas}
    assert all(begin and end and begin <= end for begin, end in times.values()), times
    ends = [times[task][1] for task in (WORKERS[2], WORKERS[0])]
    assert ends == sorted(filter(None, ends)), "both by the server's clock"


async def test_machine_that_waits_for_the_other_is_no_silent_run(world: World, boxes: list[Machine]) -> None:
    """The replicas on the second machine are idle while those on the first compute; then all are silent."""
    busy, idle = Script(cores=1.0), Script(cores=0.0)
    for machine in boxes:
        machine.host.programs = lambda launch: idle if launch.task in WORKERS[1:] else busy
    await world.begin("j", 6, workers=3, module="m", labels={"trainyard_stall_limit": "60"})
    for _ in range(12):
        world.clock.advance(10.0)
        await world.settle(1)
    (run,) = (await world.detail("j")).runs
    assert [bool(replica.stall) for replica in run.replicas] == [False, False, True, True], "its agent says so"
    assert "stalled" not in [event.kind for event in (await world.detail("j")).events]
