"""Server checks of the doctor: stuck runs, jobs that can never start, the database, disk usage."""

import os
import subprocess
import time

from beds.databases import on_every_database
from integration.api.api_support import ScriptedAgent, Server
from trainyard_protocol.answers.health import CheckStatus, Finding, ServerHealth
from trainyard_server.capabilities.health.diagnosis import PREPARING_S, STOPPING_SLACK_S, UPLOAD_KEPT_S
from trainyard_server.storage.db.base.engine import newest_schema

HEALTH = "/trainyard/v1/health"


def looked(api: Server, path: str = f"{HEALTH}?deep=true") -> ServerHealth:
    return ServerHealth.model_validate(api.get(path))


def problems(api: Server, check: str = "") -> list[Finding]:
    found = [one for one in looked(api).findings if one.status == "problem"]
    return [one for one in found if one.check == check] if check else found


def begin(api: Server, agent: ScriptedAgent) -> None:
    """A job whose run its agent has."""
    api.create()
    agent.turn()


@on_every_database
def test_server_with_nothing_wrong_finds_all_ok_and_is_quick_without_deep(api: Server, agent: ScriptedAgent) -> None:
    begin(api, agent)
    health = looked(api, HEALTH)
    assert (health.status, health.findings, health.time) == (CheckStatus.OK, (), api.clock())
    assert health.live_runs == (agent.run.run_id,)
    agent.start()
    findings = looked(api).findings
    assert {finding.status for finding in findings} == {"ok"}
    text = " ".join(finding.found for finding in findings)
    on_sqlite = api.use_cases.backend.store.url.get_backend_name() == "sqlite"
    assert ("SQLite, " in text, "PostgreSQL, " in text) == (on_sqlite, not on_sqlite)
    assert f"{'whole, ' if on_sqlite else ''}schema {newest_schema()}." in text
    assert "1 job prepared or running, 0 waiting; none is stuck." in text
    assert "most have: p/job " in text


def test_run_that_stops_for_longer_than_its_grace_is_stuck(api: Server, agent: ScriptedAgent) -> None:
    begin(api, agent)
    agent.start()
    api.clock.advance(86400)  # how long it ran does not matter
    agent.sync()
    api.cancel()
    agent.sync()
    grace_s = api.use_cases.backend.settings.grace_s
    api.clock.advance(grace_s + STOPPING_SLACK_S)
    agent.sync()
    assert problems(api) == []

    api.clock.advance(1)
    (found,) = problems(api)
    assert found.check == "runs"
    assert "Run 1 of the job job of p has been stopping for 6 minutes: master-replica-0 did not end." in found.found
    assert "laptop" in found.meaning
    assert found.advice


def test_run_that_is_prepared_for_long_says_what_it_does(api: Server, agent: ScriptedAgent) -> None:
    begin(api, agent)
    agent.activity = "pulling the image big:1"
    agent.sync()
    api.clock.advance(PREPARING_S + 1)
    agent.sync()
    (found,) = problems(api)
    assert "has been prepared for 30 minutes, now: pulling the image big:1." in found.found


def test_replicas_of_a_silent_agent_are_unknown(api: Server, agent: ScriptedAgent) -> None:
    begin(api, agent)
    agent.start()
    api.tick(1)
    api.tick(api.use_cases.backend.settings.silent_after_s + 1)
    (found,) = problems(api, "runs")
    assert "the state of master-replica-0 is unknown, since the agent laptop is silent" in found.found


def test_job_that_can_never_start_is_found(api: Server, agent: ScriptedAgent) -> None:
    api.create(masterType="n1-standard-96")
    api.tick()
    (found,) = problems(api)
    assert found.check == "jobs"
    assert found.found.startswith("the job job of p is QUEUED and can never start")


def test_packages_that_nobody_has_used_for_long_have_the_command_that_removes_them(
    api: Server, agent: ScriptedAgent
) -> None:
    staging = api.use_cases.backend.settings.data_dir / "staging"
    old, used, fresh = (api.upload(content) for content in (b"old", b"used", b"fresh"))
    for one in (old, used):
        before = time.time() - UPLOAD_KEPT_S - 60
        os.utime(staging / one["sha256"], (before, before))
    api.create(packageUris=[used["uri"]])
    (found,) = problems(api)
    assert (found.check, found.found.startswith("1 uploaded package of ")) == ("uploads", True)
    subprocess.run(["sh", "-c", found.command], check=True)
    left = sorted(path.name for path in staging.iterdir() if path.is_file())
    assert left == sorted([used["sha256"], fresh["sha256"]])
    assert problems(api) == []
