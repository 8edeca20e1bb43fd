"""The script that runs a job by hand, for jobs with images, whose engine is played by a program that prints."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard_cli.capabilities.origins.repro import readme, script
from trainyard_protocol.answers.origin import GitOrigin, OriginView
from trainyard_protocol.wire.observations import ResolvedRun

IMAGE = "gcr.io/p/trainer@sha256:" + "0" * 64
TREE = GitOrigin(commit="3f2a1c9" + "0" * 33, branch="main", dirty=True, changed=("a.py",), diff="+1", untracked=("b",))
NO_IMAGES: Mapping[str, str] = {}
ENGINE = """#!/usr/bin/env python3
import json, sys
print(json.dumps(sys.argv[1:]))
"""


def run(
    tmp_path: Path,
    training_input: dict[str, Any],
    packages: tuple[str, ...] = (),
    images: Mapping[str, str] = NO_IMAGES,
) -> list[str]:
    """The arguments that the engine gets from the script."""
    (tmp_path / "engine").write_text(ENGINE)
    (tmp_path / "run.sh").write_text(script("digits", "p", training_input, packages, images))
    for name in ("engine", "run.sh"):
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "DOCKER": str(tmp_path / "engine")}
    words: list[str] = json.loads(subprocess.check_output([tmp_path / "run.sh", "more"], env=environment))
    return words


def test_image_gets_its_variables_and_its_arguments(tmp_path: Path) -> None:
    words = run(
        tmp_path,
        {
            "masterConfig": {"imageUri": IMAGE}, "workerCount": "3", "args": ["--note", "it's $HOME"],
            "env": {"MODE": "a b"}, "jobDir": "gs://b/out", "secrets": [{"name": "KEY"}],
        },
    )  # fmt: skip
    at = words.index(IMAGE)
    assert words[:2] == ["run", "--rm"]
    assert words[at + 1 :] == ["--note", "it's $HOME", "--job-dir", "/job-dir", "more"]
    assert {"MODE=a b", "TRAINYARD_JOB_DIR=/job-dir", "KEY", f"{tmp_path}/job-dir:/job-dir"} <= set(words[:at])
    (config,) = [word.removeprefix("TF_CONFIG=") for word in words if word.startswith("TF_CONFIG=")]
    assert json.loads(config)["cluster"] == {"master": ["127.0.0.1:2222"]}


def test_image_with_a_command_has_it_as_its_entry_point(tmp_path: Path) -> None:
    config = {"imageUri": IMAGE, "containerCommand": ["python", "-u"], "containerArgs": ["train.py"]}
    words = run(tmp_path, {"masterConfig": config, "args": ["--no"]})
    at = words.index(IMAGE)
    assert words[at - 2 : at] == ["--entrypoint", "python"]
    assert words[at + 1 :] == ["-u", "train.py", "more"]


def test_image_is_that_of_the_run_where_a_registry_has_it(tmp_path: Path) -> None:
    tagged, local = "gcr.io/p/trainer:1", "sha256:" + "1" * 64
    for digest, image in ((IMAGE, IMAGE), (local, tagged)):
        words = run(tmp_path, {"masterConfig": {"imageUri": tagged}}, images={tagged: digest})
        assert words[-2:] == [image, "more"]


def test_requirements_of_the_run_are_installed_without_those_of_the_machine(tmp_path: Path) -> None:
    text = script("digits", "p", {"pythonModule": "trainer.task"}, ("packages/a.whl",), NO_IMAGES)
    (tmp_path / "run.sh").write_text(text)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nmkdir -p "$here/venv/bin"\ncp "$0" "$here/venv/bin/python"\necho "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "here": str(tmp_path)}
    here, installing = str(tmp_path), "-m pip install"
    for requirements, first in (
        ("", [f"-m venv --system-site-packages {here}/venv"]),
        ("numpy==1.26.4\n", [f"-m venv {here}/venv", f"{installing} -r {here}/requirements.txt"]),
    ):
        if requirements:
            (tmp_path / "requirements.txt").write_text(requirements)
            (tmp_path / "venv" / "complete").unlink()
        printed = subprocess.check_output(["sh", tmp_path / "run.sh"], env=environment, text=True).splitlines()
        package = f"{here}/packages/a.whl"
        rest = [f"{installing} --force-reinstall --no-deps {package}", f"{installing} {package}", "-m trainer.task"]
        assert printed == [*first, *rest]
    assert subprocess.check_output(["sh", tmp_path / "run.sh"], env=environment, text=True) == "-m trainer.task\n"


def test_package_in_an_image_is_installed_there(tmp_path: Path) -> None:
    training_input = {"masterConfig": {"imageUri": IMAGE}, "pythonModule": "trainer.task", "args": ["--lr", "0.1"]}
    words = run(tmp_path, training_input, ("packages/a.whl",))
    at = words.index(IMAGE)
    install = 'python3 -m pip install /packages/a.whl && exec "$@"'
    assert words[at + 1 :] == ["-c", install, "sh", "python3", "-m", "trainer.task", "--lr", "0.1", "more"]
    assert f"{tmp_path}/packages:/packages:ro" in words


def test_readme_says_how_to_get_the_sources_and_what_is_missing() -> None:
    text = readme("digits", {"secrets": [{"name": "KEY"}]}, OriginView(git=TREE), " --project p")
    assert f"`git checkout {TREE.commit} && git apply changes.diff` restores the sources" in text
    assert "not in the repository are not here: b." in text
    assert "set KEY before" in text
    assert "--config config.yaml --project p`" in text
    resolved = ResolvedRun(requirements="numpy==1.26.4\n", images={"a:1": "a@sha256:1"})
    text = readme("digits", {}, OriginView(resolved=resolved, run=2), "")
    assert "the packages of its run 2, which `run.sh` installs" in text
    assert "`a:1` was `a@sha256:1`" in text
    clean = GitOrigin(commit=TREE.commit, dirty=True, changed=("a.py",))
    assert "git checkout" not in readme("digits", {}, OriginView(git=clean), "")
