"""Variables by themselves, and over the network: servers and clients in this process, on loopback."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import optax
import pytest

from addresses import free_addresses
from trainer import parameter_server
from trainer.parameter_server import Client, ParameterServerError, Server, run_server, serve
from trainer.variables import NotInitialized, Settings, Values, Variables

PATIENCE = 60.0  # seconds until something that hangs fails its test
N = 11  # no multiple of 2 or 3
SGD: Settings = {"rate": 1.0}
MOMENTUM: Settings = {"rate": 0.1, "kind": "momentum"}
ADAM: Settings = {"rate": 0.1, "kind": "adam", "steps": 9}


def make(rate: float, kind: str = "sgd", steps: int = 1) -> optax.GradientTransformation:
    if kind == "adam":
        schedule = optax.warmup_cosine_decay_schedule(rate / 10, rate, 2, decay_steps=steps)
        return optax.flatten(optax.adam(schedule))
    return optax.sgd(rate, momentum={"sgd": None, "momentum": 0.9}[kind])


def vector(seed: int, size: int = N) -> Values:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def initialized(size: int = N, version: int = 0) -> Variables:
    variables = Variables(make)
    variables.initialize(np.zeros(size, np.float32), None, version, SGD)
    return variables


def plain_optax(settings: Settings, values: Values, gradients: Sequence[Values]) -> Values:
    """What one process alone makes of these gradients."""
    optimizer = make(**settings)  # type: ignore[arg-type]

    @jax.jit
    def update(values: Any, state: Any, gradient: Values) -> Any:
        updates, state = optimizer.update(gradient, state, values)
        return optax.apply_updates(values, updates), state

    state = optimizer.init(values)
    for gradient in gradients:
        values, state = update(values, state, gradient)
    return np.asarray(values)


# Variables


def test_variables_before_they_are_initialized_are_not_there() -> None:
    variables = Variables(make)
    assert variables.version == -1
    with pytest.raises(NotInitialized):
        variables.pull("reader/0")
    with pytest.raises(NotInitialized):
        variables.snapshot()
    with pytest.raises(NotInitialized):
        variables.push(vector(0), 0, "worker", 0)


def test_variables_a_second_initialize_is_ignored() -> None:
    variables = Variables(make)
    assert variables.initialize(vector(0), None, 7, SGD)
    variables.push(vector(1), 7, "worker", 0)
    before, _ = variables.pull("reader/0")
    assert not variables.initialize(vector(2), None, 0, MOMENTUM)
    values, version = variables.pull("reader/0")
    np.testing.assert_array_equal(values, before)
    assert (version, variables.settings) == (8, SGD)
    variables.push(vector(1), 8, "worker", 1)
    np.testing.assert_array_equal(variables.pull("reader/0")[0], before - vector(1))


def test_variables_pulled_stay_as_they_were() -> None:
    variables = initialized()
    pulled, _ = variables.pull("reader/0")
    snapshot = variables.snapshot()
    variables.push(vector(1), 0, "worker", 0)
    np.testing.assert_array_equal(pulled, np.zeros(N))
    np.testing.assert_array_equal(snapshot.values, np.zeros(N))


@pytest.mark.parametrize("bad", [[np.zeros(N, np.float32)], [np.zeros(3, np.float32)] * 2, []])
def test_variables_with_the_state_of_another_optimizer_or_model_are_refused(bad: list[Any]) -> None:
    variables = Variables(make)
    with pytest.raises(ValueError, match="of another optimizer or another model"):
        variables.initialize(vector(0), bad, 0, MOMENTUM if len(bad) != 1 else SGD)
    assert variables.version == -1


@pytest.mark.parametrize("settings", [{"rate": 1.0, "decay": 0.5}, {}])
def test_variables_with_settings_of_another_version_are_refused(settings: Settings) -> None:
    variables = Variables(make)
    with pytest.raises(ValueError, match=r"run different versions of the trainer: make\(\) .*'(decay|rate)'"):
        variables.initialize(vector(0), None, 0, settings)
    assert variables.version == -1


def test_variables_push_says_how_stale_the_gradient_was() -> None:
    variables = initialized(version=100)
    assert variables.push(vector(0), 100, "a", 0) == 0
    assert variables.push(vector(0), 100, "b", 0) == 1
    assert variables.push(vector(0), 100, "b", 1) == 2
    assert variables.version == 103
    assert variables.staleness() == (3, 1.0, 2, {"a": 0.0, "b": 1.5})


def test_variables_recent_staleness_is_since_it_was_asked_last() -> None:
    variables = initialized()
    variables.push(vector(0), 0, "a", 0)
    variables.push(vector(0), 0, "a", 1)
    assert variables.recent_staleness() == (2, 0.5, 1, {"a": 0.5})
    assert variables.recent_staleness() == (0, 0.0, 0, {})
    variables.push(vector(0), 2, "a", 2)
    assert variables.recent_staleness() == (1, 0.0, 0, {"a": 0.0})
    assert variables.staleness().updates == 3


def test_variables_a_repeated_push_gets_the_same_answer_and_is_applied_once() -> None:
    variables = initialized()
    variables.push(vector(0), 0, "other", 0)
    assert variables.push(vector(1), 0, "worker", 0) == 1
    after, _ = variables.pull("reader/0")
    assert variables.push(vector(1), 0, "worker", 0) == 1
    values, version = variables.pull("reader/0")
    np.testing.assert_array_equal(values, after)
    assert version == 2


def test_variables_know_which_workers_have_pulled_and_not_left() -> None:
    variables = initialized()
    assert variables.active() == 0
    for worker in ("a/1", "b/1", "b/1"):
        variables.pull(worker)
    variables.leave("c/1")  # was never here
    assert variables.active() == 2
    variables.leave("b/1")
    variables.leave("b/1")
    assert variables.active() == 1


def test_variables_take_a_new_start_of_a_worker_for_the_one_that_died() -> None:
    variables = initialized()
    for worker in ("a/1", "b/1", "b/2"):
        variables.pull(worker)
    assert variables.active() == 2
    variables.leave("b/1")  # had been on its way
    assert variables.active() == 2
    variables.leave("b/2")
    assert variables.active() == 1


@pytest.mark.parametrize(
    ("gradient", "computed_on", "number", "message"),
    [
        (np.zeros(N + 1, np.float32), 1, 1, "of shape"),
        (np.full(N, np.nan, np.float32), 1, 1, "not finite"),
        (np.full(N, np.inf, np.float32), 1, 1, "not finite"),
        (np.zeros(N, np.float32), 2, 1, "at version 1"),  # computed on what is still to come
        (np.zeros(N, np.float32), 1, -1, "after its gradient 0"),  # lost on the way, and overtaken
    ],
)
def test_variables_a_bad_gradient_changes_nothing(
    gradient: Values, computed_on: int, number: int, message: str
) -> None:
    variables = initialized()
    variables.push(vector(1), 0, "worker", 0)
    before, _ = variables.pull("reader/0")
    with pytest.raises(ValueError, match=message):
        variables.push(gradient, computed_on, "worker", number)
    values, version = variables.pull("reader/0")
    np.testing.assert_array_equal(values, before)
    assert (version, variables.staleness().updates) == (1, 1)
    assert variables.push(vector(2), 1, "worker", 1) == 0


def test_variables_pushed_to_by_many_threads_count_every_update() -> None:
    variables = initialized()
    together = threading.Barrier(8)

    def worker(name: str) -> None:
        together.wait(PATIENCE)
        for number in range(25):
            _, version = variables.pull("reader/0")
            variables.push(np.full(N, -1, np.float32), version, name, number)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(worker, f"worker {index}") for index in range(8)]:
            done.result(PATIENCE)
    values, version = variables.pull("reader/0")
    np.testing.assert_array_equal(values, np.full(N, 200))
    assert (version, variables.staleness().updates) == (200, 200)
    assert len(variables.staleness().by_worker) == 8


# Over the network


class Cluster:
    """Servers and clients of one test."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.servers: list[Server] = []
        self.stopped: list[threading.Event] = []
        self._clients: list[Client] = []

    def start(self, count: int) -> None:
        self.addresses = free_addresses(count)
        self.stopped = [threading.Event() for _ in range(count)]
        self.servers = [
            serve(address, make, stopped=stopped)
            for address, stopped in zip(self.addresses, self.stopped, strict=True)
        ]

    def restart(self, index: int) -> None:
        self.servers[index].stop(0)
        self.servers[index] = serve(self.addresses[index], make, stopped=self.stopped[index])

    def client(self, worker: str = "chief", retry_for: float = PATIENCE) -> Client:
        client = Client(self.addresses, worker, retry_for=retry_for)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self.servers:
            server.stop(0)


@pytest.fixture
def new_cluster() -> Iterator[Callable[[], Cluster]]:
    clusters: list[Cluster] = []

    def new() -> Cluster:
        clusters.append(Cluster())
        return clusters[-1]

    yield new
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(new_cluster: Callable[[], Cluster]) -> Cluster:
    return new_cluster()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("settings", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_servers_together_do_what_optax_does_alone(cluster: Cluster, settings: Settings, count: int) -> None:
    gradients = [vector(seed) for seed in range(1, 7)]
    cluster.start(count)
    client = cluster.client()
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
    new_cluster: Callable[[], Cluster], settings: Settings, before: int, after: int
) -> None:
    gradients = [vector(seed) for seed in range(1, 7)]
    first, second = new_cluster(), new_cluster()
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
    assert client.initialize(*snapshot, settings)
    for gradient in gradients[3:]:
        client.push(gradient, client.pull())
    assert client.pull().version == 6
    expected = plain_optax(settings, vector(0), gradients)
    np.testing.assert_array_equal(client.pull().values, expected)


def test_servers_more_than_elements_leave_some_without(cluster: Cluster) -> None:
    cluster.start(3)
    client = cluster.client()
    client.initialize(np.zeros(2, np.float32), None, 0, SGD)
    client.push(np.array([1, 2], np.float32), client.pull())
    np.testing.assert_array_equal(client.pull().values, [-1, -2])


def test_client_that_pushes_late_is_told_its_staleness(cluster: Cluster) -> None:
    cluster.start(2)
    fast, slow = cluster.client("fast"), cluster.client("slow")
    fast.initialize(vector(0), None, 40, SGD)
    pulled = slow.pull()
    fast.push(vector(1), fast.pull())
    fast.push(vector(1), fast.pull())
    assert slow.push(vector(2), pulled) == (43, 2)


def test_client_of_a_chief_that_came_back_finds_what_the_servers_have(cluster: Cluster) -> None:
    cluster.start(2)
    first = cluster.client("first start")
    first.initialize(vector(0), None, 0, SGD)
    first.push(vector(1), first.pull())
    again = cluster.client("second start")
    assert not again.initialize(vector(0), None, 0, SGD)
    assert again.push(vector(1), again.pull()) == (2, 0)


def test_client_waits_for_variables(cluster: Cluster) -> None:
    cluster.start(2)
    worker = cluster.client("worker")
    with pytest.raises(NotInitialized, match=f"ps 0 at {cluster.addresses[0]} is not initialized"):
        worker.pull()
    with pytest.raises(ParameterServerError, match=f"ps 0 at {cluster.addresses[0]} got no variables"):
        worker.wait_until_initialized(timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.wait_until_initialized, PATIENCE)
        cluster.client("chief").initialize(vector(0), None, 0, SGD)
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
    cluster: Cluster, gradient: Values, message: str
) -> None:
    cluster.start(2)
    client = cluster.client()
    client.initialize(vector(0), None, 0, SGD)
    with pytest.raises(ValueError, match=message):
        client.push(gradient, client.pull())
    assert client.pull().versions == (0, 0)


def test_client_an_error_of_the_server_comes_back_as_what_it_was(cluster: Cluster) -> None:
    cluster.start(1)
    with pytest.raises(ValueError, match=f"ps 0 at {cluster.addresses[0]}: .* of another optimizer"):
        cluster.client().initialize(vector(0), [vector(0)], 0, SGD)


def test_client_of_another_version_than_the_servers_says_so(cluster: Cluster) -> None:
    cluster.start(2)
    with pytest.raises(ValueError, match=r"ps 0 at .* run different versions of the trainer"):
        cluster.client().initialize(vector(0), None, 0, {**SGD, "decay": 0.5})


def test_client_hears_the_settings_that_the_servers_have(cluster: Cluster) -> None:
    cluster.start(2)
    cluster.client("first start").initialize(vector(0), None, 0, ADAM)
    again = cluster.client("second start")
    again.initialize(vector(0), None, 0, SGD)
    assert again.wait_until_initialized(PATIENCE) == ADAM


def test_client_waits_for_a_server_that_starts_later(cluster: Cluster) -> None:
    cluster.addresses = free_addresses(2)
    client = cluster.client()
    cluster.servers.append(serve(cluster.addresses[0], make, stopped=threading.Event()))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait_until_ready, PATIENCE)
        with pytest.raises(ParameterServerError, match="ps 1 at"):  # somebody else has asked in vain by now
            cluster.client().wait_until_ready(timeout=0.1)
        cluster.servers.append(serve(cluster.addresses[1], make, stopped=threading.Event()))
        waiting.result(PATIENCE)
    assert client.initialize(vector(0), None, 0, SGD)


def test_client_names_a_server_that_does_not_come(cluster: Cluster) -> None:
    cluster.start(1)
    cluster.addresses += free_addresses(1)
    with pytest.raises(ParameterServerError, match=f"ps 1 at {cluster.addresses[1]} did not answer"):
        cluster.client().wait_until_ready(timeout=0.3)


def test_client_names_a_server_that_is_gone(cluster: Cluster) -> None:
    cluster.start(2)
    client = cluster.client(retry_for=0.3)
    client.initialize(vector(0), None, 0, SGD)
    cluster.servers[1].stop(0)
    with pytest.raises(
        ParameterServerError, match=rf"ps 1 at {cluster.addresses[1]} did not answer \(pull\)"
    ):
        client.pull()


@pytest.mark.parametrize("back", ["empty", "initialized again"])
def test_client_of_a_server_that_was_restarted_says_that_it_lost_its_variables(
    cluster: Cluster, back: str
) -> None:
    cluster.start(2)
    client = cluster.client()
    client.initialize(vector(0), None, 0, SGD)
    pulled = client.pull()
    cluster.restart(1)
    if back == "initialized again":
        cluster.client("another").initialize(vector(0), None, 0, SGD)
    lost = f"ps 1 at {cluster.addresses[1]} lost its variables"
    with pytest.raises(ParameterServerError, match=lost):
        client.push(vector(1), pulled)
    with pytest.raises(ParameterServerError, match=lost):
        client.pull()


def test_client_asks_again_until_a_server_is_back(cluster: Cluster) -> None:
    cluster.start(1)
    client = cluster.client()
    client.wait_until_ready(PATIENCE)
    cluster.servers[0].stop(0)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.initialize, vector(0), None, 0, SGD)
        with pytest.raises(ParameterServerError):
            cluster.client(retry_for=0).pull()
        cluster.restart(0)
        assert asked.result(PATIENCE)


def test_client_push_whose_answer_is_lost_is_applied_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start(1)
    client = cluster.client()
    client.initialize(vector(0), None, 0, SGD)
    first = client.pull()
    client.push(vector(1), first)
    variables, answers, asked_again = cluster.servers[0].variables, [], threading.Event()
    push = variables.push

    def push_and_answer_too_late(*args: Any) -> int:
        answers.append(push(*args))
        if len(answers) > 1:
            asked_again.set()
        asked_again.wait(PATIENCE)
        return answers[-1]

    monkeypatch.setattr(variables, "push", push_and_answer_too_late)
    monkeypatch.setattr(parameter_server, "CALL_TIMEOUT", 0.5)
    assert client.push(vector(1), first) == (2, 1)
    assert set(answers) == {1}
    assert variables.version == 2


def test_client_finish_reaches_all_servers_that_are_there(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.start(3)
    cluster.servers[0].stop(0)
    cluster.client(retry_for=0.3).finish()
    assert all(stopped.wait(PATIENCE) for stopped in cluster.stopped[1:])
    assert f"may not know that training is over: ps 0 at {cluster.addresses[0]}" in caplog.text


def test_client_leaves_all_servers(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.start(2)
    chief, worker = cluster.client("chief"), cluster.client("worker")
    chief.initialize(vector(0), None, 0, SGD)
    chief.push(vector(1), chief.pull())
    worker.push(vector(1), worker.pull())
    worker.leave()
    assert [server.variables.active() for server in cluster.servers] == [1, 1]
    assert not any(stopped.is_set() for stopped in cluster.stopped)
    chief.finish()
    assert [server.variables.active() for server in cluster.servers] == [0, 0]
    assert caplog.text == ""


def test_client_leaves_where_a_server_is_gone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.start(3)
    worker = cluster.client("worker", retry_for=0.3)
    worker.initialize(vector(0), None, 0, SGD)
    worker.push(vector(1), worker.pull())
    cluster.restart(1)
    cluster.servers[2].stop(0)
    worker.leave()
    assert cluster.servers[0].variables.active() == 0
    assert f"may wait in vain for this worker: ps 2 at {cluster.addresses[2]}" in caplog.text


def test_serve_where_the_port_is_taken_says_so(cluster: Cluster) -> None:
    cluster.start(1)
    with pytest.raises(ParameterServerError, match=f"cannot listen at {cluster.addresses[0]}"):
        serve(cluster.addresses[0], make, stopped=threading.Event())


def test_serve_listens_beyond_loopback_only_if_it_is_asked_to(cluster: Cluster) -> None:
    (loopback,) = free_addresses(1)
    port = loopback.rpartition(":")[2]
    cluster.servers.append(serve(f"elsewhere:{port}", make, stopped=threading.Event()))
    cluster.addresses = [f"127.0.0.2:{port}"]
    cluster.client().wait_until_ready(PATIENCE)
    (address,) = free_addresses(1)
    cluster.servers.append(serve(address, make, stopped=threading.Event()))
    cluster.addresses = [f"127.0.0.2:{address.rpartition(':')[2]}"]
    with pytest.raises(ParameterServerError, match="did not answer"):
        cluster.client(retry_for=0).pull()


# The ps task


@pytest.fixture
def _sigterm_kept() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Task:
    """run_server in this, the main thread, and beside it somebody who does something with a client."""

    def __init__(self, cluster: Cluster) -> None:
        cluster.addresses = free_addresses(1)
        self._address = cluster.addresses[0]
        self.client = cluster.client("chief")
        self.worker = cluster.client("worker", retry_for=0)
        self.reports: list[dict[str, float]] = []
        self.reported = threading.Event()

    def run(self, beside: Callable[[], None], grace: float = PATIENCE, every: int = 2) -> None:
        with ThreadPoolExecutor(1) as pool:
            done: Future[None] = pool.submit(beside)
            run_server(self._address, make, 0, 1, grace, report=self._report, every=every)
            done.result(PATIENCE)

    def _report(self, **fields: float) -> None:
        self.reports.append(fields)
        self.reported.set()


@pytest.mark.usefixtures("_sigterm_kept")
def test_run_server_serves_until_training_is_over(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = Task(cluster)

    def train() -> None:
        task.client.wait_until_ready(PATIENCE)
        task.client.initialize(vector(0), None, 40, SGD)
        first = task.client.pull()
        for _ in range(5):
            task.client.push(vector(1), first)
        task.client.finish()

    task.run(train)
    assert "goodbye" not in caplog.text
    assert task.reports[-1]["step"] == 45
    assert task.reports[-1]["staleness_max"] == 4
    assert "ps 0 of 1 listens at 127.0.0.1:" in caplog.text
    assert "Initialized: 11 elements, version 40." in caplog.text
    assert "ps 0 applied 5 updates; staleness 2.00 in the mean, 4 at most." in caplog.text


@pytest.mark.usefixtures("_sigterm_kept")
def test_run_server_reports_every_so_many_updates(cluster: Cluster) -> None:
    task = Task(cluster)

    def train() -> None:
        task.client.wait_until_ready(PATIENCE)
        task.client.initialize(vector(0), None, 0, SGD)
        task.client.push(vector(1), task.client.pull())
        task.client.push(vector(1), task.client.pull())
        task.reported.wait(PATIENCE)
        task.client.push(vector(1), task.client.pull())
        task.client.finish()

    task.run(train)
    assert task.reports == [
        {"step": 2, "staleness_mean": 0.0, "staleness_max": 0},
        {"step": 3, "staleness_mean": 0.0, "staleness_max": 0},
    ]


@pytest.mark.usefixtures("_sigterm_kept")
def test_run_server_after_sigterm_serves_until_the_chief_has_saved(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(cluster)
    saved = []

    def save() -> None:
        task.client.wait_until_ready(PATIENCE)
        task.client.initialize(vector(0), None, 3, SGD)
        os.kill(os.getpid(), signal.SIGTERM)
        saved.append(task.client.snapshot())
        task.client.finish()

    task.run(save)
    assert saved[0].version == 3
    assert "not that training is over" not in caplog.text
    assert task.reports == []


@pytest.mark.usefixtures("_sigterm_kept")
def test_run_server_after_sigterm_without_a_chief_ends_by_itself(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(cluster)

    def terminate() -> None:
        task.client.wait_until_ready(PATIENCE)
        os.kill(os.getpid(), signal.SIGTERM)

    task.run(terminate, grace=0)
    assert "ps 0 was told to stop, and not that training is over." in caplog.text


@pytest.mark.usefixtures("_sigterm_kept")
def test_run_server_answers_workers_until_they_have_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(cluster)
    happened = []
    stop = Server.stop

    def remember_and_stop(server: Server, *args: float) -> None:
        happened.append("stop")
        stop(server, *args)

    monkeypatch.setattr(Server, "stop", remember_and_stop)
    monkeypatch.setattr(parameter_server, "POLL", 0.001)

    def train() -> None:
        task.client.wait_until_ready(PATIENCE)
        task.client.initialize(vector(0), None, 0, SGD)
        task.worker.push(vector(1), task.worker.pull())
        pulled = task.worker.pull()
        task.client.push(vector(1), task.client.pull())
        task.client.finish()
        for _ in range(5):
            task.worker.push(vector(1), pulled)
            pulled = task.worker.pull()
        happened.append("leave")
        task.worker.leave()

    task.run(train)
    assert happened == ["leave", "stop"]
    assert task.reports[-1]["step"] == 7
    assert "goodbye" not in caplog.text


@pytest.mark.usefixtures("_sigterm_kept")
def test_run_server_does_not_wait_for_ever_for_a_worker_that_was_killed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(cluster)

    def train() -> None:
        task.client.wait_until_ready(PATIENCE)
        task.client.initialize(vector(0), None, 0, SGD)
        task.worker.push(vector(1), task.worker.pull())
        task.client.finish()

    task.run(train, grace=0)
    assert "ps 0: workers gone without a goodbye: 1." in caplog.text


@pytest.mark.parametrize("first", ["finish", "SIGTERM"])
@pytest.mark.usefixtures("_sigterm_kept")
def test_run_server_after_finish_and_sigterm_waits_for_no_worker(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    task = Task(cluster)

    def end() -> None:
        task.client.wait_until_ready(PATIENCE)
        task.client.initialize(vector(0), None, 0, SGD)
        task.worker.push(vector(1), task.worker.pull())
        if first == "finish":
            task.client.finish()
        os.kill(os.getpid(), signal.SIGTERM)
        if first == "SIGTERM":
            task.client.finish()

    task.run(end)
    assert "goodbye" not in caplog.text
    assert "not that training is over" not in caplog.text
