"""`trainyard dashboard`: a link that signs in, opened or printed."""

from datetime import UTC, datetime

import pytest

from trainyard_cli.commands import dashboard
from trainyard_cli.settings import Server, Target, default_state_dir
from trainyard_protocol.views import SignInCode

LINK = "http://127.0.0.1:8470/sign-in#123.abc.def"


class Answering:
    server = Server("http://127.0.0.1:8470", "secret", local=True)

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sign_in_code(self) -> SignInCode:
        return SignInCode(code="123.abc.def", expires_at=datetime.now(UTC), name="alice", role="submitter")


@pytest.fixture(autouse=True)
def a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "connect", lambda _: Answering())
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)


def shown(*, open_it: bool = True, works: bool = True) -> list[str]:
    opened: list[str] = []

    def launch(link: str) -> bool:
        opened.append(link)
        return works

    dashboard.show(Target(default_state_dir()), open_it=open_it, launch=launch)
    return opened


def test_browser_is_opened_at_the_link_and_the_code_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    assert shown() == [LINK]
    assert capsys.readouterr().out == (
        "Opened http://127.0.0.1:8470/ in your browser, signed in as alice (submitter).\n"
    )


@pytest.mark.parametrize(("display", "open_it"), [("", True), (":0", False)])
def test_link_is_printed_without_a_browser_or_with_no_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], display: str, open_it: bool
) -> None:
    monkeypatch.setenv("DISPLAY", display)
    assert shown(open_it=open_it) == []
    printed = capsys.readouterr()
    assert printed.out == f"{LINK}\n"
    assert printed.err == "This link signs you in as alice (submitter). It works once, for two minutes:\n"


def test_link_is_printed_when_the_browser_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert shown(works=False) == [LINK]
    assert capsys.readouterr().out == f"{LINK}\n"
