"""The address of `trainyard mcp --listen`."""

import importlib.util
from pathlib import Path

import pytest

from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run
from trainyard_cli.mcp.http import listening
from trainyard_protocol.errors import InvalidArgument

CERT = Path("cert.pem")


def test_loopback_needs_nothing_and_the_network_a_certificate_and_a_name() -> None:
    for text, names, tls, refusal in (
        ("127.0.0.1:8480", (), None, ""),
        ("localhost:0", (), None, ""),
        ("[::1]:8480", (), None, ""),
        ("0.0.0.0:8480", ("mcp.example.com",), CERT, ""),
        ("0.0.0.0:8480", ("mcp.example.com",), None, "tokens would cross the network in plain text"),
        ("0.0.0.0:8480", (), CERT, "give --allowed-host NAME"),
        ("8480", (), None, "--listen takes HOST:PORT"),
        ("127.0.0.1:99999", (), None, "--listen takes HOST:PORT"),
        ("mcp.example.com:8480", (), None, "--listen takes an address of this machine"),
    ):
        if refusal:
            with pytest.raises(InvalidArgument, match=refusal):
                listening(text, names, tls, tls)
        else:
            assert listening(text, names, tls, tls).port == int(text.rpartition(":")[2])
    with pytest.raises(InvalidArgument, match="--tls-cert and --tls-key are needed together"):
        listening("127.0.0.1:1", (), CERT, None)


def test_command_without_the_package_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(trainyard, "trainyard", ["mcp"]) == 1
    assert "pip install 'trainyard[mcp]'" in capsys.readouterr().err


def test_flags_of_http_are_refused_on_stdio(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trainyard, "trainyard", ["mcp", "--allowed-host", "a"]) == 1
    assert "--allowed-host, --tls-cert and --tls-key are of --listen." in capsys.readouterr().err
