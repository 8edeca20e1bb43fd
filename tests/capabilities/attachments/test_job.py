"""The job of `jobs dev`, from its flags and its config."""

import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from trainyard_cli.capabilities.attachments.dev.job import DevJob, dev_job, is_dev_job
from trainyard_cli.capabilities.attachments.dev.tree import CodeDirectory
from trainyard_cli.submission import submit
from trainyard_cli.submission.config_file import ConfigFile, load
from trainyard_cli.submission.flags import JobFlags
from trainyard_protocol.errors import InvalidArgument


def config_of(directory: Path, text: str) -> ConfigFile:
    path = directory.parent / "config.yaml"
    path.write_text(text)
    return load(path)


def drafted(config: ConfigFile | None, waiting: DevJob, directory: Path) -> dict[str, Any]:
    """The body of the job with its default name."""
    draft = submit.draft(config, waiting.flags, current_dir=directory, user_args=waiting.arguments)
    draft = waiting.change(draft)
    return draft.named(next(submit.job_names(draft)))


def read(wheel: str) -> tuple[dict[str, Any], list[str]]:
    """The manifest of a program's wheel, and the names of its files."""
    with zipfile.ZipFile(wheel) as archive:
        assert "def is_idle" in archive.read("trainyard_program/waiter.py").decode()
        program = json.loads(archive.read("trainyard_program/program.json"))
        with tarfile.open(fileobj=archive.open("trainyard_program/files.tar")) as files:
            return program, files.getnames()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "code"
    directory.mkdir()
    return directory


def test_job_waits_with_the_requirements_of_the_directory_and_the_fields_of_the_config(code: Path) -> None:
    (code / "requirements.txt").write_text("numpy>=2\n")
    config = config_of(
        code,
        "labels: {team: vision}\n"
        "trainingInput: {pythonModule: trainer.task, args: [--epochs, '5'], packageUris: ['gs://b/own.tar.gz']}\n",
    )
    flags = JobFlags({"package_path": str(code)})
    with dev_job(config, flags, CodeDirectory.of(code), idle_s=90, notebook=True) as waiting:
        body = drafted(config, waiting, code)
        uri, wheel = waiting.flags.packages
        program, files = read(wheel)
    assert uri == "gs://b/own.tar.gz"
    assert program["install"]["steps"] == [
        {"what": "packages", "packages": ["jupyterlab"]},
        {"what": "requirements", "file": "requirements.txt"},
    ]
    assert files == ["requirements.txt"]
    assert is_dev_job(body)
    assert body["labels"] == {"team": "vision", "trainyard-dev": "true", "trainyard_stall_limit": "604800"}
    fields = body["trainingInput"]
    assert (fields["pythonModule"], fields["args"], fields["enableWebAccess"]) == ("trainyard_dev", ["90"], True)


def test_image_waits_by_a_command_in_each_role_that_has_replicas(code: Path) -> None:
    config = config_of(
        code,
        "trainingInput:\n  workerCount: 2\n  masterConfig: {imageUri: img, containerArgs: [--train]}\n"
        "  workerConfig: {imageUri: img}\n",
    )
    with dev_job(config, JobFlags({}), CodeDirectory.of(code), idle_s=3600, notebook=False) as waiting:
        fields = drafted(config, waiting, code)["trainingInput"]
    assert "packageUris" not in fields
    assert fields["args"] == []
    for role in ("master", "worker"):
        start, option, source, idle = fields[f"{role}Config"]["containerCommand"]
        assert (start, option, "def is_idle" in source, idle) == ("python3", "-c", True, "3600")
        assert fields[f"{role}Config"]["containerArgs"] == []
    assert "parameterServerConfig" not in fields


def test_study_is_refused(code: Path) -> None:
    config = config_of(code, "trainingInput: {hyperparameters: {goal: MAXIMIZE}}\n")
    with (
        pytest.raises(InvalidArgument, match="that of a study"),
        dev_job(config, JobFlags({}), CodeDirectory.of(code), idle_s=1, notebook=False),
    ):
        pass
