"""Resource usage of replicas: reports of agents and views."""

import asyncio
from datetime import timedelta
from typing import Any

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, GB, KEY, START, ScriptedAgent, Server, running_agent
from trainyard_protocol.job.resources import Gpu
from trainyard_protocol.states import Reason
from trainyard_protocol.views.usage import GpuUsage, UsageBatch, UsageSample
from trainyard_server.storage.events.notifier import USAGE_TOPIC, usage_topic

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
T4 = "NVIDIA_TESLA_T4"
PATH = "/trainyard/v1/projects/p/jobs/job/usage"


def sample(run_id: str, task: str = CHIEF, at: float = 0, cpu: float | None = 1.5, **given: Any) -> UsageSample:
    given.setdefault("memory_bytes", GB)
    return UsageSample(run_id=run_id, task=task, time=START + timedelta(seconds=at), cpu=cpu, **given)


def report(api: Server, *samples: UsageSample) -> int:
    """Report samples; return how many were accepted."""
    body = UsageBatch(samples=samples).model_dump_json()
    answer = api.client.post("/agent/v1/usage", content=body, headers=AGENT)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["taken"])


def with_gpus(api: Server, *ids: str) -> ScriptedAgent:
    agent = ScriptedAgent(api, cpus=4, memory_gb=15)
    gpus = tuple(Gpu(id=name, type=T4, memory_bytes=16 * GB) for name in ids)
    capacity = agent.info.capacity.model_copy(update={"gpus": gpus})
    agent.info = agent.info.model_copy(update={"capacity": capacity})
    return agent


@on_every_database
def test_samples_become_the_series_of_each_replica(api: Server) -> None:
    agent = running_agent(api, workerType="local-1", workerCount="1")
    run_id = agent.run.run_id
    assert report(api, sample(run_id, cpu=None), sample(run_id, WORKER, cpu=None)) == 2
    assert report(api, sample(run_id, at=5, memory_bytes=2 * GB), sample(run_id, WORKER, at=5, cpu=0.25)) == 2
    view = api.get(PATH)
    assert view["run"] == 1
    chief, worker = view["replicas"]
    assert (chief["task"], worker["task"]) == (CHIEF, WORKER)
    assert chief["time"] == ["2026-11-20T12:00:00Z", "2026-11-20T12:00:05Z"]
    assert chief["cpu"] == [None, 1.5]
    assert chief["memory_bytes"] == [GB, 2 * GB]
    assert worker["cpu"] == [None, 0.25]
    assert (chief["cpus"], chief["memory_given"]) == (1, agent.run.replicas[0].memory_bytes)
    assert chief["gpus"] == {}


def test_devices_have_a_series_of_their_own(api: Server) -> None:
    agent = running_agent(
        api,
        agent=with_gpus(api, "GPU-a", "GPU-b"),
        masterType="n1-standard-4",
        masterConfig={"acceleratorConfig": {"type": T4, "count": "2"}},
    )
    first, second = agent.run.replicas[0].gpus
    busy = GpuUsage(id=first, utilization=0.75, memory_bytes=3 * GB, memory_total=16 * GB)
    report(api, sample(agent.run.run_id, gpus=(busy, GpuUsage(id="GPU-of-nobody", utilization=1.0))))
    gpus = api.get(PATH)["replicas"][0]["gpus"]
    assert gpus == {
        first: {"utilization": [0.75], "memory_bytes": [3 * GB], "memory_total": 16 * GB},
        second: {"utilization": [None], "memory_bytes": [None], "memory_total": 0},
    }
    (replica,) = api.detail()["runs"][0]["replicas"]
    assert replica["gpus_used"] == [busy.model_dump()]


def test_no_more_points_than_wanted_are_answered(api: Server) -> None:
    run_id = running_agent(api).run.run_id
    report(api, *(sample(run_id, at=5 * n, cpu=n % 2) for n in range(200)))
    assert len(api.get(PATH)["replicas"][0]["time"]) == 200
    few = api.get(PATH, points=20)["replicas"][0]
    assert 2 < len(few["time"]) <= 20
    assert len(few["cpu"]) == len(few["memory_bytes"]) == len(few["time"])


def test_points_that_cannot_be_are_refused(api: Server) -> None:
    running_agent(api)
    for points in (1, -5, 10**6):
        answer = api.client.get(PATH, params={"points": points}, headers=ADMIN)
        assert answer.status_code == 400
        assert "points" in answer.text


def test_each_run_has_its_own_series(api: Server) -> None:
    agent = running_agent(api)
    first = agent.run.run_id
    report(api, sample(first))
    agent.exit(code=137, reason=Reason.KILLED_BY_SIGNAL)
    api.tick(2)
    agent.sync()
    agent.start()
    assert agent.run.run_id != first
    report(api, sample(agent.run.run_id, at=60), sample(agent.run.run_id, at=65))
    assert len(api.get(PATH)["replicas"][0]["time"]) == 2
    assert len(api.get(PATH, run=1)["replicas"][0]["time"]) == 1
    assert api.client.get(PATH, params={"run": 3}, headers=ADMIN).status_code == 404


def test_job_that_has_never_run_has_no_series(api: Server) -> None:
    api.create()
    assert api.get(PATH) == {"project": "p", "job_id": "job", "run": 0, "replicas": []}


def test_samples_of_what_nobody_knows_or_what_is_over_are_no_error(api: Server) -> None:
    agent = running_agent(api)
    run_id = agent.run.run_id
    assert report(api, sample("f" * 32), sample(run_id, "worker-replica-7"), sample(run_id)) == 1
    agent.exit()
    api.tick()
    assert api.job()["state"] == "SUCCEEDED"
    assert report(api, sample(run_id, at=5)) == 0
    assert len(api.get(PATH)["replicas"][0]["time"]) == 1, "what it used is still told"


def test_detail_has_what_was_measured_last_of_what_runs(api: Server) -> None:
    agent = running_agent(api)
    (replica,) = api.detail()["runs"][0]["replicas"]
    assert (replica["cpu_used"], replica["memory_used_bytes"], replica["used_at"]) == (None, None, None)
    report(api, sample(agent.run.run_id, cpu=None), sample(agent.run.run_id, at=5, cpu=0.5))
    (replica,) = api.detail()["runs"][0]["replicas"]
    assert (replica["cpu_used"], replica["memory_used_bytes"]) == (0.5, GB)
    assert replica["used_at"] == "2026-11-20T12:00:05Z"
    agent.exit()
    (replica,) = api.detail()["runs"][0]["replicas"]
    assert replica["cpu_used"] is None


@on_every_database
def test_status_sums_what_is_given_and_used_on_each_agent(api: Server) -> None:
    agent = running_agent(api, workerType="local-1", workerCount="1")
    ScriptedAgent(api, "other").sync()
    report(api, sample(agent.run.run_id), sample(agent.run.run_id, WORKER, cpu=0.5, memory_bytes=3 * GB))
    agents = {one["name"]: one for one in api.get("/trainyard/v1/status")["agents"]}
    laptop, other = agents["laptop"], agents["other"]
    assert (laptop["runs"], laptop["cpus_given"], laptop["cpu_used"]) == (1, 2, 2.0)
    assert laptop["memory_used_bytes"] == 4 * GB
    assert laptop["memory_given_bytes"] == sum(r.memory_bytes for r in agent.run.replicas)
    assert (other["cpus_given"], other["cpu_used"], other["gpus_used"]) == (0, 0.0, [])


def test_reports_wake_those_who_look_at_the_job(api: Server) -> None:
    agent = running_agent(api)
    backend = api.use_cases.backend
    with backend.store.read() as reader:
        job = reader.job("p", "job")
        assert job is not None
        key = job.key

    async def wait() -> frozenset[str]:
        with backend.notifier.subscribe(usage_topic(key), usage_topic(key + 1), USAGE_TOPIC) as events:
            batch = UsageBatch(samples=(sample(agent.run.run_id),))
            await asyncio.to_thread(api.use_cases.usage.record, batch, KEY)
            return await events.wait(30)

    assert asyncio.run(wait()) == {usage_topic(key), USAGE_TOPIC}


def test_directory_that_was_removed_or_cannot_be_written_is_no_trouble_for_the_job(api: Server) -> None:
    agent, directory = running_agent(api), api.use_cases.backend.settings.data_dir
    (directory / "usage").write_text("in the way")
    body = UsageBatch(samples=(sample(agent.run.run_id),)).model_dump_json()
    assert api.client.post("/agent/v1/usage", content=body, headers=AGENT).status_code == 503
    (directory / "usage").unlink()
    assert report(api, sample(agent.run.run_id)) == 1
    assert api.detail()["state"] == "RUNNING"
