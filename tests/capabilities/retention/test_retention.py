"""Retention by age: what goes, what stays, and that it is said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, server
from trainyard_server.capabilities.retention import retention as background
from trainyard_server.capabilities.retention.retention import Retention

DAY_S = 86400.0


def run_job(api: Server, agent: ScriptedAgent, name: str, *lines: str, ends: bool = True) -> None:
    api.create(name)
    agent.turn()
    run = next(order for order in agent.runs.values() if order.job_id == name)
    agent.start(run)
    agent.log(*lines, run=run)
    if ends:
        agent.exit(run=run)
        agent.sync()


def apply(api: Server, retention: Retention | None = None) -> None:
    """A survey from the beginning, and everything that follows from it."""
    api.clock.advance(61)
    while (retention or api.use_cases.of(Retention)).step():
        pass


def names(api: Server) -> list[str]:
    return sorted(job["jobId"] for job in api.get("/v1/projects/p/jobs").get("jobs", ()))


def test_jobs_are_deleted_at_their_age_and_none_that_has_not_ended(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, keep_jobs_s=30 * DAY_S) as api:
        agent = ScriptedAgent(api, cpus=4)
        agent.sync()
        run_job(api, agent, "active", ends=False)
        for name in ("old", "newer"):
            run_job(api, agent, name, "a line")
            clock.advance(20 * DAY_S)
        apply(api)
        assert names(api) == ["active", "newer"]
        root = api.use_cases.backend.settings.data_dir
        assert sorted(path.name for path in root.glob("logs/p/*")) == ["active", "newer"]
        gone = api.client.get("/v1/projects/p/jobs/old", headers=ADMIN)
        assert gone.json()["error"]["message"].endswith("It was deleted on 2026-12-30 by retention.")
        status = api.get("/trainyard/v1/status")["retention"]
        assert status.pop("last_removal").startswith("2026-12-30T12:01")
        assert status == {"keep_jobs_s": 30 * DAY_S, "projects": 0, "jobs_deleted": 1}


def test_failure_is_logged_and_the_next_survey_tries_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with server(tmp_path, clock, keep_jobs_s=60.0) as api:
        api.create()
        api.cancel()
        clock.advance(61)
        remove: Callable[..., None] = api.use_cases.backend.logs.remove

        def full(*_: object) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(type(api.use_cases.backend.logs), "remove", full)
        assert api.use_cases.of(Retention).step() is False
        assert "Old jobs cannot be removed: the data directory cannot be written" in caplog.text
        monkeypatch.setattr(type(api.use_cases.backend.logs), "remove", lambda _self, *given: remove(*given))
        assert api.use_cases.of(Retention).step() is False
        assert names(api) == ["job"]
        apply(api)
        assert names(api) == []


@on_every_database
def test_study_is_kept_and_removed_with_its_trials(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, keep_jobs_s=30 * DAY_S) as api:
        agent = ScriptedAgent(api, cpus=2)
        agent.sync()
        params = [{"parameterName": "x", "type": "INTEGER", "minValue": 1, "maxValue": 9}]
        spec = {"params": params, "maxTrials": 2, "algorithm": "RANDOM_SEARCH"}
        api.create("study", hyperparameters=spec)
        for trial in ("study.1", "study.2"):
            agent.turn()
            assert agent.run.job_id == trial
            agent.start()
            clock.advance(31 * DAY_S)  # the first trial is old then, its study goes on
            agent.sync()
            apply(api)
            agent.exit()
        assert names(api) == ["study"]
        clock.advance(31 * DAY_S)
        apply(api)
        assert names(api) == []
        assert list(api.use_cases.backend.settings.data_dir.glob("logs/p/*")) == []
        assert api.get("/trainyard/v1/status")["retention"]["jobs_deleted"] == 1


def test_decisions_of_an_earlier_quota_file_are_not_carried_out(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_BATCH", 1)
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("{projects: {p: {keepJobs: 1m}}}")
    with server(tmp_path / "server", clock, quotas=quotas) as api:
        for number in range(3):
            api.create(f"job_{number}")
            api.cancel(f"job_{number}")
        clock.advance(61)
        assert api.use_cases.of(Retention).step()
        assert len(names(api)) == 2
        quotas.write_text("{projects: {p: {keepJobs: all}}}")
        reload(api)
        apply(api)
        assert len(names(api)) == 2


def reload(api: Server) -> None:
    assert api.client.post("/trainyard/v1/quotas:reload", headers=ADMIN).status_code == 200
