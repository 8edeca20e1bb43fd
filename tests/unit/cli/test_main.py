import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from trainyard_cli.commands import tree
from trainyard_cli.main import run
from unit.cli.scripted_server import ScriptedServer, ok

HEAVY = ("httpx", "rich", "pydantic", "yaml", "psutil", "jax", "google", "setuptools", "docker", "requests", "mcp")


def run_with(error: BaseException, *, output: str = "") -> int:
    @click.command()
    def broken() -> None:
        click.echo(output, nl=False)
        raise error

    return run(broken, "trainyard", [])


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    for name in ("TRAINYARD_SERVER", "TRAINYARD_TOKEN", "TRAINYARD_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def test_run_bug_is_one_line_with_the_path_of_a_private_crash_log_if_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(ZeroDivisionError("by zero\nand more")) == 70
    message = capsys.readouterr().err
    assert message.startswith("ERROR: this is a bug in trainyard: ZeroDivisionError: by zero (details: ")
    assert message.count("\n") == 1
    (log,) = (tmp_path / "state" / "crash").iterdir()
    assert str(log) in message
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "file"))
    assert run_with(ZeroDivisionError()) == 70
    assert "could not be written: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_run_interrupted_exits_130(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(error) == 130
    assert "Interrupted." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "jobs submit training --async --stream-logs",
            "ERROR: (trainyard.jobs.submit.training) argument --async: "
            "At most one of --async | --stream-logs can be specified.",
        ),
        ("jobs submit training --raw", "argument --raw: It needs --stream-logs."),
        ("jobs submit training --cancel-on-interrupt", "argument --cancel-on-interrupt: It needs --stream-logs."),
        ("jobs submit training --no-such-flag", "No such option"),
        ("jobs submit training a b", "unexpected extra argument"),
        ("jobs submit training --scale-tier huge", "--scale-tier"),
        ("jobs submit training --labels novalue", "Bad syntax for dict arg: [novalue]"),
        ("jobs submit training --master-accelerator kind=x", "valid keys are [type, count]"),
        ("jobs submit training --staging-bucket b", "Must be of form gs://BUCKET"),
        ("jobs update j", "At least one of --clear-labels | --note | --remove-labels | --update-labels"),
        ("jobs update j --clear-labels --remove-labels a", "At most one of --clear-labels | --remove-labels"),
        ("jobs describe", "JOB"),
        ("jobs list --format xml", "is unknown"),
        ("jobs list --watch", "argument --watch: It needs a terminal."),
        ("jobs list --watch --wide", "argument --watch: It goes with --filter and --limit alone."),
        ("jobs list --limit 0", "argument --limit: must be a whole number, at least 1; this is 0."),
        ("jobs metrics j --points x", "--points: must be a whole number, at least 10, at most 10,000; this is x."),
        ("up --memory-gb 0", "argument --memory-gb: must be a number, above 0; this is 0.0."),
        ("jobs list -o json --format json", "At most one of --format | --output"),
        ("jobs nothing", "No such command"),
        ("jobs", "Usage: trainyard jobs"),
        ("up --capacity huge", "--capacity"),
        ("up --keep-jobs soon", "must be a duration such as 30s, 10m, 2h, 1d or 1w; this is 'soon'."),
        ("up --keep-jobs 0d", "must be above 0: a job that ends must be there to be read."),
        ("jobs wait j --timeout 5", "must be a duration such as 30s, 10m, 2h, 1d or 1w; this is '5'."),
        ("jobs wait", "Missing argument 'JOB...'"),
    ],
)
def test_run_wrong_usage_exits_2_with_the_reason(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree.trainyard, "trainyard", words.split()) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("verb", ["list", "describe j", "cancel j", "stream-logs j", "explain j"])
def test_verb_without_a_server_explains_how_to_get_one(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree.trainyard, "trainyard", ["jobs", *verb.split()]) == 1
    assert "No server is configured. Start one" in capsys.readouterr().err


def test_status_and_down_where_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree.trainyard, "trainyard", ["status"]) == 3
    assert "was never started" in capsys.readouterr().out
    assert run(tree.trainyard, "trainyard", ["down"]) == 0
    assert capsys.readouterr().out == "The local service was not running.\n"
    assert not (tmp_path / "state").exists()


def test_help_and_flags_of_commands_are_there_without_anything_heavy() -> None:
    program = (
        "import sys; from trainyard_cli.commands import tree; from trainyard_cli.main import run;"
        "jobs = [['jobs', name] for name in tree.trainyard.commands['jobs'].commands];"
        "there = lambda group, words: not words or words[0] in getattr(group, 'commands', ())"
        " and there(group.commands[words[0]], words[1:]);"
        "others = ['jobs submit training', 'runtimes build', 'build', 'doctor', 'connect google'];"
        "lines = [*jobs, *(words for words in map(str.split, others) if there(tree.trainyard, words))];"
        "codes = [run(tree.trainyard, 'trainyard', [*words, '--help']) for words in lines];"
        f"print(any(codes), [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "False []\n"


def test_up_starts_the_processes_before_it_loads_a_client() -> None:
    program = (
        "import sys; from unittest import mock; from trainyard_cli.local import service;"
        "from trainyard_cli.commands import tree; from trainyard_cli.main import run;"
        f"look = lambda *_: print([name for name in {HEAVY!r} if name in sys.modules]) or sys.exit();"
        "mock.patch.object(service.LocalState, 'start', look).start();"
        "run(tree.trainyard, 'trainyard', ['up'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_list_of_jobs_loads_no_models_and_no_command_line_of_httpx(script: ScriptedServer) -> None:
    program = (
        "import sys, trainyard_cli.__main__;"
        "from trainyard_cli.commands import tree; from trainyard_cli.main import run;"
        "code = run(tree.trainyard, 'trainyard', ['jobs', 'list']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules and name != 'httpx'])"
    )
    script.answers = [ok({"jobs": [{"jobId": "a", "state": "QUEUED"}]})]
    environment = {**os.environ, "TRAINYARD_SERVER": script.url, "TRAINYARD_TOKEN": "secret"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["a", "QUEUED"]
    assert lines[-1] == "[]"


def test_output_that_nobody_reads_any_more_ends_quietly_with_141(tmp_path: Path) -> None:
    program = (
        "import click; from trainyard_cli.main import run;"
        "f = click.Command('x', callback=lambda: [click.echo('y' * 100) for _ in range(10000)]);"
        "import sys; sys.exit(run(f, 'x', []))"
    )
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE) as child:
        os.close(writer)
        os.close(reader)
        _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (141, b"")


def test_commands_with_closed_streams_and_pipes_end_without_a_traceback(script: ScriptedServer) -> None:
    script.answers = [ok({"jobs": [{"jobId": f"a{n}", "state": "QUEUED"} for n in range(9)]})]
    environment = {**os.environ, "TRAINYARD_SERVER": script.url, "TRAINYARD_TOKEN": "secret"}
    rows = {
        ("jobs list", ">&-"): (0, ""),
        ("jobs list", "2>&-"): (0, "JOB_ID"),
        ("jobs list", "<&-"): (0, "JOB_ID"),
        ("jobs list", "| exec 0<&-"): (141, ""),
        ("jobs list --format json", "2>&1 >/dev/null | exec 0<&-"): (0, ""),
        ("jobs --help", "| exec 0<&-"): (141, ""),
        ("--help", ">&- 2>&-"): (0, ""),
        ("nothing", ">&-"): (2, "No such command"),
        ("nothing", "2>&-"): (2, ""),
    }
    wrong = {}
    for (command, streams), (code, text) in rows.items():
        line = f"set -o pipefail; {sys.executable} -m trainyard_cli {command} {streams}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=environment)
        printed = done.stdout + done.stderr
        expected = text in printed if text else not printed
        if done.returncode != code or not expected or "Traceback" in printed:
            wrong[f"{command} {streams}"] = (done.returncode, printed)
    assert not wrong


def test_output_to_a_full_disk_is_one_line_and_no_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "trainyard_cli", "jobs", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    sentence = "could not be written: No space left on device. Make room, or write elsewhere.\n"
    assert (done.returncode, done.stderr) == (1, f"ERROR: The output {sentence}")
    assert run_with(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x")) == 1
    assert capsys.readouterr().err == f"ERROR: /data/x {sentence}"
    assert not (tmp_path / "state").exists()


def test_path_that_cannot_be_used_is_one_line_and_no_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/home/a/train.sh")) == 1
    sentence = "cannot be used: Permission denied. Check the path and its permissions.\n"
    assert capsys.readouterr().err == f"ERROR: /home/a/train.sh {sentence}"
    assert run(tree.trainyard, "trainyard", ["jobs", "validate", "--package-path", "a" * 300]) == 1
    assert "cannot be used: File name too long." in capsys.readouterr().err
    no_directory = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    assert run_with(no_directory) == 1
    assert capsys.readouterr().err.endswith("one that can be written and has room, in the variable TMPDIR.\n")
    assert run_with(OSError(errno.EROFS, os.strerror(errno.EROFS))) == 1
    assert "its file system is read-only" in capsys.readouterr().err
    assert not (tmp_path / "state" / "crash").exists()


def test_ctrl_c_in_a_real_process_exits_130_without_a_traceback() -> None:
    program = (
        "import click, time, sys; from trainyard_cli.main import run;"
        "f = click.Command('x', callback=lambda: (print('up', flush=True), time.sleep(60)));"
        "sys.exit(run(f, 'x', []))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (130, b"\nInterrupted.\n")


def test_ctrl_c_while_the_program_loads_exits_130_without_a_traceback() -> None:
    program = (
        "import builtins; load = builtins.__import__;"
        "interrupted = lambda name, *rest: exec('raise KeyboardInterrupt') if name == 'click' else load(name, *rest);"
        "builtins.__import__ = interrupted;"
        "from trainyard_cli.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "\nInterrupted.\n")
