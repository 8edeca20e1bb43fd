"""Identity of the agent of a namespace."""

import base64
from pathlib import Path
from typing import Any

import pytest

from trainyard_agent.engines.kubernetes import engine
from trainyard_agent.engines.kubernetes.api.client import KubeClient
from trainyard_agent.settings import AgentSettings


class Namespace(KubeClient):
    """It keeps a Secret's values as the API server does."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None

    def close(self) -> None:
        """Nothing is open."""

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.secret

    def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        encoded = {name: base64.b64encode(value.encode()).decode() for name, value in body.pop("stringData").items()}
        self.secret = {**body, "data": encoded}
        return self.secret


def test_agent_without_a_directory_of_its_own_is_the_one_of_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = Namespace()

    def client(_: AgentSettings) -> KubeClient:
        return namespace

    monkeypatch.setattr(engine, "_client", client)
    first = engine.ENGINE.identity(AgentSettings(state_dir=tmp_path / "first"))
    assert engine.ENGINE.identity(AgentSettings(state_dir=tmp_path / "second")) == first
    namespace.secret = None
    assert engine.ENGINE.identity(AgentSettings(state_dir=tmp_path / "third")).agent_id != first.agent_id
