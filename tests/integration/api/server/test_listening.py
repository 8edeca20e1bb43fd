"""A service of one person that other machines reach: `trainyard up --listen`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.api.api_support import ALICE, Clock, Server, server


@pytest.fixture
def listening(tmp_path: Path) -> dict[str, Any]:
    """The settings of such a service."""
    return {
        "one_user": True,
        "https_address": "10.0.0.7",
        "job_dir_roots": (str(tmp_path / "jobs"),),
        "default_job_dir": str(tmp_path / "jobs"),
        "new_default_job_dir": "gs://trainyard-{project}",
        "storage_emulator": "http://127.0.0.1:9",
    }


@pytest.fixture
def api(tmp_path: Path, listening: dict[str, Any]) -> Iterator[Server]:
    with server(tmp_path / "server", Clock(), **listening) as api:
        yield api


def test_submitter_whose_jobs_would_run_as_the_user_of_the_service_is_refused(api: Server) -> None:
    for params in ({"validateOnly": "true"}, {}):
        refused = api.submit(who=ALICE, params=params)
        says = "so only operators submit them. One of them makes others"
        assert (refused.status_code, says in refused.json()["error"]["message"]) == (403, True)
        api.create(params=params)


def test_files_outside_of_the_directories_of_jobs_are_not_shown(api: Server, tmp_path: Path) -> None:
    for number, directory in enumerate(("/etc", str(tmp_path), str(tmp_path / "jobs" / ".." / "server"))):
        api.create(f"job_{number}", jobDir=directory)
        path = f"/trainyard/v1/projects/p/jobs/job_{number}/files"
        api.refusal("GET", path, 400, "--job-dir-root of the server", ALICE)


def test_jobs_of_before_and_after_keep_their_directories(tmp_path: Path, listening: dict[str, Any]) -> None:
    clock, alone = Clock(), {**listening, "https_address": "", "new_default_job_dir": ""}
    for job_id, settings in (("before", alone), ("between", listening), ("after", alone)):
        clock.advance(60)
        with server(tmp_path / "server", clock, **settings) as api:
            api.create(job_id)
    clock.advance(60)
    with server(tmp_path / "server", clock, **listening) as api:
        directories = [api.detail(job_id)["job_dir"] for job_id in ("before", "between", "after")]
    own = tmp_path / "jobs" / "p"
    assert directories == [f"{own}/before", "gs://trainyard-p/p/admin/between", f"{own}/after"]


def test_job_is_refused_where_its_bucket_is_another_projects(tmp_path: Path, listening: dict[str, Any]) -> None:
    answers = []
    for project, root in (("trainyard", "gs://{project}-x"), ("x", "gs://trainyard-{project}")):
        with server(tmp_path / "server", Clock(), **{**listening, "new_default_job_dir": root}) as api:
            answers.append(api.submit(project=project))
    assert [answer.status_code for answer in answers] == [200, 400]
    assert "gs://trainyard-x for jobs without a job-dir is another project's" in answers[1].text
