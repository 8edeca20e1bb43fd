"""Bands and fair share of a server: who may ask for what, and who goes first."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.databases import on_every_database
from integration.api.api_support import (
    ADMIN,
    ALICE,
    BOB,
    WITH_GPU,
    Clock,
    ScriptedAgent,
    Server,
    gpu_agent,
    running_agent,
    server,
)
from trainyard_protocol.errors import InvalidArgument
from trainyard_server.capabilities.sharing.fair_share import FairShareUpdate
from trainyard_server.capabilities.sharing.idle_gpus import IdleGpus
from trainyard_server.capabilities.sharing.usage_recording import UsageRecording
from trainyard_server.config.quota_file import load_quotas

FILE = """
default: {maxPriority: 10}
projects:
  p: {preemptible: true, share: 2}
fairShare: {halfLife: 7d, delay: 1d}
preemption: {minRun: 10m}
bands: {batch: {maxRunningTime: 2h}}
"""


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text(FILE)
    with server(tmp_path / "server", clock, quotas=quotas) as api:
        yield api


def submit(api: Server, job_id: str, who: dict[str, str] = ALICE, **scheduling: Any) -> tuple[int, str]:
    answer = api.submit(job_id, who, masterType="local-2", scheduling=scheduling)
    return answer.status_code, answer.json().get("error", {}).get("message", "")


def start(api: Server, agent: ScriptedAgent, job_id: str, who: dict[str, str] = ALICE, **scheduling: Any) -> None:
    assert submit(api, job_id, who, **scheduling) == (200, "")
    agent.begin()


def later(api: Server, agent: ScriptedAgent, seconds: float) -> None:
    """Time passes, in which the agent has called."""
    api.clock.advance(seconds)
    agent.sync()
    agent.turn()


def state(api: Server, job_id: str) -> str:
    return str(api.job(job_id)["state"])


def test_bands_priorities_and_time_limits_are_those_that_one_may_ask_for(api: Server) -> None:
    agent = ScriptedAgent(api, cpus=2)
    agent.sync()
    status, message = submit(api, "no", band="production", priority=500)
    assert status == 400
    assert "production is for those with the role admin in the project p; you may ask for normal, batch." in message
    assert "must be at most 10 in the project p, unless an admin of it submits the job; this is 500." in message
    assert submit(api, "boss", ADMIN, band="production", priority=500) == (200, "")
    assert "must be at most 7200s in the band batch" in submit(api, "long", band="batch", maxRunningTime="9000s")[1]
    assert "must be one of PRODUCTION, NORMAL, BATCH" in submit(api, "what", band="urgent")[1]
    api.cancel("boss")
    api.tick()
    start(api, agent, "batch", band="batch")
    later(api, agent, 7300)
    assert "longer than its maxRunningTime of 7200s" in "\n".join(api.events("batch"))


@on_every_database
def test_whoever_used_less_goes_first_and_why_says_so(api: Server) -> None:
    agent = ScriptedAgent(api, cpus=2)
    agent.sync()
    start(api, agent, "alices", ALICE)
    api.clock.advance(36_000)
    agent.exit()
    agent.turn()
    api.use_cases.of(UsageRecording).step()
    start(api, agent, "running", ADMIN)
    assert submit(api, "first", ALICE) == (200, "")
    api.clock.advance(60)
    assert submit(api, "second", BOB) == (200, "")
    api.use_cases.of(FairShareUpdate).step(1000.0)
    api.tick()
    positions = {job: int(api.job(job)["jobPosition"]) for job in ("first", "second")}
    assert positions == {"second": 1, "first": 2}
    why = api.get("/trainyard/v1/projects/p/jobs/first/why")["summary"]
    assert ": alice (p) recently used" in why


def test_mistakes_in_the_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "quotas.yaml"
    for text, expected in (
        ("fairShare: {halfLife: 7}", r"fairShare.halfLife: must be a duration such as .*; this is '7'\.$"),
        ("default: {keepJobs: 7}", "default.keepJobs: must be `all`, or a duration such as"),
        ("default: {bands: {urgent: admin}}", "default.bands.urgent: there is no such entry; allowed: 'production', "),
        ("default: {share: 0}", "default.share"),
        ("default: {minGpuUse: {percent: 10}}", "default.minGpuUse.over"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidArgument, match=expected):
            load_quotas(file)


def test_idle_gpus_are_warned_of_and_then_end_the_job(tmp_path: Path, clock: Clock) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("default: {minGpuUse: {percent: 10, over: 30m}}")
    with server(tmp_path / "server", clock, quotas=quotas) as api:
        agent = running_agent(api, agent=gpu_agent(api), **WITH_GPU)
        states = []
        for minute, used in enumerate([0.5] * 31 + [0.02] * 40 + [0.9] * 31 + [0.02] * 62):
            clock.advance(60)
            agent.use(gpu=used)
            api.use_cases.of(IdleGpus).step(minute * 60.0 + 60)
            states.append(state(api, "job"))
        events = [event for event in api.events("job") if "GPUs were used" in event]
    assert states[110] == "RUNNING", "it was used again after the first warning"
    assert states[-1] == "CANCELLING"
    assert [event.startswith("The job was cancelled because of idle GPUs.") for event in events] == [False, False, True]
    assert "of the last 30m 00s; its project asks for 10%. Unless they are used, the job is cancelled in" in events[0]
