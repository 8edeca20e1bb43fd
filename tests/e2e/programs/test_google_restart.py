"""A server that `connect google` starts anew, and whose port another program takes in that moment."""

import socket

import pytest

from beds.waiting import until
from e2e.harness import Service
from trainyard_cli.local import service as local
from trainyard_cli.local.options import ProcessName
from trainyard_cli.local.state import LocalState, ProcessRecord
from trainyard_protocol.errors import Unavailable
from trainyard_protocol.net.loopback import IPV4, free_port, is_free


def restart(state: LocalState) -> str:
    """The refusal of a restart with Google's names."""
    with pytest.raises(Unavailable) as refused:
        local.serve_google(state, lambda _: None, wanted=True)
    assert all(part.pid for part in local.status(state).parts)
    return refused.value.message


@pytest.mark.long
def test_server_that_loses_its_port_as_it_starts_anew_runs_again_with_its_jobs(
    own_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LocalState(own_service.state_dir)
    own_service.program("import time; time.sleep(600)")
    own_service.ok("jobs", "submit", "training", "goes_on", "--package-path", "prog", "--module-name", "prog.task")
    own_service.wait_for("goes_on", "RUNNING")
    before = state.options()

    with socket.create_server((IPV4, free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(local, "PREFERRED_GOOGLE_PORT", port)
        # It was free when it was looked at.
        monkeypatch.setattr(local, "is_free", lambda one: one == port or is_free(one))
        assert "It runs again as before" in restart(state)
    assert state.options() == before
    monkeypatch.setattr(local, "is_free", is_free)
    monkeypatch.setattr(local, "PREFERRED_GOOGLE_PORT", free_port())

    others: list[socket.socket] = []
    stop = LocalState.stop

    def stop_and_lose(self: LocalState, name: ProcessName) -> ProcessRecord | None:
        stopped = stop(self, name)
        if name == "server" and not others:
            others.append(socket.create_server((IPV4, before.server_port)))
        return stopped

    monkeypatch.setattr(LocalState, "stop", stop_and_lose)
    try:
        message = restart(state)
    finally:
        for other in others:
            other.close()
    assert f"at http://127.0.0.1:{state.options().server_port};" in message
    assert state.options().server_port != before.server_port
    assert own_service.state("goes_on") == "RUNNING"
    own_service.ok("jobs", "cancel", "goes_on")
    until(lambda: own_service.state("goes_on") == "CANCELLED", "the job to end")
