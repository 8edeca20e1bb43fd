"""Containers and networks that an agent left behind: the doctor finds those of agents that are gone for certain."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.engines import Engine
from trainyard_agent.engines.docker import spec
from trainyard_agent.engines.docker.spec import Owner
from trainyard_agent.host import machine_id
from trainyard_agent.host.files import write_json
from trainyard_agent.main import examine
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.answers.health import Finding
from unit.agent.stub_server import run_order

CHIEF = "master-replica-0"
AGENT = "doctor-" + uuid.uuid4().hex


class Left:
    """Orphans of agents in a real engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made: list[tuple[str, str]] = []

    def by(self, owner: Owner, role: str = spec.REPLICA, run_id: str = "") -> str:
        order = run_order(run_id or uuid.uuid4().hex, CHIEF)
        labels = owner.labels(role, order)
        client = self._engine.client()
        if role == spec.NETWORK:
            made = str(client.networks.create(spec.network_name(order), labels=labels).id)
        else:
            command = ["sleep", "1000"]
            container = client.containers.run(self._engine.base_image, command, labels=labels, detach=True, init=True)
            made = str(container.id)
        self._made.append((role, made))
        return made

    def there(self) -> set[str]:
        client = self._engine.client()
        found = client.containers.list(all=True, ignore_removed=True)
        return {str(one.id) for one in (*found, *client.networks.list())}

    def clear(self) -> None:
        client = self._engine.client()
        for role, identity in self._made:
            if identity in self.there():
                if role == spec.NETWORK:
                    client.networks.get(identity).remove()
                else:
                    client.containers.get(identity).remove(force=True)


@pytest.fixture
def left(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    left = Left(engine)
    yield left
    left.clear()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    write_json(tmp_path / "state" / "agent.json", {"agent_id": AGENT})
    return tmp_path / "state"


def about(state: Path, *ids: str) -> list[Finding]:
    findings = [one for one in examine(AgentSettings(state_dir=state)) if one.check == "orphans"]
    return [one for one in findings if any(identity in one.command for identity in ids)]


def test_what_is_left_of_runs_and_agents_that_are_gone_has_the_command_that_removes_it(
    left: Left, state: Path, tmp_path: Path
) -> None:
    mine = left.by(Owner(AGENT, "", str(state), machine_id.identity()))
    network = left.by(Owner(AGENT), spec.NETWORK)
    dead = left.by(Owner(uuid.uuid4().hex, "", str(tmp_path / "gone"), machine_id.identity()))
    replaced = left.by(Owner(uuid.uuid4().hex, "", str(state), machine_id.identity()))
    ids = (mine, network, dead, replaced)

    found = about(state, *ids)
    assert {one.command for one in found} == {
        f"docker network rm {network}",
        *(f"docker rm --force --volumes {container}" for container in (mine, dead, replaced)),
    }
    assert found[-1].command.startswith("docker network")  # one with a container cannot be removed
    assert any("gone, was removed" in one.found for one in found)
    assert any("belongs to another one" in one.found for one in found)
    assert left.there().issuperset(ids)


def test_what_lives_or_may_be_anothers_is_let_be(left: Left, state: Path, tmp_path: Path) -> None:
    known, prepared = uuid.uuid4().hex, uuid.uuid4().hex
    (state / "containers" / known).mkdir(parents=True)
    write_json(state / "containers" / known / "run.json", {"run_id": known})
    (state / "staging" / prepared).mkdir(parents=True)
    (tmp_path / "other").mkdir()
    stranger = uuid.uuid4().hex
    write_json(tmp_path / "other" / "agent.json", {"agent_id": stranger})
    ids = (
        left.by(Owner(AGENT), run_id=known),
        left.by(Owner(AGENT), spec.STAGING, run_id=prepared),
        left.by(Owner(stranger, "", str(tmp_path / "other"), machine_id.identity())),
        left.by(Owner(uuid.uuid4().hex)),  # of a time before such labels
        left.by(Owner(uuid.uuid4().hex, "", str(tmp_path / "gone"), "another-host mnt:[1]")),
    )
    assert about(state, *ids) == []
