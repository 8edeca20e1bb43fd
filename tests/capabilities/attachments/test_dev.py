"""`jobs dev` with real processes: its code, its shell, and its end."""

from pathlib import Path

import pexpect
import pytest

from e2e.harness import Service, local

pytestmark = pytest.mark.e2e

PATIENCE_S = 120


def source(service: Service, name: str) -> Path:
    directory = service.work / name
    directory.mkdir()
    (directory / "train.py").write_text("print('first')\n")
    service.config(f"{name}.yaml", pythonModule=None, **local())
    return directory


def words(service: Service, job: str, *more: str) -> tuple[str, ...]:
    return ("jobs", "dev", job, "--config", str(service.work / f"{job}.yaml"), *more)


def test_change_is_in_the_replica_after_the_next_call_and_the_job_ends_when_it_is_idle(service: Service) -> None:
    code = source(service, "edited")
    (code / "removed.py").touch()
    done = service.done(*words(service, "edited", "--idle", "40s"), cwd=code)
    assert "Job [edited] submitted successfully." in done.stderr
    assert "Synchronised 2 files, 2 of them changed: " in done.stderr
    assert "Enter it again: jobs dev edited" in done.stderr
    assert service.value("edited", "labels.trainyard-dev") == "true"
    (code / "train.py").write_text("print('second')\n")
    (code / "removed.py").unlink()
    done = service.done("jobs", "dev", "edited", cwd=code)
    assert "Synchronised 1 files, 1 of them changed: " in done.stderr
    shown = service.ok("jobs", "exec", "edited", "--", "sh", "-c", "cd trainyard-dev/code && ls && cat train.py")
    assert shown == "train.py\nprint('second')\n"
    other = service.run("jobs", "dev", "edited", cwd=service.work)
    assert (other.returncode, "comes from" in other.stderr) == (1, True), other.stderr
    service.wait_for("edited", "SUCCEEDED")
    assert "Nothing used it for 40 s: it ends." in service.log("edited")
    ended = service.run("jobs", "dev", "edited", cwd=code)
    assert (ended.returncode, "edited has ended: it is SUCCEEDED." in ended.stderr) == (1, True), ended.stderr


def test_shell_is_in_the_code_which_follows_what_is_edited_and_keeps_the_job_while_it_is_open(service: Service) -> None:
    code = source(service, "typed")
    (code / "setup.py").write_text("from setuptools import setup\nsetup(name='typed', py_modules=['train'])\n")
    shell = on_terminal(service, code, *words(service, "typed", "--idle", "5s"))
    shell.sendline("python train.py; basename $PWD; python -c 'import train; print(train.__file__)'")
    shell.expect("first\r\n")
    shell.expect("code\r\n")
    shell.expect(r"first\r\n/.*/trainyard-dev/code/train.py\r\n")
    (code / "train.py").write_text("print('edited')\n")
    shell.sendline("until grep -q edited train.py; do sleep 0.1; done; python train.py")
    shell.expect(r"[\r\n]edited\r\n")
    shell.sendline("sleep 8; echo slept$((1 + 1))")  # longer than the job may be idle
    shell.expect("slept2\r\n")
    assert service.state("typed") == "RUNNING"
    other = on_terminal(service, code, "jobs", "shell", "typed")
    assert left(shell) == 3
    service.done("jobs", "dev", "typed", "--no-shell", "--rm", cwd=code)
    service.wait_for("typed", "CANCELLED")
    other.close()


def on_terminal(service: Service, directory: Path, *words: str) -> "pexpect.spawn[str]":
    """A command with a shell on a terminal, once that prompts."""
    environment = {**service.environment, "TERM": "xterm"}
    shell = pexpect.spawn("trainyard", list(words), env=environment, cwd=str(directory), encoding="utf-8")
    shell.timeout = PATIENCE_S
    shell.expect(r"[#$] ")
    return shell


def left(shell: "pexpect.spawn[str]") -> int:
    shell.sendline("exit 3")
    shell.expect("continues until it is idle")
    shell.expect(pexpect.EOF)
    shell.close()
    return int(shell.exitstatus)


def test_usage_that_cannot_be_is_refused_in_a_sentence(service: Service) -> None:
    code = source(service, "refused")
    service.ok("jobs", "submit", "training", "other", *words(service, "refused")[3:], "--package-path", str(code))
    cases = {
        ("refused", "--sweep", "lr=1,2"): "in place of a program",
        ("refused", "--idle", "0s"): "must be at least 1s",
        ("refused", "--package-path", str(code / "train.py")): "is not a directory",
        ("other",): "other is not a job of `jobs dev`",
    }
    for given, message in cases.items():
        done = service.run("jobs", "dev", *given, cwd=code)
        assert (done.returncode != 0, message in done.stderr) == (True, True), (given, done.stderr)
        assert "Traceback" not in done.stderr
    service.wait_for("other", "SUCCEEDED")
