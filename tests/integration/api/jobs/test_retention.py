"""Retention by age and by size: what goes, what stays, and that it is said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, server
from trainyard_server.control import retention as background
from trainyard_server.control.retention import Retention

pytestmark = on_every_database

DAY_S = 86400.0


def run_job(api: Server, agent: ScriptedAgent, name: str, *lines: str, ends: bool = True) -> None:
    api.create(name)
    api.tick()
    agent.sync()
    run = next(order for order in agent.runs.values() if order.job_id == name)
    agent.start(run)
    agent.log(*lines, run=run)
    if ends:
        agent.exit(run=run)
        agent.sync()


def apply(api: Server, retention: Retention | None = None) -> None:
    """A survey from the beginning, and everything that follows from it."""
    api.clock.advance(61)
    while (retention or api.use_cases.retention).step():
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
        assert status == {
            "keep_jobs_s": 30 * DAY_S,
            "keep_log_bytes": None,
            "projects": 0,
            "jobs_deleted": 1,
            "logs_removed": 0,
        }


def test_logs_beyond_the_limit_are_removed_oldest_first_with_a_notice_and_the_jobs_stay(
    tmp_path: Path, clock: Clock
) -> None:
    with server(tmp_path, clock, keep_log_bytes=50_000) as api:
        agent = ScriptedAgent(api, cpus=4)
        agent.sync()
        run_job(api, agent, "active", "x" * 20_000, ends=False)
        for name in ("first", "second"):
            run_job(api, agent, name, "x" * 20_000)
            clock.advance(1)
        apply(api)
        texts = [data["text"] for kind, data, _ in api.stream("first") if kind == "log"]
        notice = "The log was removed: the logs of all jobs together may have 50.0 kB."
        assert texts[-1] == notice
        assert "x" * 20_000 not in texts
        assert api.events("first")[-1] == notice
        assert api.stream("first")[-1][1]["lines"] == {"0/service": len(texts)}
        for kept in ("active", "second"):
            assert "x" * 20_000 in [data["text"] for kind, data, _ in api.stream(kept) if kind == "log"]
        assert api.job("first")["state"] == "SUCCEEDED"
        before = api.events("first")
        apply(api)
        assert api.events("first") == before
        status = api.get("/trainyard/v1/status")["retention"]
        assert (status["logs_removed"], status["jobs_deleted"]) == (1, 0)


def test_each_step_does_a_part_and_two_processes_at_once_remove_each_job_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_PAGE", 2)
    monkeypatch.setattr(background, "_BATCH", 1)
    with server(tmp_path, clock, keep_jobs_s=60.0) as api:
        for number in range(5):
            api.create(f"job_{number}")
            api.cancel(f"job_{number}")
        cases = api.use_cases
        both = [Retention(cases.backend, cases.controller, clock.stopwatch) for _ in range(2)]
        clock.advance(61)
        left, busy = [], True
        while busy:
            results = [one.step() for one in both]
            left.append(len(names(api)))
            busy = any(results)
        assert left[:2] == [5, 5]
        assert (left[-1], names(api)) == (0, [])
        assert sorted(left, reverse=True) == left
        assert api.get("/trainyard/v1/status")["retention"]["jobs_deleted"] == 5


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
        assert api.use_cases.retention.step() is False
        assert "Old jobs and logs cannot be removed: the data directory cannot be written" in caplog.text
        monkeypatch.setattr(type(api.use_cases.backend.logs), "remove", lambda _self, *given: remove(*given))
        assert api.use_cases.retention.step() is False
        assert names(api) == ["job"]
        apply(api)
        assert names(api) == []


def test_study_is_kept_and_removed_with_its_trials(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, keep_jobs_s=30 * DAY_S, keep_log_bytes=30_000) as api:
        agent = ScriptedAgent(api, cpus=2)
        agent.sync()
        params = [{"parameterName": "x", "type": "INTEGER", "minValue": 1, "maxValue": 9}]
        spec = {"params": params, "maxTrials": 2, "algorithm": "RANDOM_SEARCH"}
        api.create("study", hyperparameters=spec)
        root = api.use_cases.backend.settings.data_dir
        for trial in ("study.1", "study.2"):
            api.tick()
            agent.sync()
            assert agent.run.job_id == trial
            agent.start()
            agent.log("x" * 20_000)
            apply(api)
            agent.exit()
        # Of a study that went on nothing was removed; now both logs together are too large.
        assert all((root / f"logs/p/study.{n}/segment").stat().st_size > 20_000 for n in (1, 2))
        apply(api)
        for job_id in ("study", "study.1", "study.2"):
            assert api.events(job_id)[-1].startswith("The log was removed: ")
            assert [data["text"] for event, data, _ in api.stream(job_id) if event == "log"] == api.events(job_id)
        clock.advance(31 * DAY_S)
        apply(api)
        assert names(api) == []
        assert list(root.glob("logs/p/*")) == []
        assert api.get("/trainyard/v1/status")["retention"]["jobs_deleted"] == 1


def test_project_has_limits_of_its_own_which_are_shown_first_and_hold_until_the_file_says_otherwise(
    tmp_path: Path, clock: Clock
) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("{default: {keepJobs: 60d}, projects: {p: {keepLogsGb: 0.00003}, q: {keepJobs: all}}}")
    with server(tmp_path / "server", clock, quotas=quotas, keep_jobs_s=1.0) as api:
        agent = ScriptedAgent(api, cpus=4)
        agent.sync()
        for name in ("first", "second"):
            run_job(api, agent, name, "x" * 20_000)
            clock.advance(DAY_S)
        before = api.get("/trainyard/v1/retention", within="60d")
        (project,) = before["projects"]
        assert (project["keep_jobs_s"], project["keep_log_bytes"]) == (60 * DAY_S, 30_000)
        assert (project["now"]["jobs"], project["now"]["logs"], project["later"]["jobs"]) == (0, 1, 2)
        items = [(item["job"], item["what"], item["is_now"]) for item in before["items"]]
        assert items == [("first", "log", True), ("first", "job", False), ("second", "job", False)]
        tried = api.get("/trainyard/v1/retention", within="1d", keepJobs="1d")
        assert tried["projects"][0]["now"] == project["now"]  # the project has a limit of its own
        apply(api)
        assert api.events("first")[-1] == "The log was removed: the logs of the project p may have 30.0 kB."
        assert "x" * 20_000 in [data["text"] for kind, data, _ in api.stream("second") if kind == "log"]
        quotas.write_text("{projects: {p: {keepJobs: 1h}}}")
        reload(api)
        assert api.get("/trainyard/v1/retention")["projects"][0]["now"]["jobs"] == 2
        quotas.write_text("{projects: {p: {keepJobs: all}}}")
        reload(api)
        apply(api)
        assert names(api) == ["first", "second"]
        refused = api.client.get("/trainyard/v1/retention?keepJobs=never", headers=ADMIN)
        assert refused.status_code == 400
        assert "must be `all`, or a duration" in refused.text


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
        assert api.use_cases.retention.step()
        assert len(names(api)) == 2
        quotas.write_text("{projects: {p: {keepJobs: all, keepLogsGb: 1}}}")
        reload(api)
        apply(api)
        assert len(names(api)) == 2


def reload(api: Server) -> None:
    assert api.client.post("/trainyard/v1/quotas:reload", headers=ADMIN).status_code == 200
