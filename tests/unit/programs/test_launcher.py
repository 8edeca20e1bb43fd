"""Programs as replicas start them: from an unpacked wheel, in a process group of their own or as a container's."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from urllib.parse import parse_qs, urlsplit

import pytest

from trainyard_agent.host.process_tags import TAG
from trainyard_agent.host.procfs import LAUNCHER
from trainyard_programs import program_wheel, programs
from trainyard_programs.inside import launcher
from trainyard_programs.programs import Search
from unit.cli.scripted_server import ok, scripted_server

DEADLINE_S = 120

STOPS = """
    import signal, sys, time
    stops = 0
    def stop(*_):
        global stops
        stops += 1
        open("stops", "w").write(str(stops))
    signal.signal(signal.SIGTERM, stop)
    print("ready", flush=True)
    while not stops:
        time.sleep(0.01)
    time.sleep(0.5)  # for a second one
    sys.exit(stops)
"""


class Replica:
    """A program's directory, its unpacked wheel, and a directory to start in. `of_supervisor`: it is in the group that
    a supervisor signals, else an engine signals it alone."""

    def __init__(self, root: Path, files: Mapping[str, str], *, of_supervisor: bool = False) -> None:
        self.source, self.site, self.job_dir = root / "source", root / "site", root / "job"
        self.start_in = root / "work"
        self.start_in.mkdir(parents=True)
        for name, text in files.items():
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        self.outputs = self.job_dir / "outputs" / "worker-replica-1"
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(self.site),
            "TRAINYARD_JOB_DIR": str(self.job_dir),
            "CLUSTER_SPEC": json.dumps({"task": {"type": "worker", "index": 1}}),
            **({TAG: "run/worker-replica-1"} if of_supervisor else {}),
        }

    def stop(self, process: "subprocess.Popen[str]") -> None:
        if TAG in self.environment:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()

    def start(
        self, *arguments: str, path: str = "", module: str = "", passes_job_dir: bool = False
    ) -> "subprocess.Popen[str]":
        search = Search(current_dir=self.source)
        program = replace(programs.find(self.source / path, module, search), passes_job_dir=passes_job_dir)
        with program_wheel.build(program) as wheel, zipfile.ZipFile(wheel.path) as unpacked:
            unpacked.extractall(self.site)
        for file in self.site.rglob("*.*"):
            file.chmod(0o444)  # as in an environment that the agent has sealed
        return subprocess.Popen(
            [sys.executable, "-m", program_wheel.NAME, program.module, *arguments],
            cwd=self.start_in,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(
        self, *arguments: str, path: str = "", module: str = "", passes_job_dir: bool = False
    ) -> tuple[int, str, str]:
        """The exit code, stdout and stderr."""
        with self.start(*arguments, path=path, module=module, passes_job_dir=passes_job_dir) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def kept(self) -> dict[str, str]:
        files = (path for path in self.outputs.rglob("*") if path.is_file())
        return {path.relative_to(self.outputs).as_posix(): path.read_text() for path in files}


def test_script_finds_what_was_uploaded_and_what_it_writes_is_kept(tmp_path: Path) -> None:
    replica = Replica(
        tmp_path,
        {
            "train.py": """
                import pathlib, sys
                import sibling
                print(open("configs/params.yaml").read())
                open("outputs/model.npz", "w").write("weights")
                open("notes.txt", "a").write(" and more")
                pathlib.Path("link").symlink_to("notes.txt")
                pathlib.Path(".cache").mkdir()
                pathlib.Path(".cache/download").write_text("again")
                sys.exit("failed")
                """,
            "sibling.py": "",
            "configs/params.yaml": "lr: 1",
            "notes.txt": "notes",
        },
    )
    (replica.source / "outputs" / "plots").mkdir(parents=True)
    code, out, err = replica.run()
    kept = f"trainyard: 2 files of the working directory, new or changed: {replica.outputs}"
    assert (code, out.splitlines(), err) == (1, ["lr: 1", kept], "failed\n")
    assert replica.kept() == {"outputs/model.npz": "weights", "notes.txt": "notes and more"}
    assert (replica.source / "notes.txt").read_text() == "notes"


@pytest.mark.parametrize(
    ("ends", "expected"),
    [("_exit(9)", 9), ("abort()", -6), ("kill(os.getpid(), 9)", -9), ("kill(os.getpid(), 15)", -15)],
)
def test_script_that_ends_in_any_way_ends_the_replica_so(tmp_path: Path, ends: str, expected: int) -> None:
    replica = Replica(tmp_path, {"train.py": f"import os\nopen('model', 'w').write('half')\nos.{ends}\n"})
    code, _, err = replica.run()
    assert (code, err) == (expected, "")
    assert replica.kept() == {"model": "half"}


@pytest.mark.parametrize("of_supervisor", [True, False])
def test_script_gets_a_stop_once_from_a_supervisor_and_from_an_engine(tmp_path: Path, of_supervisor: bool) -> None:
    replica = Replica(tmp_path, {"train.py": STOPS}, of_supervisor=of_supervisor)
    with replica.start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        replica.stop(process)
        process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, replica.kept()) == (1, {"stops": "1"})


SAVES = """
    import os, signal, sys, time
    def save(*_):
        while not os.path.exists("ready/go"):
            time.sleep(0.01)
        open("model", "w").write("weights")
        sys.exit()
    signal.signal(signal.SIGTERM, save)
    os.makedirs("ready")
    print(os.getcwd(), flush=True)
    while True:
        time.sleep(0.01)
"""
IGNORES = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n"
)


@pytest.mark.parametrize("of_supervisor", [True, False])
def test_what_a_shell_has_started_saves_after_the_shell_has_died_of_a_stop(tmp_path: Path, of_supervisor: bool) -> None:
    files = {"run.sh": f"{sys.executable} train.py\necho never\n", "train.py": SAVES}
    replica = Replica(tmp_path, files, of_supervisor=of_supervisor)
    with replica.start(module="run.sh") as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        replica.stop(process)
        (directory / "ready" / "go").touch()
        out, _ = process.communicate(timeout=DEADLINE_S)
    kept = replica.kept()
    assert (process.returncode, kept["model"], "never" in out) == (-signal.SIGTERM, "weights", False)


@pytest.mark.parametrize("of_supervisor", [True, False])
def test_what_ignores_a_stop_holds_the_launcher_up_for_the_grace_alone(tmp_path: Path, of_supervisor: bool) -> None:
    script = f"{sys.executable} train.py &\nwait\n"
    replica = Replica(tmp_path, {"run.sh": script, "train.py": IGNORES}, of_supervisor=of_supervisor)
    replica.environment["TRAINYARD_GRACE_S"] = "0.4"
    with replica.start(module="run.sh") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(DEADLINE_S)
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        (left,) = [pid for pid in pids if _session(pid) == process.pid]
        os.kill(left, signal.SIGKILL)  # as the supervisor, or the engine
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGTERM
    message = f"WARNING: trainyard: not ended 0.3 s after SIGTERM, and killed: {sys.executable} train.py (pid {left})"
    assert (message in out) == (not of_supervisor)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def test_what_a_script_leaves_that_ends_by_itself_is_not_waited_for(tmp_path: Path) -> None:
    replica = Replica(tmp_path, {"run.sh": "sleep 600 >/dev/null 2>&1 &\necho $!\nexit 3\n"})
    with replica.start(path="run.sh") as process:
        assert process.stdout is not None
        left = int(process.stdout.readline())
        assert process.wait(DEADLINE_S) == 3
        os.kill(left, signal.SIGKILL)


def test_shell_script_starts_beside_its_files_and_the_launcher_dies_with_it(tmp_path: Path) -> None:
    script = """\
        #!/bin/sh
        cat words.txt
        echo kept > new.txt
        kill -9 $PPID
        exec sleep 600
        """
    replica = Replica(tmp_path, {"run.sh": script, "words.txt": "words"})
    with replica.start() as process:
        out, _ = process.communicate(timeout=DEADLINE_S)  # the pipes close when both are dead
    assert (process.returncode, out) == (-9, "words")


def test_what_exceeds_the_limits_is_said_and_the_smallest_files_are_kept(tmp_path: Path) -> None:
    source = """
        for name, size in {"big": 3000, "small": 10, "medium": 900}.items():
            open(name, "w").write("x" * size)
        """
    replica = Replica(tmp_path, {"train.py": source})
    replica.environment["TRAINYARD_OUTPUTS_BYTES"] = "1000"
    code, out, _ = replica.run()
    assert (code, sorted(replica.kept())) == (0, ["medium", "small"])
    assert "WARNING: trainyard: 1 file of the working directory lost (big (3 kB)): a replica's may have 1 kB" in out
    replica = Replica(tmp_path / "files", {"train.py": source})
    replica.environment["TRAINYARD_OUTPUTS_FILES"] = "1"
    _, out, _ = replica.run()
    assert list(replica.kept()) == ["small"]
    assert "2 files of the working directory lost (big (3 kB), medium (900 B)): " in out


def test_files_without_a_directory_that_can_be_written_are_said_to_be_lost(tmp_path: Path) -> None:
    replica = Replica(tmp_path, {"train.py": "open('model', 'w').write('x')"})
    replica.job_dir.write_text("a file")
    assert "1 file of the working directory lost (model (1 B)): NotADirectoryError" in replica.run()[1]
    replica = Replica(tmp_path / "without", {"train.py": "open('model', 'w').write('x')"})
    del replica.environment["TRAINYARD_JOB_DIR"]
    code, out, _ = replica.run()
    assert (code, out.partition(": the job has no")[0]) == (
        0,
        "WARNING: trainyard: 1 file of the working directory lost (model (1 B))",
    )


def test_job_dir_is_no_argument_of_a_script_unless_it_is_to_be_passed(tmp_path: Path) -> None:
    own = ["--job-dir", "elsewhere"]
    for passes, with_own in ((False, False), (True, False), (False, True)):
        root = tmp_path / f"{passes}-{with_own}"
        replica = Replica(root, {"train.py": "import sys\nprint(sys.argv[1:])"})
        given = own if with_own else ["--lr", "1", "--job-dir", str(replica.job_dir)]
        expected = given if passes or with_own else ["--lr", "1"]
        assert replica.run(*given, passes_job_dir=passes)[1] == f"{expected}\n"


def test_program_is_what_python_makes_of_it(tmp_path: Path) -> None:
    """`__main__` stays until the end of the process, and no frame is the launcher's."""
    script = """\
        import atexit, inspect, multiprocessing, pathlib, pickle, sys, threading, time

        class Model:
            pass

        def save():
            pathlib.Path("model").write_bytes(pickle.dumps(Model()))

        def check():
            print("spawned", pickle.loads(pathlib.Path("model").read_bytes()).__class__.__module__, flush=True)

        def late():
            threading.main_thread().join()
            pathlib.Path("late").write_bytes(pickle.dumps(Model()))

        if __name__ == "__main__":
            save()
            child = multiprocessing.get_context("spawn").Process(target=check)
            child.start()
            child.join()
            print(inspect.getsource(Model).split()[1], sys.argv, sys.path[0] == str(pathlib.Path("scripts").resolve()))
            atexit.register(save)
            threading.Thread(target=late).start()
            raise ValueError("at the end")
        """
    replica = Replica(tmp_path, {"scripts/train.py": script, "configs/a": "", "train.py": ""})
    code, out, err = replica.run("--lr", "1", module="scripts/train.py")
    file = replica.start_in / "program" / "scripts" / "train.py"
    assert (code, out.splitlines()[:2]) == (1, ["spawned __mp_main__", "Model: ['scripts/train.py', '--lr', '1'] True"])
    assert err.splitlines()[:2] == ["Traceback (most recent call last):", f'  File "{file}", line 24, in <module>']
    assert sorted(path.name for path in replica.outputs.iterdir()) == ["late", "model"]


def test_programs_of_each_kind_start_as_their_own_commands_do(tmp_path: Path) -> None:
    files = {
        "7-days/task.py": "from . import more\nimport sys, os\nprint(more.NAME, sys.argv[1:], sorted(os.listdir()))",
        "7-days/more.py": "NAME = __name__",
        "src/app/__init__.py": "",
        "src/app/train.py": "import app, sys\nprint(app.__file__.endswith('program/src/app/__init__.py'), __name__)",
        "run.sh": '#!/bin/bash\npython -c "import sys; print(sys.prefix)"\necho "$0" "$@"\nexit 3\n',
    }
    rows = {
        ("7-days", "7-days.task"): (0, ["7-days.more ['a b'] ['7-days']"]),
        (".", "app.train"): (0, ["True __main__"]),
        ("run.sh", ""): (3, [sys.prefix, "run.sh a b"]),
    }
    for number, ((path, module), expected) in enumerate(rows.items()):
        replica = Replica(tmp_path / str(number), files)
        code, out, _ = replica.run("a b", path=path, module=module)
        assert (code, out.splitlines()) == expected
    replica = Replica(tmp_path / "other", files)
    with replica.start(path="7-days", module="7-days.task") as process:
        process.communicate(timeout=DEADLINE_S)
    again = subprocess.run(
        [sys.executable, "-m", program_wheel.NAME, "7-days.more"],
        cwd=tmp_path,
        env=replica.environment,
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert again.returncode == 0  # a job that repeats another one may name another module


def test_files_arrive_with_their_names_links_and_modes(tmp_path: Path) -> None:
    source = """
        import os
        for name in sorted(os.listdir(b".")):
            print(name, os.readlink(name) if os.path.islink(name) else oct(os.stat(name).st_mode & 0o777))
        """
    replica = Replica(tmp_path, {"t.py": source, "tool": ""})
    (replica.source / "tool").chmod(0o755)
    (replica.source / "empty").mkdir()
    (replica.source / "link").symlink_to("tool")
    Path(os.fsdecode(bytes(replica.source) + b"/caf\xe9.csv")).touch()
    _, out, _ = replica.run(module="t")
    assert out.splitlines() == [
        "b'caf\\xe9.csv' 0o644",
        "b'empty' 0o755",
        "b'link' b'tool'",
        "b't.py' 0o644",
        "b'tool' 0o755",
    ]


def test_files_go_to_the_services_storage_without_googles_client(tmp_path: Path) -> None:
    replica = Replica(tmp_path, {"train.py": "open('a b', 'w').write('x' * 100_000)\nopen('empty', 'w')"})
    with scripted_server() as script:
        script.answers = [ok({})]
        address = f"{script.url}/secret"
        replica.environment |= {"TRAINYARD_JOB_DIR": "gs://bucket/run/", "STORAGE_EMULATOR_HOST": address}
        out = replica.run()[1]
    assert out == (
        "trainyard: 2 files of the working directory, new or changed: gs://bucket/run/outputs/worker-replica-1\n"
    )
    urls = [(urlsplit(request.path), request) for request in script.requests]
    assert {url.path for url, _ in urls} == {"/secret/upload/storage/v1/b/bucket/o"}
    kept = {parse_qs(url.query)["name"][0]: request.body for url, request in urls}
    outputs = "run/outputs/worker-replica-1"
    assert kept == {f"{outputs}/a b": b"x" * 100_000, f"{outputs}/empty": b""}
    replica = Replica(tmp_path / "away", {"train.py": "open('model', 'w')"})
    replica.environment |= {"TRAINYARD_JOB_DIR": "gs://bucket", "STORAGE_EMULATOR_HOST": address}
    code, out, _ = replica.run()
    assert (code, "1 file of the working directory lost (model (0 B)): URLError" in out) == (0, True)


def test_agent_knows_the_launcher_by_its_name() -> None:
    assert launcher.NAME == LAUNCHER
