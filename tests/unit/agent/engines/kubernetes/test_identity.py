"""Identity of the agent of a namespace."""

import base64
from pathlib import Path

import pytest

from trainyard_agent.engines.kubernetes import engine
from trainyard_agent.engines.kubernetes.api.client import KubeClient
from trainyard_agent.settings import AgentSettings
from unit.agent.engines.kubernetes.fake_objects import FakeObjects


class Namespace(FakeObjects):
    """It keeps a Secret's values as the API server does."""

    def create(self, kind: str, body: dict[str, object]) -> dict[str, object]:
        values = body.pop("stringData")
        assert isinstance(values, dict)
        encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
        return super().create(kind, {**body, "data": encoded})


def test_agent_without_a_directory_of_its_own_is_the_one_of_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = Namespace()

    def client(_: AgentSettings) -> KubeClient:
        return namespace

    monkeypatch.setattr(engine, "_client", client)
    first = engine.ENGINE.identity(AgentSettings(state_dir=tmp_path / "first"))
    assert engine.ENGINE.identity(AgentSettings(state_dir=tmp_path / "second")) == first
    namespace.found.clear()
    assert engine.ENGINE.identity(AgentSettings(state_dir=tmp_path / "third")).agent_id != first.agent_id
