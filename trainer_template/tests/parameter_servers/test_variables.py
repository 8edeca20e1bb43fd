"""The variables of one parameter server, without a network."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from support.lazy import variables_module
from support.local_servers import MOMENTUM, PATIENCE, SGD, N, make, vector

if TYPE_CHECKING:
    from trainer.parameter_servers.variables import Settings, Values, Variables


def initialized(size: int = N, version: int = 0) -> Variables:
    variables = variables_module.Variables(make)
    variables.initialize(np.zeros(size, np.float32), None, version, SGD)
    return variables


def test_variables_before_initialization_raise_not_initialized() -> None:
    variables = variables_module.Variables(make)
    assert variables.version == -1
    with pytest.raises(variables_module.NotInitialized):
        variables.pull("reader/0")
    with pytest.raises(variables_module.NotInitialized):
        variables.snapshot()
    with pytest.raises(variables_module.NotInitialized):
        variables.push(vector(0), 0, "worker", 0)


def test_variables_a_second_initialize_is_ignored() -> None:
    variables = variables_module.Variables(make)
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
    variables = variables_module.Variables(make)
    with pytest.raises(ValueError, match="of another optimizer or another model"):
        variables.initialize(vector(0), bad, 0, MOMENTUM if len(bad) != 1 else SGD)
    assert variables.version == -1


@pytest.mark.parametrize("settings", [{"rate": 1.0, "decay": 0.5}, {}])
def test_variables_with_settings_of_another_version_are_refused(settings: Settings) -> None:
    variables = variables_module.Variables(make)
    with pytest.raises(ValueError, match=r"run different versions of the trainer: make\(\) .*'(decay|rate)'"):
        variables.initialize(vector(0), None, 0, settings)
    assert variables.version == -1


def test_variables_push_returns_the_staleness_of_the_gradient() -> None:
    variables = initialized(version=100)
    assert variables.push(vector(0), 100, "a", 0) == 0
    assert variables.push(vector(0), 100, "b", 0) == 1
    assert variables.push(vector(0), 100, "b", 1) == 2
    assert variables.version == 103
    assert variables.staleness() == (3, 1.0, 2, {"a": 0.0, "b": 1.5})


def test_variables_recent_staleness_is_since_the_last_call() -> None:
    variables = initialized()
    variables.push(vector(0), 0, "a", 0)
    variables.push(vector(0), 0, "a", 1)
    assert variables.recent_staleness() == (2, 0.5, 1, {"a": 0.5})
    assert variables.recent_staleness() == (0, 0.0, 0, {})
    variables.push(vector(0), 2, "a", 2)
    assert variables.recent_staleness() == (1, 0.0, 0, {"a": 0.0})
    assert variables.staleness().updates == 3


def test_variables_a_repeated_push_returns_the_same_staleness_and_is_applied_once() -> None:
    variables = initialized()
    variables.push(vector(0), 0, "other", 0)
    assert variables.push(vector(1), 0, "worker", 0) == 1
    after, _ = variables.pull("reader/0")
    assert variables.push(vector(1), 0, "worker", 0) == 1
    values, version = variables.pull("reader/0")
    np.testing.assert_array_equal(values, after)
    assert version == 2


def test_variables_count_the_workers_that_have_pulled_and_not_left() -> None:
    variables = initialized()
    assert variables.active() == 0
    for worker in ("a/1", "b/1", "b/1"):
        variables.pull(worker)
    variables.leave("c/1")  # never pulled
    assert variables.active() == 2
    variables.leave("b/1")
    variables.leave("b/1")
    assert variables.active() == 1


def test_variables_replace_a_dead_worker_by_its_new_start() -> None:
    variables = initialized()
    for worker in ("a/1", "b/1", "b/2"):
        variables.pull(worker)
    assert variables.active() == 2
    variables.leave("b/1")  # a delayed request
    assert variables.active() == 2
    variables.leave("b/2")
    assert variables.active() == 1


@pytest.mark.parametrize(
    ("gradient", "computed_on", "number", "message"),
    [
        (np.zeros(N + 1, np.float32), 1, 1, "of shape"),
        (np.full(N, np.nan, np.float32), 1, 1, "not finite"),
        (np.full(N, np.inf, np.float32), 1, 1, "not finite"),
        (np.zeros(N, np.float32), 2, 1, "at version 1"),  # computed on a future version
        (np.zeros(N, np.float32), 1, -1, "after its gradient 0"),  # reordered
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
