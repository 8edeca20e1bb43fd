"""The script that runs a job by hand, for jobs with images, whose engine is played by a program that prints."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from trainyard_cli.origin.repro import readme, script
from trainyard_protocol.views.origin import GitOrigin, JobOrigin

IMAGE = "gcr.io/p/trainer@sha256:" + "0" * 64
TREE = GitOrigin(commit="3f2a1c9" + "0" * 33, branch="main", dirty=True, changed=("a.py",), diff="+1", untracked=("b",))
ENGINE = """#!/usr/bin/env python3
import json, sys
print(json.dumps(sys.argv[1:]))
"""


def run(tmp_path: Path, training_input: dict[str, Any], packages: tuple[str, ...] = ()) -> list[str]:
    """The arguments that the engine gets from the script."""
    (tmp_path / "engine").write_text(ENGINE)
    (tmp_path / "run.sh").write_text(script("digits", "p", training_input, packages))
    for name in ("engine", "run.sh"):
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "DOCKER": str(tmp_path / "engine")}
    words: list[str] = json.loads(subprocess.check_output([tmp_path / "run.sh", "more"], env=environment))
    return words


def test_image_gets_its_variables_and_its_arguments(tmp_path: Path) -> None:
    words = run(
        tmp_path,
        {
            "masterConfig": {"imageUri": IMAGE},
            "workerCount": "3",
            "args": ["--note", "it's $HOME"],
            "env": {"MODE": "a b"},
            "jobDir": "gs://b/out",
            "secrets": [{"name": "KEY"}],
        },
    )
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


def test_package_in_an_image_is_installed_there(tmp_path: Path) -> None:
    training_input = {"masterConfig": {"imageUri": IMAGE}, "pythonModule": "trainer.task", "args": ["--lr", "0.1"]}
    words = run(tmp_path, training_input, ("packages/a.whl",))
    at = words.index(IMAGE)
    install = 'python3 -m pip install /packages/a.whl && exec python3 -m "$@"'
    assert words[at + 1 :] == ["-c", install, "sh", "trainer.task", "--lr", "0.1", "more"]
    assert f"{tmp_path}/packages:/packages:ro" in words


def test_readme_says_how_to_get_the_sources_and_what_is_missing() -> None:
    text = readme("digits", {"secrets": [{"name": "KEY"}]}, JobOrigin(git=TREE), " --project p")
    assert f"`git checkout {TREE.commit} && git apply changes.diff` restores the sources" in text
    assert "not in the repository are not here: b." in text
    assert "set KEY before" in text
    assert "--config config.yaml --project p`" in text
    clean = GitOrigin(commit=TREE.commit, dirty=True, changed=("a.py",))
    assert "git checkout" not in readme("digits", {}, JobOrigin(git=clean), "")
