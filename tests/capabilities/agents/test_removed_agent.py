"""`trainyard up` after its agent was removed."""

import socket
from dataclasses import replace

import pytest

from trainyard_cli.local import service
from trainyard_cli.local.connect import connect
from trainyard_cli.local.options import Options
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Target
from trainyard_protocol.answers.people import TokenRequest
from unit.cli.local.test_state import state  # noqa: F401 - a fixture


def test_up_after_a_lost_port_and_a_removed_agent(state: LocalState, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    choose, chosen, messages = LocalState.with_ports, list[Options](), list[str]()
    faster = socket.create_server(("127.0.0.1", 0))
    lost = faster.getsockname()[1]

    def race(self: LocalState, options: Options) -> Options:
        chosen.append(choose(self, options))
        return replace(chosen[0], server_port=lost) if len(chosen) == 1 else chosen[-1]

    try:
        with faster, monkeypatch.context() as patched:
            patched.setattr(LocalState, "with_ports", race)
            (agent,) = service.up(state, {}, messages.append).server.agents  # type: ignore[union-attr]
        assert state.options().server_port != lost
        assert messages == [f"Another program bound port {lost} before the local server did. Trying again."]
        state.stop("agent")
        with connect(Target(state.root, local=True)) as client:
            client.remove_agent(agent.agent_id)
            with pytest.raises(service.AgentRefused) as caught:
                service.up(state, {}, lambda _: None)
            assert "An operator has removed the agent" in caught.value.message
            assert f"`trainyard agents add {agent.name}`" in caught.value.message
            assert state.process("server") is not None, "it is needed for that command"
            with pytest.raises(service.AgentRefused):
                service.serve_google(state, lambda _: None, wanted=True)
            assert state.process("server") is not None
            client.create_token(TokenRequest(owner=agent.name, for_agent=True))
        assert service.up(state, {}, lambda _: None).healthy
    finally:
        service.down(state, lambda _: None)
