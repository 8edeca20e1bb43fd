"""The run's own environment, made by the real pip."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from beds import storage_emulator
from beds.run_ids import unique_run
from trainyard_agent.host import process_tags
from trainyard_agent.installer.output import error_excerpt
from trainyard_agent.staging.base import Staging
from trainyard_agent.staging.environments import installer_process
from trainyard_agent.staging.environments.kept_environments import KeptEnvironments
from trainyard_protocol.job.runtimes import RuntimeImage, Runtimes, RuntimeVersion
from trainyard_protocol.states import Reason
from unit.agent.staging.environments.environment_lab import OTHER, RUN, SETUP, Staged, package, run, wheel
from unit.agent.stub_server import run_order


async def test_package_is_installed_over_the_base_and_only_for_its_run(staged: Staged, tmp_path: Path) -> None:
    uri = staged.upload(package(tmp_path, "WHO = 'mine'\n"))

    ready = await staged.prepare(uri)

    assert ready.phase == "ready", ready.message
    printed = run(ready.python, "import tinytrainer, httpx, trainyard_protocol; print(tinytrainer.__file__)")
    assert printed.startswith(str(staged.root / "environments" / RUN))
    failed = subprocess.run([sys.executable, "-c", "import tinytrainer"], capture_output=True, check=False)
    assert failed.returncode == 1
    assert "installing tinytrainer-0.0.0.tar.gz" in staged.activities
    assert ready.resolved is not None
    assert f"\nhttpx=={version('httpx')}\n" in ready.resolved.requirements
    assert "tinytrainer" not in ready.resolved.requirements


async def test_wheel_of_pure_python_is_unpacked_and_uv_fetches_what_it_and_the_base_lack(
    staged: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "index", "somewhere")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    for name, needs in (("httpx", ()), ("psutil", ("pydantic>=2",)), ("tinytrainer", ("somewhere",))):
        wheel(tmp_path / "packages", name, "WHO = 'mine'\n", needs)

    def uri(name: str) -> str:
        return staged.upload(tmp_path / "packages" / f"{name}-1-py3-none-any.whl")

    def installers(run_id: str) -> list[str]:
        log = (staged.root / "environments" / run_id / "install.log").read_text()
        return [line for line in log.splitlines() if line.startswith("$ ") and " install " in line]

    ready = await staged.prepare(uri("httpx"), uri("psutil"))
    assert run(ready.python, "import httpx, psutil, pydantic; print(httpx.WHO, psutil.WHO)") == "mine mine"
    (checked,) = installers(RUN)
    assert "uv pip install" in checked
    assert ready.resolved is not None
    assert ready.resolved.installed == ()
    other = await staged.prepare(uri("tinytrainer"), run_id=OTHER)
    assert run(other.python, "import somewhere, tinytrainer; print(tinytrainer.WHO)") == "mine"
    (uv,) = installers(OTHER)
    assert "uv pip install" in uv
    assert other.resolved is not None
    (note,) = other.resolved.installed
    assert note.startswith("Installed 1 package for what its packages need in ")
    assert note.endswith(f" from {tmp_path / 'index'}: somewhere 1")


async def test_package_that_leaves_files_in_its_directory_names_them_at_its_end(staged: Staged, tmp_path: Path) -> None:
    source = """
import os, pathlib, subprocess, sys
if __name__ == "__main__":
    for name in sys.argv[1:]:
        pathlib.Path(name).touch()
    if os.fork():
        os.wait()
        sys.exit(3)
"""
    ready = await staged.prepare(staged.upload(wheel(tmp_path, "tinytrainer", source)))
    work = tmp_path / "work"
    work.mkdir()
    (work / "was there").touch()

    def ran(*words: str) -> tuple[int, str, str]:
        environment = {"CLOUD_ML_JOB": json.dumps({"python_module": "tinytrainer"})}
        command = [ready.python, *words]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    code, out, err = ran("-m", "tinytrainer", "model.keras", ".lock", *"abcde")
    assert (code, err) == (3, "")
    assert out.startswith("WARNING: trainyard: the working directory is removed with a, b, c, d, e, ...: files in")
    assert out.count("\n") == 1
    assert ran("-m", "tinytrainer", "a", "model.keras") == (3, "", "")  # none is new
    assert ran("-c", "open('new', 'w')") == (0, "", "")  # another program


async def test_environment_is_kept_for_the_next_run_of_the_same_packages(
    staged: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = SETUP.replace("py_modules", "entry_points={{'console_scripts': ['tiny=tinytrainer:main']}}, py_modules")
    source = "def main():\n    import trainyard; print(__file__)\n"
    setup = setup.format(name="tinytrainer", module="tinytrainer", needs=[])
    uri = staged.upload(package(tmp_path, source, setup=setup))
    commands: list[str] = []
    run = installer_process.InstallerProcess.run

    async def counted(self: Any, command: list[str], *arguments: Any) -> Any:
        commands.append(" ".join(command))
        return await run(self, command, *arguments)

    monkeypatch.setattr(installer_process.InstallerProcess, "run", counted)
    async with staged.stager() as stager:
        stager.begin(run_order(RUN, packageUris=[uri]))
        first = Path((await staged.finish(stager)).python)
        made = len(commands)
        await stager.discard(RUN)
        assert not first.exists()

        stager.begin(run_order(OTHER, packageUris=[uri]))
        second = Path((await staged.finish(stager, OTHER)).python)
        assert len(commands) == made
        printed = subprocess.check_output([second.with_name("tiny")], text=True).strip()
        assert Path(printed).is_relative_to(second.parent.parent)

        third = unique_run("3")
        stager.begin(run_order(third, packageUris=[uri]).model_copy(update={"project": "q"}))
        await staged.finish(stager, third)
        assert len(commands) > made


async def test_edited_program_has_the_dependencies_of_its_owners_former_run(
    staged: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "index", "httpx", "WHO = 'its own'\n")
    wheel(tmp_path / "index", "torch", "WHO = 'torch'\n", needs=("httpx",))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))

    def edited(source: str) -> str:
        directory = tmp_path / hashlib.sha256(source.encode()).hexdigest()
        return staged.upload(wheel(directory, "tinytrainer", source, ("torch",)))

    async with staged.stager() as stager:

        async def prepared(uri: str, owner: str) -> Staging:
            run_id = unique_run(f"{len(list((tmp_path / 'environments').iterdir())):x}")
            stager.begin(run_order(run_id, packageUris=[uri]).model_copy(update={"owner": owner}))
            return await staged.finish(stager, run_id)

        first = await prepared(edited("WHO = 'first'\n"), "ann")
        assert first.phase == "ready", first.message
        shutil.rmtree(tmp_path / "index")  # pip would find nothing
        second = await prepared(edited("WHO = 'second'\n"), "ann")
        assert second.phase == "ready", second.message
        program = "import httpx, tinytrainer, torch; print(tinytrainer.WHO, torch.WHO, httpx.WHO)"
        assert run(second.python, program) == "second torch its own"
        sees_base = subprocess.run([second.python, "-c", "import fastapi"], capture_output=True, check=False)
        assert sees_base.returncode == 1
        assert (await prepared(edited("WHO = 'third'\n"), "bob")).reason == "PACKAGES_FAILED"


def test_kept_environment_leads_nowhere_else(tmp_path: Path) -> None:
    """Packages may leave links and pipes in an environment, and the agent, which may be root, changes files in it."""
    made, elsewhere = tmp_path / "made", tmp_path / "elsewhere"
    site_packages = made / "venv" / "lib" / "python3" / "site-packages"
    for directory in (elsewhere, site_packages):
        directory.mkdir(parents=True)
    for name in ("a.pth", "script"):
        (elsewhere / name).write_text(str(made))
    (made / "venv" / "bin").symlink_to(elsewhere)
    (made / "venv" / "pyvenv.cfg").write_text(str(made))
    (site_packages / "a.pth").symlink_to(elsewhere / "a.pth")
    os.mkfifo(site_packages / "pipe.pth")
    kept = KeptEnvironments(tmp_path / "kept")
    kept.keep("name", made)
    assert kept.restore("name", tmp_path / "next")
    found = tmp_path / "next" / "venv"
    assert (found / "pyvenv.cfg").read_text() == str(tmp_path / "next")
    assert (found / "lib" / "python3" / "site-packages" / "a.pth").is_symlink()
    assert (elsewhere / "script").read_text() == str(made)


async def test_kept_environments_are_used_by_one_run_at_a_time_and_to_the_end(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    restored: list[str] = []
    whole: list[bool] = []

    def restore(_kept: Any, _name: str, directory: Path, **_how: bool) -> bool:
        restored.append(directory.name)
        return False

    def keep(_kept: Any, _name: str, directory: Path, **_how: bool) -> None:
        begun.set()
        assert go.wait(60)
        whole.append((directory / "venv" / "pyvenv.cfg").exists())

    monkeypatch.setattr(KeptEnvironments, "restore", restore)
    monkeypatch.setattr(KeptEnvironments, "keep", keep)
    async with staged.stager() as stager:
        stager.begin(run_order(RUN))
        assert await asyncio.to_thread(begun.wait, 60)
        stager.begin(run_order(OTHER))
        discard = asyncio.create_task(stager.discard(RUN))
        await asyncio.wait({discard}, timeout=0.5)
        assert restored == [RUN]
        go.set()
        await discard
        assert (await staged.finish(stager, OTHER)).phase == "ready"

    assert whole == [True, True]
    assert not (staged.root / "environments" / RUN).exists()


def framework(name: str) -> Runtimes:
    image = RuntimeImage(image="f:1", framework=name, packages=[name])
    return Runtimes(images={"f": image}, versions={"9.9": RuntimeVersion(cpu="f")})


async def test_runtime_version_has_an_environment_with_its_framework_made_once(
    staged: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("setuptools", "wheel"):
        wheel(tmp_path, name)
    wheel(tmp_path, "tinyframe", "import httpx\n", needs=("httpx",))
    wheel(tmp_path, "httpx", "WHO = 'its own'\n")  # the agent's Python has one, which this environment does not see
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    staged.runtimes = framework("tinyframe")

    first = await staged.prepare(runtimeVersion="9.9")
    making = [activity for activity in staged.activities if "environment of its runtimeVersion 9.9" in activity]
    staged.activities.clear()
    second = await staged.prepare(run_id=OTHER, runtimeVersion="9.9")

    assert (first.phase, second.phase) == ("ready", "ready"), first.message
    assert making
    assert not any("runtimeVersion" in activity for activity in staged.activities)
    assert run(second.python, "import httpx, tinyframe, trainyard; print(httpx.WHO)") == "its own"
    assert subprocess.run([second.python, "-c", "import fastapi"], capture_output=True, check=False).returncode


async def test_runtime_version_whose_framework_the_base_has_or_whose_packages_are_nowhere(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    staged.runtimes = framework("httpx")
    ready = await staged.prepare(runtimeVersion="9.9")
    assert run(ready.python, "import httpx, trainyard_protocol") == ""
    staged.runtimes = framework("tinyframe")
    failed = await staged.prepare(run_id=OTHER, runtimeVersion="9.9")
    assert failed.phase == "failed"
    assert failed.message.startswith("The environment of its runtimeVersion 9.9 cannot be made with Python 3.")
    assert failed.message.endswith("--python that has tinyframe, or run the job without a runtimeVersion.")


async def test_base_with_an_editable_install_and_without_trainyard_is_seen_through(tmp_path: Path) -> None:
    base = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base)], check=True)
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "framework.py").write_text("WHO = 'editable'\n")
    site = next(base.glob("lib/python*/site-packages"))
    (site / "framework.pth").write_text(f"{tmp_path / 'checkout'}\n")
    ready = await Staged(tmp_path, str(base / "bin" / "python")).prepare()
    assert ready.phase == "ready", ready.message
    assert run(ready.python, "import framework; print(framework.WHO)") == "editable"
    assert run(ready.python, "import trainyard; trainyard.log(step=1)") == '{"event": "progress", "step": 1}'


async def test_package_that_cannot_be_had_or_installed_fails_with_a_reason(staged: Staged, tmp_path: Path) -> None:
    falls_off = package(tmp_path, "", "one", setup="raise RuntimeError('the wheel fell off')\n")
    staged.server.packages["1" * 64] = b"something else"
    failures = [
        (staged.upload(falls_off), Reason.PACKAGES_FAILED, "RuntimeError: the wheel fell off"),
        (f"staging://{'0' * 64}/a.tar.gz", Reason.STAGING_FAILED, "There is nothing at"),
        (f"staging://{'1' * 64}/a.tar.gz", Reason.STAGING_FAILED, "SHA-256"),
        ("/etc/passwd.tar.gz", Reason.PACKAGES_FAILED, "/etc/passwd.tar.gz is not a package"),
    ]
    wrong = []
    for number, (uri, reason, words) in enumerate(failures):
        failed = await staged.prepare(uri, run_id=unique_run(str(number)))
        if (failed.phase, failed.reason, words in failed.message) != ("failed", reason, True):
            wrong.append((uri, failed))
    assert not wrong


async def test_package_whose_server_or_storage_is_away_is_waited_for(staged: Staged, tmp_path: Path) -> None:
    uri = staged.upload(wheel(tmp_path, "tinytrainer"))
    staged.server.down = True
    async with staged.stager(STORAGE_EMULATOR_HOST="http://127.0.0.1:1") as stager:
        stager.begin(run_order(RUN, packageUris=[uri]))
        stager.begin(run_order(OTHER, packageUris=["gs://bucket/a.tar.gz"]))
        await until(lambda: all(status.activity.startswith("tries again: ") for status in stager.status().values()))
        activities = {run_id: status.activity for run_id, status in stager.status().items()}
        staged.server.down = False
        ready = await staged.finish(stager)
        await stager.discard(OTHER)
    assert "The server is down" in activities[RUN]
    assert activities[OTHER].endswith(
        "gs://bucket/a.tar.gz: Google Cloud Storage at http://127.0.0.1:1 does not answer"
    )
    assert ready.phase == "ready", ready.message
    assert ready.resolved is not None
    assert ready.resolved.installed[0].startswith("It has what was away for ")


async def test_discard_ends_the_installation_and_leaves_nothing(staged: Staged, tmp_path: Path) -> None:
    uri = staged.upload(package(tmp_path, "", setup="import time\ntime.sleep(1000)\n"))
    async with staged.stager() as stager:
        stager.begin(run_order(RUN, packageUris=[uri]))
        stager.begin(run_order(RUN, packageUris=[uri]))
        await until(lambda: len(process_tags.tagged(RUN)) >= 2)

        await stager.discard(RUN)

        assert process_tags.tagged(RUN) == []
        assert stager.status() == {}
        assert list((staged.root / "environments").iterdir()) == []
        await stager.discard(RUN)


async def test_next_agent_uses_what_is_ready_and_replaces_what_is_not(staged: Staged) -> None:
    first = await staged.prepare()
    made = Path(first.python).lstat().st_mtime_ns
    half_done = staged.root / "environments" / OTHER / "venv"
    half_done.mkdir(parents=True)

    async with staged.stager() as stager:
        assert {run_id: status.phase for run_id, status in stager.status().items()} == {RUN: "stale", OTHER: "stale"}
        for run_id in (RUN, OTHER):
            stager.begin(run_order(run_id))
            assert (await staged.finish(stager, run_id)).phase == "ready"

    assert Path(first.python).lstat().st_mtime_ns == made
    assert run(str(half_done / "bin" / "python"), "print(1)") == "1"


async def test_interpreter_that_makes_no_environment_is_an_infrastructure_failure(tmp_path: Path) -> None:
    failed = await Staged(tmp_path, "/bin/false").prepare()
    assert (failed.phase, failed.reason) == ("failed", Reason.STAGING_FAILED)
    assert "/bin/false" in failed.message


@pytest.fixture
def emulator() -> Iterator[str]:
    with storage_emulator.emulator() as url:
        yield url


async def test_package_on_a_bucket_is_fetched_from_the_emulator(staged: Staged, tmp_path: Path, emulator: str) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage  # imports grpc

    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    client = storage.Client("p", credentials, client_options={"api_endpoint": emulator})
    bucket = client.create_bucket("packages")
    there = wheel(tmp_path, "tinytrainer", "WHO = 'gs'\n")
    bucket.blob(f"dir/{there.name}").upload_from_filename(there)
    client.close()

    async with staged.stager(STORAGE_EMULATOR_HOST=emulator) as stager:
        stager.begin(run_order(RUN, packageUris=[f"gs://packages/dir/{there.name}"]))
        stager.begin(run_order(OTHER, packageUris=["gs://packages/missing.tar.gz"]))
        ready, failed = await staged.finish(stager), await staged.finish(stager, OTHER)

    assert ready.phase == "ready", ready.message
    assert run(ready.python, "import tinytrainer; print(tinytrainer.WHO)") == "gs"
    assert (failed.phase, failed.reason) == ("failed", Reason.PACKAGES_FAILED)
    assert failed.message == "gs://packages/missing.tar.gz does not exist."


EXCERPTS = {
    """Looking in indexes: https://packages.example/simple
Processing ./0/prog-0.0.0.tar.gz
Collecting numpy
ERROR: Could not find a version that satisfies the requirement nowhere==1
ERROR: No matching distribution found for nowhere==1
""": """ERROR: Could not find a version that satisfies the requirement nowhere==1
ERROR: No matching distribution found for nowhere==1""",
    """Processing ./x.tar.gz
  error: subprocess-exited-with-error
      SyntaxError: invalid syntax
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
WARNING: something
""": """error: subprocess-exited-with-error
SyntaxError: invalid syntax""",
    "": "Its installer gave no reason.",
}


def test_excerpt_begins_with_the_first_complaint_and_leaves_out_what_says_nothing() -> None:
    assert {output: error_excerpt(output) for output in EXCERPTS} == EXCERPTS


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


async def test_output_without_end_is_kept_at_its_ends() -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(b"first" + bytes(5 << 20) + b"last")
    stream.feed_eof()
    kept = await installer_process.bounded(stream)
    assert (kept[:5], kept[-4:], len(kept)) == (b"first", b"last", 2 << 20)
