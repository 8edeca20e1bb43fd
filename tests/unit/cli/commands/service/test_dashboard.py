"""`trainyard dashboard`: a link that signs in, opened or printed."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from trainyard_cli.commands.service import dashboard
from trainyard_cli.settings import Server, Target, default_state_dir
from trainyard_protocol.answers.people import SignInCode
from trainyard_protocol.net import loopback

CODE = "123.abc.def"
LINK = f"http://trainyard.localhost:8470/sign-in#{CODE}"


class Answering:
    server = Server("http://127.0.0.1:8470", "secret", local=True)

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sign_in_code(self) -> SignInCode:
        return SignInCode(code=CODE, expires_at=datetime.now(UTC), name="alice", role="submitter")


@pytest.fixture(autouse=True)
def removers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that remove pages when their time is over. None outlives its test."""
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(dashboard, "connect", lambda _: Answering())
    monkeypatch.setattr(dashboard, "detach", started.append)
    monkeypatch.setattr(loopback, "is_held_by_one_user", lambda _: True)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "VSCODE_IPC_HOOK_CLI"):
        monkeypatch.delenv(name, raising=False)
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def shown(*, open_it: bool = True, works: bool = True) -> list[str]:
    opened: list[str] = []

    def launch(link: str) -> bool:
        opened.append(link)
        return works

    dashboard.show(Target(default_state_dir()), open_it=open_it, launch=launch)
    return opened


def test_code_is_in_a_file_of_this_user_alone_and_in_no_process(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    removers: list[subprocess.Popen[bytes]],
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    old = tmp_path / "trainyard-sign-in-old"
    old.mkdir()
    os.utime(old, (0, 0))
    (address,) = shown()
    printed = capsys.readouterr()
    assert printed.out.startswith("Opened http://trainyard.localhost:8470/ in your browser, signed in as alice (submi")
    assert CODE not in address + printed.out + printed.err
    page = Path(urlsplit(address).path)
    assert re.findall(r'url=(.*?)"', page.read_text()) == [LINK]
    assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert list(tmp_path.iterdir()) == [page.parent], "an old one is removed"
    (remover,) = map(psutil.Process, (process.pid for process in removers))
    assert CODE not in " ".join([*remover.cmdline(), *remover.environ().values()])


def test_page_is_removed_when_the_code_has_expired(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, removers: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(dashboard, "_CODE_LIFETIME_S", 0)
    monkeypatch.setenv("DISPLAY", ":0")
    shown()
    assert [process.wait(20) for process in removers] == [0]
    assert list(tmp_path.iterdir()) == []


ASKED = "This link signs you in as alice (submitter). It works once, for two minutes:\n"
PRINTED: dict[str, tuple[dict[str, str], dict[str, bool], int, str]] = {
    # the environment, what is given, the browsers that are started, what is on stderr
    "no browser": ({"DISPLAY": ""}, {}, 0, ASKED),
    "--no-open": ({"DISPLAY": ":0"}, {"open_it": False}, 0, ASKED),
    "a browser that does not start": ({"WAYLAND_DISPLAY": "wayland-0"}, {"works": False}, 1, ""),
    "no page": ({"DISPLAY": ":0", "HOME": "/nonexistent"}, {}, 0, "No such file or directory"),
    "a browser elsewhere": (
        {"BROWSER": "/opt/editor/helpers/browser.sh", "VSCODE_IPC_HOOK_CLI": "/run/ipc.sock"},
        *({}, 0, ASKED),
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_link_without_a_browser(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str) -> None:
    environment, given, started, says = PRINTED[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert len(shown(**given)) == started
    printed = capsys.readouterr()
    assert printed.out == f"{LINK}\n"
    assert says in printed.err
