"""`jobs why` over HTTP: what a waiting job is told, and what any other job does instead."""

from datetime import timedelta

from integration.api.api_support import ScriptedAgent, Server, running_agent
from trainyard_protocol.answers.why import QueueExplanationView
from trainyard_protocol.wire.agents import RuntimeOffer


def why(api: Server, job_id: str = "job") -> QueueExplanationView:
    return QueueExplanationView.model_validate(api.get(f"/trainyard/v1/projects/p/jobs/{job_id}/why"))


def test_waiting_job_is_told_who_holds_what_it_needs_and_what_would_help(api: Server) -> None:
    agent = running_agent(
        api, "first", scheduling={"maxRunningTime": "3600s", "priority": 9}, agent=ScriptedAgent(api, cpus=2)
    )
    started = api.clock()
    api.create("large", workerType="local-1", workerCount="1")
    api.create("small", scheduling={"priority": 0})
    agent.turn(60)
    api.tick()
    answer = why(api, "large")
    assert (answer.kind, answer.needs, answer.position) == ("room", "2 vCPU and 4.0 GB", 1)
    (fit,) = answer.agents
    assert (fit.agent, fit.home, fit.free, fit.lacks) == ("laptop", True, "1 vCPU and 6.0 GB", "lacks 1 vCPU")
    (holder,) = answer.holders
    assert (holder.job_id, holder.project, holder.priority) == ("first", "p", 9)
    assert (holder.running_since, holder.ends_by) == (started, started + timedelta(hours=1))
    assert [change.message for change in answer.changes] == ["the end of first"]
    small = why(api, "small")
    assert [(ahead.job_id, ahead.position) for ahead in small.ahead] == [("large", 1)]
    assert small.agents[0].lacks == ""
    assert [change.kind for change in small.changes] == ["priority"]
    assert why(api, "first").summary.startswith("It does not wait: it runs on agent laptop since 20")


AWAY = "no Docker engine answers at unix:///var/run/docker.sock (No such file or directory)"
IMAGE = {"masterConfig": {"imageUri": "gcr.io/p/i"}, "pythonModule": ""}


def both_kinds(api: Server, problem: str) -> ScriptedAgent:
    """An agent with processes and containers, as long as its engine has no problem."""
    agent = ScriptedAgent(api, runs_images=not problem)
    emulator = {"STORAGE_EMULATOR_HOST": "http://host.docker.internal:9"}
    docker = RuntimeOffer(name="docker", about="Docker engine 20.10", problem=problem, replica_environment=emulator)
    processes = RuntimeOffer(name="process", replica_environment=agent.info.replica_environment)
    return agent.change(runtime="process", runtimes=(processes, docker))


def test_image_waits_for_the_engine_and_runs_as_soon_as_it_answers(api: Server) -> None:
    both_kinds(api, AWAY).sync()
    api.create("image", **IMAGE)
    api.tick()
    answer = why(api, "image")
    assert answer.kind == "no-engine"
    assert answer.summary == f"It waits: needs a container engine: on agent laptop {AWAY}."
    assert answer.agents[0].lacks == f"{AWAY}: start Docker there"
    assert [change.message for change in answer.changes] == ["a container engine on agent laptop: start Docker there"]
    both_kinds(api, "").sync()
    assert api.detail("image")["state"] == "PREPARING"


def test_study_waits_as_its_next_trial(api: Server) -> None:
    ScriptedAgent(api, cpus=1).sync()
    lr = {"parameterName": "lr", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1, "scaleType": "UNIT_LINEAR_SCALE"}
    api.create("study", hyperparameters={"goal": "MINIMIZE", "maxTrials": 2, "maxParallelTrials": 2, "params": [lr]})
    api.tick()
    why = api.get("/trainyard/v1/projects/p/jobs/study/why")
    assert (why["job_id"], why["position"]) == ("study.2", 1)
