"""Resource usage of replicas: reports of agents and views."""

from datetime import timedelta
from typing import Any

from beds.databases import on_every_database
from integration.api.api_support import AGENT, GB, START, ScriptedAgent, Server, running_agent
from trainyard_protocol.answers.usage import UsageBatch, UsageSample
from trainyard_protocol.states import Reason

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
PATH = "/trainyard/v1/projects/p/jobs/job/usage"


def sample(run_id: str, task: str = CHIEF, at: float = 0, cpu: float | None = 1.5, **given: Any) -> UsageSample:
    given.setdefault("memory_bytes", GB)
    return UsageSample(run_id=run_id, task=task, time=START + timedelta(seconds=at), cpu=cpu, **given)


def report(api: Server, *samples: UsageSample) -> int:
    """Report samples; return how many were accepted."""
    body = UsageBatch(samples=samples).model_dump_json()
    return int(api.done("POST", "/agent/v1/usage", AGENT, content=body)["taken"])


def replicas(api: Server, **params: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(PATH, **params)["replicas"]
    return found


@on_every_database
def test_samples_become_the_series_of_each_replica_and_the_sums_of_its_agent(api: Server) -> None:
    agent = running_agent(api, workerType="local-1", workerCount="1")
    ScriptedAgent(api, "other").sync()
    run_id = agent.run.run_id
    assert report(api, sample(run_id, cpu=None), sample(run_id, WORKER, cpu=None)) == 2
    assert report(api, sample(run_id, at=5, memory_bytes=2 * GB), sample(run_id, WORKER, at=5, cpu=0.25)) == 2
    assert api.get(PATH)["run"] == 1
    chief, worker = replicas(api)
    assert (chief["task"], worker["task"]) == (CHIEF, WORKER)
    assert chief["time"] == ["2026-11-20T12:00:00Z", "2026-11-20T12:00:05Z"]
    assert (chief["cpu"], chief["memory_bytes"], worker["cpu"]) == ([None, 1.5], [GB, 2 * GB], [None, 0.25])
    assert (chief["cpus"], chief["memory_given"]) == (1, agent.run.replicas[0].memory_bytes)
    assert chief["gpus"] == {}
    agents = {one["name"]: one for one in api.get("/trainyard/v1/status")["agents"]}
    laptop, other = agents["laptop"], agents["other"]
    assert (laptop["runs"], laptop["cpus_given"], laptop["cpu_used"]) == (1, 2, 1.75)
    assert laptop["memory_used_bytes"] == 3 * GB
    assert laptop["memory_given_bytes"] == sum(r.memory_bytes for r in agent.run.replicas)
    assert (other["cpus_given"], other["cpu_used"], other["gpus_used"]) == (0, 0.0, [])


def test_each_run_has_its_own_series_of_no_more_points_than_wanted(api: Server) -> None:
    agent = running_agent(api)
    first = agent.run.run_id
    report(api, *(sample(first, at=5 * n, cpu=n % 2) for n in range(200)))
    assert len(replicas(api)[0]["time"]) == 200
    few = replicas(api, points=20)[0]
    assert 2 < len(few["time"]) <= 20
    assert len(few["cpu"]) == len(few["memory_bytes"]) == len(few["time"])
    for points in (1, -5, 10**6):
        api.refusal("GET", PATH, 400, "points", params={"points": points})
    agent.exit(code=137, reason=Reason.KILLED_BY_SIGNAL)
    second = agent.begin(2).run_id
    report(api, sample(second, at=60), sample(second, at=65))
    assert [len(replicas(api, **run)[0]["time"]) for run in ({}, {"run": 1})] == [2, 200]
    assert api.status("GET", PATH, params={"run": 3}) == 404
    api.create("other")
    never = api.get(PATH.replace("jobs/job", "jobs/other"))
    assert never == {"project": "p", "job_id": "other", "run": 0, "replicas": []}
