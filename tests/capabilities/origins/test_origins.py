"""The origin of a job: recorded once by whoever may change the job, read by everybody who sees it; and its packages."""

import hashlib
from typing import Any

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, ALICE, BOB, VERA, ScriptedAgent, Server, running_agent
from trainyard_protocol.answers.origin import MAX_DIFF
from trainyard_protocol.wire.observations import MAX_REQUIREMENTS, ResolvedRun
from trainyard_protocol.wire.sync import SyncRequest

JOB = "/trainyard/v1/projects/p/jobs/job"
GIT = {
    "commit": "3f2a1c9" + "0" * 33,
    "branch": "main",
    "remote": "https://example.com/a.git",
    "dirty": True,
    "changed": ["a.py", "b.py"],
    "untracked": ["notes.txt"],
    "diff": "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-é\n+\ufffd\x1b\n",
}
ORIGIN: dict[str, Any] = {"git": GIT, "client": "trainyard 0.1.0", "python": "3.11.2"}


def put(api: Server, origin: object, who: dict[str, str] = ALICE, job: str = JOB) -> tuple[int, str]:
    answer = api.client.request("PUT", f"{job}/origin", json=origin, headers=who)
    return answer.status_code, answer.text


@on_every_database
def test_origin_is_recorded_once_and_read_by_all_who_see_the_job(api: Server) -> None:
    api.create(who=ALICE)
    api.refusal("GET", f"{JOB}/origin", 404, "has no origin", VERA)
    assert api.done("GET", JOB, VERA)["origin"] is None
    assert put(api, ORIGIN, VERA)[0] == put(api, ORIGIN, BOB)[0] == 403
    assert put(api, ORIGIN)[0] == put(api, ORIGIN)[0] == put(api, ORIGIN, ADMIN)[0] == 200
    status, text = put(api, {**ORIGIN, "python": "3.12.1"})
    assert (status, "does not change afterwards" in text) == (409, True)
    read = api.done("GET", f"{JOB}/origin", VERA)
    assert {name: read[name] for name in ORIGIN} == {**ORIGIN, "git": {**GIT, "more_files": 0, "diff_note": ""}}
    short = api.done("GET", JOB, VERA)["origin"]
    assert (short["commit"], short["changed"], short["untracked"]) == (GIT["commit"], 2, 1)
    diff = api.client.get(f"{JOB}/origin/diff", headers=VERA)
    assert (diff.text, diff.headers["content-type"]) == (GIT["diff"], "text/plain; charset=utf-8")
    assert put(api, ORIGIN, job=JOB + "x")[0] == 404
    api.create("without", who=ALICE)
    without = JOB.replace("jobs/job", "jobs/without")
    assert put(api, {"rerun_of": "first"}, job=without)[0] == 200
    api.refusal("GET", f"{without}/origin/diff", 404, "has no diff", VERA)


def test_origin_beyond_its_bounds_is_refused(api: Server) -> None:
    api.create(who=ALICE)
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"git": {"commit": "main"}}, 400, "must be the 40 or 64 hexadecimal digits"),
        ({"git": {"diff": "x" * (MAX_DIFF + 1)}}, 400, "at most 1048576 characters"),
        ({"git": {"diff": "a\0b"}}, 400, "NUL"),
        ({"git": {"changed": ["x"] * 1001}}, 400, "at most 1000 items"),
        ({"git": {"branch": "b" * 257}}, 400, "at most 256 characters"),
        ({"packages": {"gs://a/b.whl": "abc"}}, 400, "must be the 64 hexadecimal digits of a SHA-256"),
        ({"git": {"diff": "\U0001f600" * 3 * 2**20}}, 413, "larger than the limit of 8388608 bytes"),
    ]
    for origin, status, says in wrong:
        answered, text = put(api, origin)
        assert (answered, says in text) == (status, True), text[:500]
    largest = {"git": {**GIT, "diff": "\x1b" * MAX_DIFF, "changed": ["é" * 1000] * 1000}}
    assert put(api, largest)[0] == 200
    assert api.client.get(f"{JOB}/origin/diff", headers=VERA).text == largest["git"]["diff"]


def test_trial_has_the_origin_of_its_study_and_both_go_with_it(api: Server, agent: ScriptedAgent) -> None:
    tuned = {"parameterName": "lr", "type": "DOUBLE", "minValue": 0, "maxValue": 1}
    api.create(who=ALICE, hyperparameters={"params": [tuned], "maxTrials": 1})
    assert put(api, ORIGIN)[0] == 200
    agent.turn()
    trial = f"{JOB}.1"
    assert api.done("GET", f"{trial}/origin", VERA)["git"]["branch"] == "main"
    assert api.done("GET", trial, VERA)["origin"]["commit"] == GIT["commit"]
    status, text = put(api, ORIGIN, job=trial)
    assert (status, "is a trial of job" in text) == (400, True)
    agent.start()
    agent.measure(agent.run, 0.5)
    agent.exit()
    api.tick()
    api.tick()
    api.delete_job(who=ALICE)
    assert api.status("GET", f"{JOB}/origin", VERA) == 404


def test_packages_of_a_job_are_downloaded_by_all_who_see_it_and_no_others(api: Server) -> None:
    uri = api.upload(who=ALICE)["uri"]
    api.create(who=ALICE, packageUris=[uri])
    api.create("without", who=ALICE)
    name = uri.removeprefix("staging://")
    assert api.client.get(f"{JOB}/packages/{name}", headers=VERA).content == b"package"
    other = hashlib.sha256(b"other").hexdigest()
    for path in (f"{JOB}/packages/{other}/x-1.tar.gz", f"/trainyard/v1/projects/p/jobs/without/packages/{name}"):
        assert api.status("GET", path, VERA) == 404


def test_what_a_run_resolved_is_wanted_until_it_is_reported_and_then_kept(api: Server, agent: ScriptedAgent) -> None:
    api.create(who=ALICE)
    agent.turn()
    assert agent.run.wants_resolved
    images = {"a:1": "a@sha256:1", **{f"n{number}": "\0" for number in range(20)}, "long": "x" * 2000}
    for requirements in ("numpy==1.26.4\n" * 10_000, "other==1\n"):
        resolved = ResolvedRun(images=images, requirements=requirements, installed=["Installed 1 package in 1 s"])
        reports = tuple(report.model_copy(update={"resolved": resolved}) for report in agent.reports())
        body = SyncRequest(agent=agent.info, runs=reports).model_dump(mode="json")
        api.done("POST", "/agent/v1/sync", AGENT, json=body)
    agent.sync()
    assert {run.wants_resolved for run in agent.runs.values()} == {False}
    assert api.events().count("Installed 1 package in 1 s.") == 1
    read = api.done("GET", f"{JOB}/origin", VERA)
    assert (read["git"], read["run"], read["resolved"]["images"]["a:1"]) == (None, 1, "a@sha256:1")
    assert len(read["resolved"]["images"]) == 10
    stored = read["resolved"]["requirements"]
    assert (set(stored.splitlines()), len(stored) <= MAX_REQUIREMENTS) == ({"numpy==1.26.4"}, True)


def test_link_gives_a_package_to_whoever_has_it_until_its_run_ends(api: Server) -> None:
    staged = api.upload(name="trainer-0+local.tar.gz")
    agent = running_agent(api, packageUris=[staged["uri"], "gs://bucket/other.whl"])
    links = api.done("GET", f"/agent/v1/runs/{agent.run.run_id}/packages", AGENT)["paths"]
    assert list(links) == [staged["uri"]]
    link = links[staged["uri"]]
    answer = api.client.get(link)
    assert (answer.status_code, answer.content) == (200, b"package")
    assert answer.headers["Cache-Control"] == "no-store"
    forged = (
        link.partition("?")[0],
        link[:-1] + ("0" if link[-1] != "0" else "1"),
        link.replace(agent.run.run_id, "0" * 32),
        link.replace(staged["sha256"], "0" * 64),
    )
    assert {one: api.client.get(one).status_code for one in forged} == dict.fromkeys(forged, 403)
    agent.exit()
    assert api.client.get(link).status_code == 404
