"""The origin of a job, from `jobs submit` to `jobs repro`, against a server whose agent plays a trainer."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.commands.conftest import Jobs
from trainyard import Client
from trainyard_protocol import __version__
from trainyard_protocol.answers.origin import JobOrigin
from trainyard_protocol.errors import NotFound, PermissionDenied


@pytest.fixture
def tree(client: Client, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the client, with its package and its config, as a repository with a change."""
    directory = Path.cwd()
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(directory))
    (directory / ".gitignore").write_text("server/\nmodel/\n*.pyc\n")
    for words in (["init", "-q", "-b", "main"], ["add", "trainer", "config.yaml"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True)
    (directory / "trainer" / "task.py").write_text("print('changed')\n")
    return directory


def origin_of(client: Client, job: str) -> JobOrigin:
    return JobOrigin.model_validate(client._http.get_origin(job))


def wait(client: Client) -> None:
    for job in client.jobs():
        job.wait(timeout=60)


def test_job_has_the_commit_and_the_changes_of_its_package_and_keeps_them_when_it_runs_again(
    client: Client, tree: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, text = jobs("submit training first --package-path trainer --module-name trainer.task")
    assert code == 0, text
    first = origin_of(client, "first")
    assert first.git is not None
    assert "+print('changed')" in first.git.diff
    assert (first.git.branch, first.git.changed) == ("main", ("trainer/task.py",))
    assert first.client == f"trainyard {__version__}"
    (digest,) = first.packages.values()
    assert digest in next(iter(first.packages))
    shown = jobs("describe first")[1]
    assert f"Origin: {first.git.commit[:7]} (main, dirty, 1 file, 1 untracked)" in shown

    (tree / "trainer" / "task.py").write_text("print('changed again')\n")
    code, text = jobs("rerun first second --set-arg lr=0.2")
    assert code == 0, text
    assert origin_of(client, "second") == first.model_copy(update={"rerun_of": "first"})
    assert "Rerun of: first" in jobs("describe second")[1]
    code, text = jobs("rerun first third --package-path trainer --no-diff")
    assert code == 0, text
    third = origin_of(client, "third")
    assert third.git is not None
    assert (third.rerun_of, third.git.commit, third.git.diff) == ("first", first.git.commit, "")
    wait(client)
    table = jobs("diff first third")[1]
    changes = r"origin.changes +2 files \(SHA-256 (\w+)\) +2 files \(SHA-256 (\w+)\)"
    found = re.search(changes, table)
    assert found is not None, table
    assert found[1] != found[2]
    assert "origin" not in jobs("diff first second")[1]

    monkeypatch.setenv("TRAINYARD_NO_DIFF", "1")
    again = client.submit(package_path="trainer", module_name="trainer.task", job_id="fourth")
    tree_of_it = origin_of(client, again.id).git
    assert tree_of_it is not None
    assert (tree_of_it.dirty, tree_of_it.diff) == (True, "")
    wait(client)


@pytest.mark.parametrize(
    ("error", "says"), [(NotFound("no such path"), ""), (PermissionDenied("not you"), "was not recorded: not you")]
)
def test_job_runs_though_its_origin_cannot_be_recorded(
    client: Client, tree: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("trainyard_cli.v1_client.V1Client.set_origin", refuse)
    code, text = jobs("submit training first --package-path trainer --module-name trainer.task")
    assert code == 0, text
    assert ("origin" in text) == bool(says)
    assert says in text
    wait(client)


HARD = ["--text", 'it\'s $HOME `id` "x"\n', "*", ""]
PROGRAM = """\
import json, os, sys
names = ("TF_CONFIG", "MODE", "TRAINYARD_JOB_DIR")
seen = {"argv": sys.argv[1:], "cwd": os.getcwd(), **{name: os.environ[name] for name in names}}
with open(os.path.join(os.environ["TRAINYARD_JOB_DIR"], "seen.json"), "w") as file:
    json.dump(seen, file)
"""


@pytest.mark.slow
def test_job_is_run_by_hand_from_the_directory_that_repro_writes(
    client: Client, tree: Path, jobs: Jobs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tree / "trainer" / "task.py").write_text(PROGRAM)
    cluster = {"scaleTier": "CUSTOM", "masterType": "local-1", "workerType": "local-1", "workerCount": "2"}
    program: dict[str, Any] = {"package_path": "trainer", "module_name": "trainer.task", "args": HARD}
    given = {"env": {"MODE": "a 'b'"}, "job_dir": "gs://models/first", "job_id": "first", **program}
    client.submit({"trainingInput": cluster}, **given)
    out = tmp_path_factory.mktemp("out") / "it's here"
    code, text = jobs(["repro", "first", str(out / "first")])
    assert code == 0, text
    assert sorted(path.name for path in (out / "first").iterdir()) == [
        *("README.md", "changes.diff", "config.yaml", "origin.json", "packages", "run.sh")
    ]
    moved = out / "moved"
    (out / "first").rename(moved)
    for more in ((), ("--more", "x y")):
        ended = subprocess.run(
            [moved / "run.sh", *more], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        seen = json.loads((moved / "job-dir" / "seen.json").read_text())
        assert seen["argv"] == [*HARD, "--job-dir", str(moved / "job-dir"), *more]
    assert (seen["cwd"], seen["MODE"]) == (str(moved / "work" / "program"), "a 'b'")
    config = json.loads(seen["TF_CONFIG"])
    assert (config["cluster"], config["task"]["type"]) == ({"chief": ["127.0.0.1:2222"]}, "chief")
    assert "worker_count" not in config["job"]
    assert "`git checkout" in (moved / "README.md").read_text()

    code, text = jobs(["submit", "training", "again", "--config", str(moved / "config.yaml")])
    assert code == 0, text
    again, first = (client.job(job).detail().job["trainingInput"] for job in ("again", "first"))
    assert {**again, "jobDir": ""} == {**first, "jobDir": ""}

    code, text = jobs(["repro", "first", str(moved)])
    assert (code, "exists and is not an empty directory" in text) == (1, True), text
    code, text = jobs("repro no_such_job")
    assert (code, "no_such_job" in text, Path("no_such_job").exists()) == (1, True, False), text


def test_changed_package_is_not_written(
    client: Client, tree: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.submit(package_path="trainer", module_name="trainer.task", job_id="first")
    wait(client)

    def spoiled(_client: object, _job: str, _sha256: str, _filename: str, to: Path) -> None:
        to.write_bytes(b"other")

    monkeypatch.setattr("trainyard_cli.client.Client.download_package", spoiled)
    code, text = jobs("repro first copy")
    assert (code, "has the SHA-256" in text, Path("copy").exists()) == (1, True, False), text


def test_job_runs_again_with_the_same_packages_and_one_change(client: Client, jobs: Jobs) -> None:
    given = {"labels": {"team": "a"}, "env": {"MODE": "x"}, "job_dir": "gs://models/first", "package_path": "trainer"}
    args = ["--epochs", "2", "--lr=0.1"]
    first = client.submit(module_name="trainer.task", job_id="first", args=args, **given).detail().job  # type: ignore[arg-type]
    code, err = jobs("rerun first second --set-arg lr=0.2 --env MODE=y --region here")
    assert code == 0, err
    assert "The arguments of first, changed: --epochs 2 --lr=0.2" in err
    assert "Its job-dir is gs://models/second" in err
    again = client.job("second").detail().job
    sent = {**first["trainingInput"], "args": ["--epochs", "2", "--lr=0.2"], "env": {"MODE": "y"}, "region": "here"}
    assert again["trainingInput"] == {**sent, "jobDir": "gs://models/second"}
    assert again["labels"] == {"team": "a"}

    for job in ("first", "second"):
        client.job(job).wait(timeout=60)
    table = [line.split() for line in jobs("diff first second")[1].splitlines()]
    assert table == [
        ["FIELD", "first", "second"],
        ["args.--lr", "0.1", "0.2"],
        ["jobDir", "gs://models/first", "gs://models/second"],
        ["env.MODE", "x", "y"],
        ["region", "here"],
    ]
    assert "first and first have the same arguments" in jobs("diff first first")[1]

    code, err = jobs("rerun first --job-dir gs://models/third")
    assert code == 0, err
    (third,) = [job for job in client.jobs() if job.id.startswith("first_20")]
    assert third.detail().job["trainingInput"] == {**first["trainingInput"], "jobDir": "gs://models/third"}
    assert jobs("rerun second last -- --epochs 9")[0] == 0
    assert client.job("last").detail().job["trainingInput"]["args"] == ["--epochs", "9"]
    assert "give either --set-arg or all arguments" in jobs("rerun first --set-arg a=1 -- --epochs 9")[1]
    assert "argument --raw: It needs --stream-logs." in jobs("rerun first --raw")[1]
    code, err = jobs("rerun no_such_job")
    assert (code, "no_such_job" in err) == (1, True), err
    for made in client.jobs():
        made.wait(timeout=60)
