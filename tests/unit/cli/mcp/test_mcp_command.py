"""The command `trainyard mcp`."""

import importlib.util

import pytest

from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run


def test_command_without_the_package_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(trainyard, "trainyard", ["mcp"]) == 1
    assert "pip install 'trainyard[mcp]'" in capsys.readouterr().err
