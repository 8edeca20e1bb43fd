"""Rows about a service that has nothing to do: 100,000 finished jobs, and 50 replicas that sleep."""

import time
from collections.abc import Mapping
from functools import cache, partial

import psutil

from benchmarks.rows import Row, Samples
from benchmarks.service import Service, cpu_s, running

_REPLICAS = 50
_SETTLE_S, _QUIET_S = 8.0, 10.0
_UNITS = {"server": "% of a core", "agent": "% of a core", "memory": "MB"}


@cache
def _measured(quick: bool) -> Mapping[str, Samples]:
    """Samples of all rows: of the busy service, and of one without jobs in the same seconds."""
    samples = {name: Samples([], [], unit) for name, unit in _UNITS.items()}
    with running(jobs=5_000 if quick else 100_000) as busy, running() as empty:
        busy.run("sleeping", "import time; time.sleep(1e6)", _REPLICAS)
        time.sleep(_SETTLE_S)
        for _ in range(1 if quick else 2):
            for name, figures in _quiet_figures([busy, empty]).items():
                samples[name].measured.append(figures[0])
                samples[name].against.append(figures[1])
    return samples


def _quiet_figures(services: list[Service]) -> dict[str, list[float]]:
    """The figures of each service, of the same seconds."""
    processes = [process for service in services for process in (service.server, service.agent)]
    before = [cpu_s(process) for process in processes]
    time.sleep(_QUIET_S)
    used = [
        100 * max(cpu_s(process) - start, 0.01) / _QUIET_S for process, start in zip(processes, before, strict=True)
    ]
    memory = [_megabytes(service.server) + _megabytes(service.agent) for service in services]
    return {"server": used[::2], "agent": used[1::2], "memory": memory}


def _megabytes(process: psutil.Process) -> float:
    """The memory of a process; pages that it shares are divided by the number of those that share them."""
    return float(process.memory_full_info().pss) / 10**6


def _figures(name: str, quick: bool) -> Samples:
    return _measured(quick)[name]


_EMPTY = "the same without jobs"

ROWS = (
    Row(
        "idle-server",
        "an idle server, 100,000 finished jobs, 50 sleeping replicas: CPU",
        _EMPTY,
        1.0,
        partial(_figures, "server"),
        bound=(
            "the rounds of the scheduler, the syncs of the agent, and the web server's own clock of ten "
            "a second. Tried: rounds and syncs read only what has changed"
        ),
        is_figure=True,
        in_quick=False,
    ),
    Row(
        "idle-agent",
        "an idle agent, 50 sleeping replicas: CPU",
        _EMPTY,
        1.0,
        partial(_figures, "agent"),
        bound=(
            "looks at each replica once a second, at its log five times (to send it, and for stalls), at its use of "
            "CPU every five seconds, 40, 15 and 270 microseconds each. Tried: ends wake the agent, so that loops with "
            "nothing to do turn more slowly, and a look reads nothing that has not changed"
        ),
        is_figure=True,
        in_quick=False,
    ),
    Row(
        "idle-memory",
        "memory of both together",
        _EMPTY,
        200,
        partial(_figures, "memory"),
        is_figure=True,
        in_quick=False,
    ),
)
