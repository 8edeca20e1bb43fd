"""Clients and servers over gRPC."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from support.addresses import free_addresses
from support.lazy import messages, variables_module
from support.local_servers import MOMENTUM, PATIENCE, SGD, N, Servers, vector


def test_client_of_a_restarted_chief_continues_with_the_variables_and_settings_of_the_servers(servers: Servers) -> None:
    servers.start(2)
    first = servers.client("first start")
    first.initialize(vector(0), None, 0, SGD)
    first.push(vector(1), first.pull())
    again = servers.client("second start")
    assert not again.initialize(vector(0), None, 0, MOMENTUM)
    assert again.wait_until_initialized(PATIENCE) == SGD
    assert again.push(vector(1), again.pull()) == (2, 0)


def test_client_waits_for_variables(servers: Servers) -> None:
    servers.start(2)
    worker = servers.client("worker")
    with pytest.raises(variables_module.NotInitialized, match=f"ps 0 at {servers.addresses[0]} is not initialized"):
        worker.pull()
    with pytest.raises(messages.ParameterServerError, match=f"ps 0 at {servers.addresses[0]} got no variables"):
        worker.wait_until_initialized(timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.wait_until_initialized, PATIENCE)
        servers.client("chief").initialize(vector(0), None, 0, SGD)
        assert waiting.result(PATIENCE) == SGD
    np.testing.assert_array_equal(worker.pull().values, vector(0))


def test_client_gets_the_refusals_of_each_server_and_nothing_changes_on_any(servers: Servers) -> None:
    servers.start(2)
    client = servers.client()
    with pytest.raises(ValueError, match=f"ps 0 at {servers.addresses[0]}: .* of another optimizer"):
        client.initialize(vector(0), [[vector(0)], [vector(0)]], 0, SGD)
    with pytest.raises(ValueError, match=r"ps 0 at .* run different versions of the trainer"):
        client.initialize(vector(0), None, 0, {**SGD, "decay": 0.5})
    client.initialize(vector(0), None, 0, SGD)
    in_the_last_slice = np.array([0] * (N - 1) + [np.nan], np.float32)
    for gradient, message in ((np.zeros(N - 1, np.float32), "of shape"), (in_the_last_slice, "not finite")):
        with pytest.raises(ValueError, match=message):
            client.push(gradient, client.pull())
    assert client.pull().versions == (0, 0)


def test_client_names_a_server_that_does_not_come_or_is_gone(servers: Servers) -> None:
    servers.start(2)
    servers.addresses += free_addresses(1)
    missing = f"ps 2 at {servers.addresses[2]} did not respond"
    with pytest.raises(messages.ParameterServerError, match=missing):
        servers.client().wait_until_ready(timeout=0.3)
    del servers.addresses[2]
    client = servers.client(retry_for=0.3)
    client.initialize(vector(0), None, 0, SGD)
    servers.running[1].stop(0)
    gone = rf"ps 1 at {servers.addresses[1]} did not respond \(pull\)"
    with pytest.raises(messages.ParameterServerError, match=gone):
        client.pull()


@pytest.mark.parametrize("back", ["empty", "initialized again"])
def test_client_of_a_server_that_was_restarted_reports_lost_variables(servers: Servers, back: str) -> None:
    servers.start(2)
    client = servers.client()
    client.initialize(vector(0), None, 0, SGD)
    pulled = client.pull()
    servers.restart(1)
    if back == "initialized again":
        servers.client("another").initialize(vector(0), None, 0, SGD)
    lost = f"ps 1 at {servers.addresses[1]} lost its variables"
    with pytest.raises(messages.ParameterServerError, match=lost):
        client.push(vector(1), pulled)
    with pytest.raises(messages.ParameterServerError, match=lost):
        client.pull()


def test_client_retries_until_a_server_is_back(servers: Servers) -> None:
    servers.start(1)
    client = servers.client()
    client.wait_until_ready(PATIENCE)
    servers.running[0].stop(0)
    with ThreadPoolExecutor(1) as pool:
        initialized = pool.submit(client.initialize, vector(0), None, 0, SGD)
        with pytest.raises(messages.ParameterServerError):
            servers.client(retry_for=0).pull()
        servers.restart(0)
        assert initialized.result(PATIENCE)


def test_client_push_whose_answer_is_lost_is_applied_once(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    servers.start(1)
    client = servers.client()
    client.initialize(vector(0), None, 0, SGD)
    first = client.pull()
    client.push(vector(1), first)
    variables, answers, asked_again = servers.running[0].variables, [], threading.Event()
    push = variables.push

    def push_and_answer_too_late(*args: Any) -> int:
        answers.append(push(*args))
        if len(answers) > 1:
            asked_again.set()
        asked_again.wait(PATIENCE)
        return answers[-1]

    monkeypatch.setattr(variables, "push", push_and_answer_too_late)
    monkeypatch.setattr("trainyard_trainer.parameter_servers.client.CALL_TIMEOUT", 0.5)
    assert client.push(vector(1), first) == (2, 1)
    assert set(answers) == {1}
    assert variables.version == 2


def test_client_leaves_and_finishes_where_a_server_is_gone(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    servers.start(3)
    worker = servers.client("worker", retry_for=0.3)
    worker.initialize(vector(0), None, 0, SGD)
    worker.push(vector(1), worker.pull())
    servers.restart(1)
    servers.running[2].stop(0)
    gone = f"ps 2 at {servers.addresses[2]}"
    worker.leave()
    assert servers.running[0].variables.active() == 0
    assert f"may wait for this worker although it has left: {gone}" in caplog.text
    servers.client("chief", retry_for=0.3).finish()
    assert all(stopped.wait(PATIENCE) for stopped in servers.stopped[:2])
    assert f"may not have been notified of the end of training: {gone}" in caplog.text
