"""Identity of the agent of a namespace."""

import argparse
import base64
from pathlib import Path

import pytest

from trainyard_agent import kubernetes_platform
from trainyard_agent.engines.kubernetes.api.client import KubeClient
from trainyard_agent.host.identity import identity
from trainyard_agent.kubernetes_platform import identity_of
from trainyard_agent.runtime_selection import RuntimeRefused
from unit.agent.engines.kubernetes.fake_objects import FakeObjects


class Namespace(FakeObjects):
    """It keeps a Secret's values as the API server does."""

    def create(self, kind: str, body: dict[str, object]) -> dict[str, object]:
        values = body.pop("stringData")
        assert isinstance(values, dict)
        encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
        return super().create(kind, {**body, "data": encoded})


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> Namespace:
    namespace = Namespace()

    def client(_: argparse.Namespace) -> KubeClient:
        return namespace

    monkeypatch.setattr(kubernetes_platform, "_client", client)
    return namespace


def options(state_dir: Path) -> argparse.Namespace:
    state_dir.mkdir(exist_ok=True)
    return argparse.Namespace(state_dir=state_dir)


def test_agent_without_a_directory_of_its_own_is_the_one_of_its_namespace(
    namespace: Namespace, tmp_path: Path
) -> None:
    first = identity_of(options(tmp_path / "first"))
    assert identity_of(options(tmp_path / "second")) == first
    namespace.found.clear()
    assert identity_of(options(tmp_path / "third")).agent_id != first.agent_id


def test_identity_of_a_directory_becomes_that_of_the_namespace_and_a_second_one_is_refused(
    namespace: Namespace, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    before = identity(tmp_path / "old")
    assert identity_of(options(tmp_path / "old")) == before
    assert identity_of(options(tmp_path / "new")) == before
    (tmp_path / "other").mkdir()
    identity(tmp_path / "other")
    with pytest.raises(RuntimeRefused, match=f"is that of the agent {before.agent_id}"):
        identity_of(options(tmp_path / "other"))
