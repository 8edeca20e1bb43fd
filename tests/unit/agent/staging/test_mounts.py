"""The mounts of an agent: what it offers, what it refuses, and the caches of projects."""

import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Program, ShellLab
from trainyard_agent.engines.process.runtime import ProcessRuntime
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.runtimes.base import Runtime, StartFailed
from trainyard_agent.staging.mounts import AgentMounts
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import MountOffer
from unit.agent.stub_server import run_order

CHIEF = "master-replica-0"


def file_of(directory: Path, text: str) -> Path:
    file = directory / "mounts.yaml"
    file.write_text(text.replace("HERE", str(directory)))
    return file


def test_offers_have_names_and_projects_and_no_path(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = "mounts: [{name: a, path: HERE/data, projects: [p], readOnly: false}]\ncaches: {path: HERE/data}\n"
    mounts = AgentMounts.open(file_of(tmp_path, text), of_pods=False)
    assert mounts.offers == (MountOffer(name="a", read_only=False, projects=("p",)),)
    assert mounts.cache == MountOffer(name="cache", read_only=False)
    empty = AgentMounts.open(None, of_pods=False)
    assert (empty.offers, empty.cache, list(empty.findings())) == ((), None, [])


@pytest.mark.parametrize(
    ("text", "of_pods", "says"),
    [
        ("mounts:\n- {name: a, path: HERE/x}\n", False, ":2: a: HERE/x cannot be used (No such file or directory)."),
        ("mounts:\n- {name: a, path: HERE/mounts.yaml}\n", False, ":2: a: HERE/mounts.yaml is no directory."),
        ("mounts:\n- {name: a, path: HERE/open/data}\n", False, "may replace what is in HERE/open, on the way to it"),
        ("mounts:\n- {name: a, path: HERE/link}\n", False, "may replace what is in HERE/open, on the way to it"),
        ("caches: {path: HERE/open}\n", False, ":1: cache: every user of the machine may write to HERE/open"),
        (
            "mounts:\n- {name: a, path: HERE/w, readOnly: false}\n- {name: b, path: HERE/w/b}\n",
            False,
            ":3: b: it is in the writable mount a, where a job may put a link in its place.",
        ),
        (
            "mounts:\n- {name: a, hostPath: /w, readOnly: false}\ncaches: {hostPath: /w/b}\n",
            True,
            ":3: cache: it is in the writable mount a",
        ),
        ("mounts:\n- {name: a, hostPath: /data}\n", False, ":2: a: an agent of this --runtime needs path here."),
        ("mounts:\n- {name: a, path: /data}\n", True, "needs persistentVolumeClaim or hostPath here."),
    ],
)
def test_agent_does_not_start_with_a_directory_that_it_cannot_use(
    tmp_path: Path, text: str, of_pods: bool, says: str
) -> None:
    (tmp_path / "open" / "data").mkdir(parents=True)
    (tmp_path / "w" / "b").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "data")
    with pytest.raises(InvalidArgument) as caught:
        AgentMounts.open(file_of(tmp_path, text), of_pods)
    assert says.replace("HERE", str(tmp_path)) in caught.value.message


def test_doctor_names_a_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    mounts = AgentMounts.open(file_of(tmp_path, "mounts: [{name: a, path: HERE/data}]\n"), of_pods=False)
    assert [finding.status for finding in mounts.findings()] == ["ok"]
    (tmp_path / "data").rmdir()
    (finding,) = mounts.findings()
    assert (finding.status, f"mounts.yaml:1: a: {tmp_path}/data" in finding.found) == ("problem", True)
    with pytest.raises(StartFailed) as caught:
        mounts.of(run_order("r", mounts=[{"name": "a"}]))
    assert (caught.value.reason, "The mount a cannot be used" in caught.value.message) == (Reason.HOST_FAILED, True)


def test_agent_gives_no_project_what_is_anothers(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = "mounts: [{name: a, path: HERE/data, projects: [q]}]\ncaches: {path: HERE/data, projects: [q]}\n"
    mounts = AgentMounts.open(file_of(tmp_path, text), of_pods=False)
    assert mounts.of(run_order("r")) == ()
    for name, says in (("a", "may not give the project p its mount a"), ("b", "has no mount b")):
        with pytest.raises(StartFailed) as caught:
            mounts.of(run_order("r", mounts=[{"name": name}]))
        assert (caught.value.reason, says in caught.value.message) == (Reason.GIVEN_BACK, True)
    allowed = run_order("r", mounts=[{"name": "a", "path": "/data"}]).model_copy(update={"project": "q"})
    assert [mount.source for mount in mounts.of(allowed)] == [f"{tmp_path}/data", f"{tmp_path}/data/q"]
    with pytest.raises(StartFailed, match=r"The mount at /data is in the way of the job-dir, in /data/jobs\."):
        mounts.of(allowed, "/data/jobs")


def test_cache_of_an_agent_without_root_is_its_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "caches").mkdir()
    mounts = AgentMounts.open(file_of(tmp_path, "caches: {path: HERE/caches}\n"), of_pods=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (mount,) = mounts.of(run_order("r").model_copy(update={"project": "a:b"}))
    assert (mount.group, stat.S_IMODE(Path(mount.source).stat().st_mode)) == (None, 0o700)


class UsersLab(ShellLab):
    """Processes of users of their own."""

    name = "process"

    def open(self) -> Runtime:
        first = 400_000 + os.getpid() % 1000 * 100
        users = JobUsers(self.state_dir, range(first, first + 100))
        self.state_dir.mkdir(exist_ok=True)
        users.open()
        return ProcessRuntime(self.state_dir, users)


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory through which every user may pass, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="other users take root")
def test_cache_of_users_of_their_own_is_their_projects_whoever_wrote_it(passable: Path) -> None:
    (passable / "caches").mkdir(mode=0o711)
    mounts = AgentMounts.open(file_of(passable, "caches: {path: HERE/caches}\n"), of_pods=False)
    with UsersLab(passable / "state").driven() as driver:

        def output(number: str, project: str, shell: str) -> list[str]:
            order = run_order(unique_run(number), CHIEF).model_copy(update={"project": project})
            launch = driver.lab.launch(CHIEF, Program(code=0, shell=shell))
            driver.runtime.place(order)
            driver.runtime.start(order.run_id, [replace(launch, mounts=mounts.of(order))])
            return driver.wait_for_log(order.run_id, CHIEF)

        save = 'mkdir -p "$HF_HOME/hub"; echo weights >"$HF_HOME/hub/model"; id -u; stat -c %a "$HF_HOME/hub/model"'
        first, mode = output("1", "p", f"umask 077; {save}")
        assert mode == "660", "whatever its umask"
        look = (
            'id -u; cat "$HF_HOME/hub/model"; echo more >>"$HF_HOME/hub/model" && echo x >"$HF_HOME/hub/y" && echo ok'
        )
        second, *lines = output("2", "p", look)
        assert (second != first, lines) == (True, ["weights", "ok"])
        other = f'ls {passable}/caches/p 2>&1 | grep -c denied; ls "$HF_HOME" 2>/dev/null || echo none'
        assert output("3", "q", other) == ["1", "none"]
