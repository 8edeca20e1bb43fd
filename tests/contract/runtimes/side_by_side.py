"""Tests of the contract that run at the same time, each in a namespace of its own: on a cluster they wait most of the
time, for kubelets."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path

import pytest

from contract.runtimes.runtime_labs import Driver, KubernetesLab

_AT_ONCE = 6
_DRIVERS = ("driver", "real_driver")
_ALONE = {"test_stop_twice_keeps_the_first_reason_and_the_earlier_kill"}
"""After all others: a kubelet of Kubernetes 1.20 that has seen the first of two grace periods keeps to it, which is
likely where it is busy."""


class SideBySide:
    """In place of the driver of such a test, whose result it has."""

    def __init__(
        self,
        items: Sequence[pytest.Function],
        lab: Callable[[Path], AbstractContextManager[KubernetesLab]],
        directory: Path,
    ) -> None:
        self._lab, self._directory = lab, directory
        self._next_number = count(len(items))
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="side by side")
        self._results: dict[str, Future[None]] = {
            item.nodeid: self._pool.submit(self._run, item, number) for number, item in enumerate(items)
        }

    def result(self, item: pytest.Function) -> None:
        """Raises what the test has raised. Asked a second time, it runs the test again."""
        first = self._results.pop(item.nodeid, None)
        if first is None:
            self._run(item, next(self._next_number))
        else:
            first.result()

    def wait(self) -> None:
        wait(self._results.values())

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, item: pytest.Function, number: int) -> None:
        values = {name: value for name, value in item.callspec.params.items() if name not in _DRIVERS}
        with self._lab(self._directory / str(number)) as lab:
            item.obj(**values, **{_driver_of(item): Driver(lab)})


def runs_side_by_side(item: pytest.Item) -> bool:
    """Whether it needs nothing but a driver of Kubernetes."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    params = item.callspec.params
    on_kubernetes = any(params.get(name) == "kubernetes" for name in _DRIVERS)
    return on_kubernetes and not runs_alone(item) and set(item._fixtureinfo.argnames) <= params.keys()


def runs_alone(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.originalname in _ALONE


def _driver_of(item: pytest.Function) -> str:
    return next(name for name in _DRIVERS if name in item.callspec.params)
