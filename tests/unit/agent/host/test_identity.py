import logging
from pathlib import Path

import pytest

from trainyard_agent.host.identity import identity


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_identity_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    first = identity(tmp_path)
    assert (mode(tmp_path / "agent.json"), len(bytes.fromhex(first.key))) == (0o600, 32)
    assert identity(tmp_path) == first
    assert first.key not in repr(first)
    (tmp_path / "agent.json").unlink()
    second = identity(tmp_path)
    assert second.agent_id != first.agent_id
    assert second.key != first.key


def test_key_that_is_open_to_others_is_closed_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = identity(tmp_path)
    (tmp_path / "agent.json").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert identity(tmp_path) == first
    assert mode(tmp_path / "agent.json") == 0o600
    assert "was open to others" in caplog.text
