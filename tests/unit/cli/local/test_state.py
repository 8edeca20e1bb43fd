import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from trainyard_cli.local import service
from trainyard_cli.local import state as local
from trainyard_cli.local.connect import connect
from trainyard_cli.local.options import Options
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Target
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Unavailable
from trainyard_protocol.net.loopback import free_port
from unit.cli.scripted_server import ok, refused, scripted_server

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def state(tmp_path: Path) -> LocalState:
    made = LocalState(tmp_path / "state")
    made.create()
    return made


@contextmanager
def running(state: LocalState, command: list[str] = SLEEP) -> Iterator[subprocess.Popen[bytes]]:
    started = state.start("server", command, os.environ)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_create_makes_everything_readable_by_the_owner_alone_and_once(state: LocalState) -> None:
    assert mode(state.root) == 0o700
    assert mode(state.token_file) == mode(state.agent_token_file) == 0o600
    before = state.token_file.read_text()
    assert len(before) > 40
    assert before != state.agent_token_file.read_text()
    state.create()
    assert state.token_file.read_text() == before


def test_create_where_something_else_is_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FailedPrecondition, match=r"is not a state directory: it contains 'thesis\.tex'"):
        LocalState(tmp_path).create()
    assert mode(tmp_path) == 0o755
    with pytest.raises(FailedPrecondition, match="cannot be used: Not a directory"):
        LocalState(tmp_path / "thesis.tex" / "state").create()


def test_token_is_not_sent_to_another_user_on_the_servers_port(
    state: LocalState, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_server() as script, running(state):
        port = int(script.url.rpartition(":")[2])
        state.save(Options(server_port=port, storage_port=free_port()))
        connected = connect(Target(state.root, local=True))
        connected.close()
        monkeypatch.setattr(local, "user_of", lambda *_: os.geteuid() + 1)
        says = "belongs to another user of this machine"
        with pytest.raises(Unavailable, match=says):
            connect(Target(state.root, local=True))
        assert says in service.status(state).problem
        monkeypatch.setattr(service, "commands", lambda *_: {"server": SLEEP})
        with pytest.raises(Unavailable, match="server was not ready within"):
            service.up(state, {}, lambda _: None, timeout_s=0.2)
        service.down(state, lambda _: None)
        assert script.requests == []


def test_stop_of_a_process_that_ignores_sigterm_kills_it(state: LocalState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "STOP_GRACE_S", 0.3)
    with running(state, STUBBORN) as started:
        while "ready" not in state.log_tail("server"):
            assert started.poll() is None
        state.stop("server")
        assert started.poll() is not None


def test_process_whose_number_belongs_to_another_one_now_is_not_ours(state: LocalState) -> None:
    with running(state) as started:
        path = state.root / "run" / "server.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "created": record["created"] - 60, "command": ["other"]}))
        assert state.process("server") is None
        assert state.stop("server") is None
        assert started.poll() is None


def test_ports_stay_and_one_used_by_another_program_is_replaced_while_nothing_runs(state: LocalState) -> None:
    first = state.with_ports(Options())
    assert state.with_ports(first) == first
    assert first.server_port != first.storage_port
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = Options(server_port=listener.getsockname()[1], storage_port=free_port())
        assert state.with_ports(taken).server_port != taken.server_port
        started = state.start("agent", SLEEP, os.environ)
        try:
            with pytest.raises(Unavailable, match="Another program uses port"):
                state.with_ports(taken)
        finally:
            started.kill()
            started.wait()


def test_lock_lets_one_in_at_a_time(state: LocalState) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with state.lock(lambda _: waiting.set()):
            order.append("second")

    with state.lock(print):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_service_that_listens_shows_no_other_files(state: LocalState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "own_address", lambda _: "10.0.0.7")
    alone = local.commands(state, Options(server_port=1))
    made = local.commands(state, Options(server_port=1, listen="trains.example.com"))
    assert alone["storage"] == made["storage"]
    assert alone["server"][:10] == made["server"][:10], "on loopback as before"
    assert "--https-address trains.example.com" in " ".join(made["server"])
    roots = [made["server"][at + 1] for at, word in enumerate(made["server"]) if word == "--job-dir-root"]
    assert roots == [str(state.jobs)]
    assert "--new-default-job-dir gs://trainyard-{project}" in " ".join(made["server"])
    assert "--address 10.0.0.7" in " ".join(made["agent"])
    shared = local.commands(state, Options(server_port=1, listen="10.0.0.7", shared_job_dirs="/mnt/jobs"))
    says = "--job-dir-root /mnt/jobs --shared-job-dirs /mnt/jobs --new-default-job-dir /mnt/jobs"
    assert says in " ".join(shared["server"])
    assert "--job-dir-root /mnt/jobs" in " ".join(shared["agent"])


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1", "127.0.0.1 is not an address at which other machines can reach this one. This machine has "),
        ("0.0.0.0", "0.0.0.0 is not an address at which other machines can reach this one"),
        ("198.51.100.7", "198.51.100.7 is not an address at which other machines can reach this one"),
        ("localhost", "localhost resolves to "),
        ("nowhere.invalid", "nowhere.invalid is neither an IP address nor a host name that resolves to one"),
    ],
)
def test_address_that_is_not_this_machines_is_refused(state: LocalState, address: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        service.up(state, {"listen": address}, lambda _: None)
    assert says in refused.value.message
    assert state.options().listen == ""


def test_shared_directory_is_for_a_service_that_listens(state: LocalState, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="give --listen ADDRESS too"):
        service.up(state, {"shared_job_dirs": str(tmp_path)}, lambda _: None)


def test_commands_pass_tokens_as_files_and_bind_to_loopback(state: LocalState) -> None:
    options = Options(server_port=1, storage_port=2, capacity="strict", cpus="0,1", memory_gb=4, machine_types="/m")
    made = local.commands(state, options)
    for file in (state.token_file, state.agent_token_file, state.storage_token_file):
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text().strip()
        assert not any(token in word for command in made.values() for word in command)
    who = pwd.getpwuid(os.geteuid()).pw_name
    assert f"--token-file admin:{who}={state.token_file}" in " ".join(made["server"])
    assert "--host 127.0.0.1 --port 1" in " ".join(made["server"])
    assert "--check-packages" in made["server"], "its only user may know which objects there are"
    assert made["server"][-4:] == ["--quotas", str(state.quota_file), "--machine-types", "/m"]
    limited = local.commands(state, replace(options, keep_jobs="90d"))
    assert limited["server"] == [*made["server"], "--keep-jobs", "90d"]
    agent = " ".join(made["agent"])
    assert "--one-user" in agent
    assert "--capacity strict --cpus 0,1 --memory-gb 4" in agent
    assert "--replica-env STORAGE_EMULATOR_HOST" in agent


def test_local_jobs_are_owned_by_the_user(monkeypatch: pytest.MonkeyPatch, state: LocalState) -> None:
    owners = {"alice": "alice", "DOMAIN\\al ice": "DOMAIN-al-ice", "_daemon": "daemon", "é": "", "a" * 200: "a" * 128}
    found = {}
    for name in owners:
        entry = pwd.struct_passwd((name, "x", 1, 1, "", "/", "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwuid", lambda _, entry=entry: entry)
        found[name] = local.user_name()
    assert found == owners
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    nameless = LocalState(state.root)
    assert f"admin={state.token_file}" in local.commands(nameless, Options())["server"]


def test_environment_of_the_processes_has_no_token_and_knows_the_storage() -> None:
    made = local.environment({"PATH": "/bin", "TRAINYARD_TOKEN": "t"}, "http://127.0.0.1:2/secret")
    assert made == {"PATH": "/bin", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:2/secret"}


def test_up_with_a_part_that_ends_shows_its_log(state: LocalState, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [sys.executable, "-c", "import sys; print('no database'); sys.exit(7)"]
    monkeypatch.setattr(service, "commands", lambda *_: {"server": broken})
    with pytest.raises(Unavailable) as caught:
        service.up(state, {}, lambda _: None)
    assert "The local server exited at start with code 7." in caught.value.message
    assert caught.value.message.endswith("    no database")


def test_up_does_not_wait_for_a_part_that_ended(state: LocalState, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(state) as server:
        ended = server.pid
        monkeypatch.setattr(service, "commands", lambda *_: {"server": SLEEP})
        with pytest.raises(Unavailable, match="The local server has ended"):
            service.up(state, {}, lambda _: None, report=lambda _: os.kill(ended, signal.SIGKILL))


def test_up_gives_a_running_server_new_quotas_or_keeps_the_old_ones(state: LocalState, tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("default: {vcpus: 1}")
    messages: list[str] = []
    with scripted_server() as script:
        before = Options(server_port=int(script.url.rpartition(":")[2]), quotas=str(old))
        requested = replace(before, quotas=str(new))
        state.save(before)
        service.apply_quotas(state, Options(), before, messages.append, changed=True)
        with running(state, [*SLEEP, str(state.quota_file)]):
            script.answers = [refused(InvalidArgument("/new.yaml:1: default.vcpu: Extra inputs are not permitted."))]
            service.apply_quotas(state, before, requested, messages.append, changed=False)
            assert (script.requests, messages) == ([], [])
            with pytest.raises(InvalidArgument, match=r"/new.yaml:1: default.vcpu"):
                service.apply_quotas(state, before, requested, messages.append, changed=True)
            assert state.quota_file.readlink() == old
            script.answers = [ok({"default": {"vcpus": 2}})]
            service.apply_quotas(state, before, requested, messages.append, changed=True)
    assert {request.path for request in script.requests} == {"/trainyard/v1/quotas:reload"}
    assert messages == [f"The quotas of {new} are in force. Running jobs continue."]
    assert state.quota_file.readlink() == new
    state.link_quotas("")
    assert (state.quota_file.is_symlink(), state.quota_file.read_text()) == (False, "{}\n")
    assert old.read_text() == "default: {vcpus: 1}"


def test_cpus_that_cannot_be_used_are_refused() -> None:
    for text in ("0", "0,2-3", " 1 - 2 "):
        local.check_cpus(text, {0, 1, 2, 3})
    rows = {"x": "'x' is not a CPU", "": "'' is not a CPU", "3-1": "is reversed", "0-9": "CPU 4 is not available"}
    for text, says in rows.items():
        with pytest.raises(InvalidArgument, match=says):
            local.check_cpus(text, {0, 1, 2, 3})


def test_stored_option_that_is_damaged_is_the_default() -> None:
    damaged: dict[str, list[Any]] = {
        "server_port": [-1, 70000, "1", True], "capacity": ["wide", 1], "cpus": [0],
        "memory_gb": [0, -1, "4", float("inf"), True], "machine_types": [1], "keep_jobs": ["0s", 9], "pull": ["often"],
        "container_user": ["root", 0],
    }  # fmt: skip
    for name, values in damaged.items():
        assert [value for value in values if Options.stored({name: value}) != Options()] == [], name
    given: dict[str, Any] = {"memory_gb": 1, "machine_types": "/gone", "keep_jobs": "90d", "pull": "never"}
    assert Options.stored({**given, "from_the_future": 1}) == Options(**given)
