"""The agent of another machine's server: its saved token, its systemd unit, addresses that it refuses."""

import os
from pathlib import Path

import pytest

from trainyard_cli.commands.tree import trainyard
from trainyard_cli.local.joined_agent import JoinedAgent
from trainyard_cli.main import run
from trainyard_protocol.errors import InvalidArgument

URL = "https://trains.example.com:8470"


def joined(directory: Path, *options: str, url: str = URL) -> JoinedAgent:
    return JoinedAgent(url, directory, Path("/etc/ca.pem"), options)


def test_token_is_saved_for_its_server_alone(tmp_path: Path) -> None:
    agent, other = joined(tmp_path), joined(tmp_path, url="https://other.example.com")
    before = agent.has_token
    agent.save_token("secret")
    assert (before, agent.has_token, other.has_token) == (False, True, False)
    assert agent.token_file.read_text() == "secret\n"
    assert agent.token_file.stat().st_mode & 0o777 == 0o600


def test_unit_of_a_user_runs_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    unit = joined(tmp_path / "joined", "--replica-env", 'A="$B" 50%\\').install()
    assert unit.path == tmp_path / "systemd" / "user" / "trainyard-agent.service"
    assert unit.commands[1:] == ["systemctl --user enable --now trainyard-agent", "loginctl enable-linger"]
    lines = unit.path.read_text().splitlines()
    (start,) = (line for line in lines if line.startswith("ExecStart="))
    assert start.endswith('"--ca-file" "/etc/ca.pem" "--replica-env" "A=\\"$$B\\" 50%%\\\\"')
    assert {"KillMode=process", "WantedBy=default.target"} <= set(lines)
    with pytest.raises(InvalidArgument, match="cannot be in a systemd unit"):
        joined(tmp_path, "--name", "a\nExecStart=b").install()


@pytest.mark.parametrize("command", [["agent", "join"], ["login"]])
@pytest.mark.parametrize(
    ("url", "says"), [("http://192.0.2.1:8470", "in plain text"), ("trains.example.com", "must be a URL")]
)
def test_address_that_would_show_the_token_is_refused(
    capsys: pytest.CaptureFixture[str], command: list[str], url: str, says: str
) -> None:
    assert run(trainyard, "trainyard", [*command, url, "--token-file", "-"]) == 1
    assert says in capsys.readouterr().err
