"""Clients and servers over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.addresses import free_addresses
from support.lazy import messages, server_module, variables_module
from support.local_servers import (
    ADAM,
    MOMENTUM,
    PATIENCE,
    SGD,
    N,
    Servers,
    make,
    plain_optax,
    recut,
    vector,
)

if TYPE_CHECKING:
    from trainer.parameter_servers.variables import Settings, Values


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("settings", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_servers_together_do_what_optax_does_alone(servers: Servers, settings: Settings, count: int) -> None:
    gradients = [vector(seed) for seed in range(1, 7)]
    servers.start(count)
    client = servers.client()
    assert client.initialize(vector(0), None, 0, settings)
    for number, gradient in enumerate(gradients):
        pulled = client.pull()
        assert pulled.versions == (number,) * count
        assert client.push(gradient, pulled) == (number + 1, 0)
    expected = plain_optax(settings, vector(0), gradients)
    np.testing.assert_array_equal(client.pull().values, expected)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1), (3, 2)])
@pytest.mark.parametrize("settings", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_servers_of_another_number_go_on_from_a_snapshot(
    new_servers: Callable[[], Servers], settings: Settings, before: int, after: int
) -> None:
    gradients = [vector(seed) for seed in range(1, 7)]
    first, second = new_servers(), new_servers()
    first.start(before)
    client = first.client()
    client.initialize(vector(0), None, 0, settings)
    for gradient in gradients[:3]:
        client.push(gradient, client.pull())
    snapshot = client.snapshot()
    assert snapshot.version == 3
    np.testing.assert_array_equal(snapshot.values, client.pull().values)

    second.start(after)
    client = second.client()
    assert client.initialize(snapshot.values, recut(snapshot.leaves, after), snapshot.version, settings)
    for gradient in gradients[3:]:
        client.push(gradient, client.pull())
    assert client.pull().version == 6
    expected = plain_optax(settings, vector(0), gradients)
    np.testing.assert_array_equal(client.pull().values, expected)


def test_servers_more_than_elements_leave_some_without(servers: Servers) -> None:
    servers.start(3)
    client = servers.client()
    client.initialize(np.zeros(2, np.float32), None, 0, SGD)
    client.push(np.array([1, 2], np.float32), client.pull())
    np.testing.assert_array_equal(client.pull().values, [-1, -2])


def test_client_that_pushes_late_gets_its_staleness(servers: Servers) -> None:
    servers.start(2)
    fast, slow = servers.client("fast"), servers.client("slow")
    fast.initialize(vector(0), None, 40, SGD)
    pulled = slow.pull()
    fast.push(vector(1), fast.pull())
    fast.push(vector(1), fast.pull())
    assert slow.push(vector(2), pulled) == (43, 2)


def test_client_of_a_restarted_chief_continues_with_the_variables_of_the_servers(servers: Servers) -> None:
    servers.start(2)
    first = servers.client("first start")
    first.initialize(vector(0), None, 0, SGD)
    first.push(vector(1), first.pull())
    again = servers.client("second start")
    assert not again.initialize(vector(0), None, 0, SGD)
    assert again.push(vector(1), again.pull()) == (2, 0)


def test_client_waits_for_variables(servers: Servers) -> None:
    servers.start(2)
    worker = servers.client("worker")
    with pytest.raises(
        variables_module.NotInitialized, match=f"ps 0 at {servers.addresses[0]} is not initialized"
    ):
        worker.pull()
    with pytest.raises(
        messages.ParameterServerError, match=f"ps 0 at {servers.addresses[0]} got no variables"
    ):
        worker.wait_until_initialized(timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.wait_until_initialized, PATIENCE)
        servers.client("chief").initialize(vector(0), None, 0, SGD)
        assert waiting.result(PATIENCE) == SGD
    np.testing.assert_array_equal(worker.pull().values, vector(0))


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (np.zeros(N - 1, np.float32), "of shape"),
        (np.array([0] * (N - 1) + [np.nan], np.float32), "not finite"),  # in the slice of one server only
    ],
)
def test_client_a_bad_gradient_changes_nothing_on_any_server(
    servers: Servers, gradient: Values, message: str
) -> None:
    servers.start(2)
    client = servers.client()
    client.initialize(vector(0), None, 0, SGD)
    with pytest.raises(ValueError, match=message):
        client.push(gradient, client.pull())
    assert client.pull().versions == (0, 0)


def test_client_an_error_of_the_server_is_raised_as_the_same_type(servers: Servers) -> None:
    servers.start(1)
    with pytest.raises(ValueError, match=f"ps 0 at {servers.addresses[0]}: .* of another optimizer"):
        servers.client().initialize(vector(0), [[vector(0)]], 0, SGD)


def test_client_of_another_version_than_the_servers_reports_it(servers: Servers) -> None:
    servers.start(2)
    with pytest.raises(ValueError, match=r"ps 0 at .* run different versions of the trainer"):
        servers.client().initialize(vector(0), None, 0, {**SGD, "decay": 0.5})


def test_client_gets_the_settings_of_the_servers(servers: Servers) -> None:
    servers.start(2)
    servers.client("first start").initialize(vector(0), None, 0, ADAM)
    again = servers.client("second start")
    again.initialize(vector(0), None, 0, SGD)
    assert again.wait_until_initialized(PATIENCE) == ADAM


def test_client_waits_for_a_server_that_starts_later(servers: Servers) -> None:
    servers.addresses = free_addresses(2)
    client = servers.client()
    servers.running.append(server_module.serve(servers.addresses[0], make, stopped=threading.Event()))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait_until_ready, PATIENCE)
        # Another client has timed out by now.
        with pytest.raises(messages.ParameterServerError, match="ps 1 at"):
            servers.client().wait_until_ready(timeout=0.1)
        servers.running.append(server_module.serve(servers.addresses[1], make, stopped=threading.Event()))
        waiting.result(PATIENCE)
    assert client.initialize(vector(0), None, 0, SGD)


def test_client_names_a_server_that_does_not_come(servers: Servers) -> None:
    servers.start(1)
    servers.addresses += free_addresses(1)
    with pytest.raises(
        messages.ParameterServerError, match=f"ps 1 at {servers.addresses[1]} did not respond"
    ):
        servers.client().wait_until_ready(timeout=0.3)


def test_client_names_a_server_that_is_gone(servers: Servers) -> None:
    servers.start(2)
    client = servers.client(retry_for=0.3)
    client.initialize(vector(0), None, 0, SGD)
    servers.running[1].stop(0)
    with pytest.raises(
        messages.ParameterServerError, match=rf"ps 1 at {servers.addresses[1]} did not respond \(pull\)"
    ):
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


def test_client_push_whose_answer_is_lost_is_applied_once(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr("trainer.parameter_servers.client.CALL_TIMEOUT", 0.5)
    assert client.push(vector(1), first) == (2, 1)
    assert set(answers) == {1}
    assert variables.version == 2


def test_client_finish_reaches_all_servers_that_are_there(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    servers.start(3)
    servers.running[0].stop(0)
    servers.client(retry_for=0.3).finish()
    assert all(stopped.wait(PATIENCE) for stopped in servers.stopped[1:])
    assert f"may not have been notified of the end of training: ps 0 at {servers.addresses[0]}" in caplog.text


def test_client_leaves_all_servers(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    servers.start(2)
    chief, worker = servers.client("chief"), servers.client("worker")
    chief.initialize(vector(0), None, 0, SGD)
    chief.push(vector(1), chief.pull())
    worker.push(vector(1), worker.pull())
    worker.leave()
    assert [server.variables.active() for server in servers.running] == [1, 1]
    assert not any(stopped.is_set() for stopped in servers.stopped)
    chief.finish()
    assert [server.variables.active() for server in servers.running] == [0, 0]
    assert caplog.text == ""


def test_client_leaves_where_a_server_is_gone(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    servers.start(3)
    worker = servers.client("worker", retry_for=0.3)
    worker.initialize(vector(0), None, 0, SGD)
    worker.push(vector(1), worker.pull())
    servers.restart(1)
    servers.running[2].stop(0)
    worker.leave()
    assert servers.running[0].variables.active() == 0
    assert f"may wait for this worker although it has left: ps 2 at {servers.addresses[2]}" in caplog.text
