"""The variables of one parameter server, without a network."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from support.lazy import variables_module
from support.local_servers import PATIENCE, SGD, N, make, vector

if TYPE_CHECKING:
    from trainyard_trainer.parameter_servers.variables import Values, Variables


def initialized(size: int = N, version: int = 0) -> Variables:
    variables = variables_module.Variables(make)
    variables.initialize(np.zeros(size, np.float32), None, version, SGD)
    return variables


def test_variables_pulled_stay_as_they_were() -> None:
    variables = initialized()
    pulled, _ = variables.pull("reader/0")
    snapshot = variables.snapshot()
    variables.push(vector(1), 0, "worker", 0)
    np.testing.assert_array_equal(pulled, np.zeros(N))
    np.testing.assert_array_equal(snapshot.values, np.zeros(N))


def test_variables_push_returns_the_staleness_of_the_gradient_and_recent_is_since_the_last_call() -> None:
    variables = initialized(version=100)
    pushes = [variables.push(vector(0), 100, worker, number) for worker, number in (("a", 0), ("b", 0), ("b", 1))]
    assert pushes == [0, 1, 2]
    assert variables.version == 103
    assert variables.staleness() == variables.recent_staleness() == (3, 1.0, 2)
    assert variables.recent_staleness() == (0, 0.0, 0)
    variables.push(vector(0), 103, "a", 1)
    assert variables.recent_staleness() == (1, 0.0, 0)
    assert variables.staleness().updates == 4


def test_variables_count_the_workers_that_have_pulled_and_not_left_or_started_anew() -> None:
    variables = initialized()
    assert variables.active() == 0
    for worker in ("a/1", "b/1", "b/1", "b/2"):
        variables.pull(worker)
    assert variables.active() == 2
    for worker in ("c/1", "b/1"):  # never pulled; a delayed request of a dead start
        variables.leave(worker)
    assert variables.active() == 2
    for _ in range(2):
        variables.leave("b/2")
    assert variables.active() == 1


def test_variables_a_bad_gradient_changes_nothing() -> None:
    variables = initialized()
    variables.push(vector(1), 0, "worker", 0)
    before, _ = variables.pull("reader/0")
    zeros = np.zeros(N, np.float32)
    bad: list[tuple[Values, int, int, str]] = [
        (np.zeros(N + 1, np.float32), 1, 1, "of shape"),
        (np.full(N, np.nan, np.float32), 1, 1, "not finite"),
        (np.full(N, np.inf, np.float32), 1, 1, "not finite"),
        (zeros, 2, 1, "at version 1"),  # computed on a future version
        (zeros, 1, -1, "after its gradient 0"),  # reordered
    ]
    for gradient, computed_on, number, message in bad:
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
