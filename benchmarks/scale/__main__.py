"""Measure how the server's work grows, and simulate large installations: `python -m benchmarks.scale`."""

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.control_plane.submits import bare_sqlite
from benchmarks.scale.costs import costs
from benchmarks.scale.measures import measured_costs
from benchmarks.scale.series import Series
from benchmarks.scale.simulation import Result, Simulation
from benchmarks.scale.workload import JOBS_PER_AGENT, Load

_ROOT = Path(__file__).parent.parent.parent
_QUICK = ((10, 1200), (100, 300), (1000, 20))
_ALL = ((10, 3600), (100, 1800), (1000, 120), (1500, 90), (3000, 90), (10_000, 90))
"""Agents, and simulated seconds."""

_INTRODUCTION = """\
# Scale

Written by `python -m benchmarks.scale`; docs/explanation/performance.md says what follows. ms are CPU time, writes
are write transactions and `held ms` the CPU time inside of them.
"""
_SIMULATIONS = """
## Simulations

In the hour of most jobs; seed 1. More than 100 % is work that is not done in time.
"""

_log = partial(print, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute or two; writes into build/")
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", help="simulate with the measurements in this JSON, and measure nothing"
    )
    options = parser.parse_args()
    directory = _ROOT / ("build" if options.quick else "benchmarks/results")
    directory.mkdir(exist_ok=True)
    if options.costs is not None:
        data: dict[str, Any] = json.loads(options.costs.read_text(encoding="utf-8"))
    else:
        machine = {**report.machine(), "load before": f"{os.getloadavg()[0]:.1f}"}
        measured = [asdict(series) for series in measured_costs(options.quick, _log)]
        data = {"machine": machine, "commit_ms": _commit_ms(), "series": measured}
    (directory / "scale.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    series = [Series(**{**one, "sizes": tuple(one["sizes"]), "values": tuple(one["values"])}) for one in data["series"]]
    results = simulated(series, data["commit_ms"], _QUICK if options.quick else _ALL)
    text = "\n".join(_page(series, data["commit_ms"], data["machine"], results))
    (directory / "scale.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"Written: {directory.relative_to(_ROOT)}/scale.md and scale.json")


def simulated(series: Sequence[Series], commit_ms: float, sizes: Iterable[tuple[int, float]]) -> list[Result]:
    """The same results each time, for the same costs."""
    results = []
    for agents, seconds in sizes:
        began = time.monotonic()
        result = Simulation(Load(agents), costs(series, agents, commit_ms)).run(seconds)
        if result.arrived != result.ended + result.queued + result.running:
            raise RuntimeError(f"Jobs were lost with {agents} agents: {result}")
        results.append(result)
        _log(f"{agents} agents: {time.monotonic() - began:.0f} s")
    return results


def _commit_ms() -> float:
    """Milliseconds until the disk has a bare row: the median."""
    with ExitStack() as stack:
        submit = bare_sqlite(stack)
        times = [time.perf_counter()]
        for _ in range(300):
            submit(0)
            times.append(time.perf_counter())
        return statistics.median(after - before for before, after in pairwise(times)) * 1000


def _page(
    series: Sequence[Series], commit_ms: float, machine: Mapping[str, str], results: Sequence[Result]
) -> Iterator[str]:
    yield _INTRODUCTION
    yield "| what | axis | unit | values, 10 x apart |"
    yield "|---|---|---|---|"
    for one in series:
        values = ", ".join(map(report.figure, one.values))
        yield f"| {one.what} | {one.axis}, from {one.sizes[0]:,} | {one.unit} | {values} |"
    yield ""
    yield f"A bare durable commit takes {commit_ms:.2f} ms (wall time): {1000 / commit_ms:,.0f} a second at most."
    yield _SIMULATIONS
    yield (
        "| agents | jobs a day | asked of a core | of the lock of writers | an answer: p50, p99 "
        "| submission to start: p50, p99 | agents that count as silent |"
    )
    yield "|---|---|---|---|---|---|---|"
    yield from map(_outcome, results)
    yield ""
    yield f"{'; '.join(f'{name} {value}' for name, value in machine.items())}.\n"


def _outcome(result: Result) -> str:
    server, seconds = result.server, result.seconds
    return (
        f"| {result.agents:,} | {result.agents * JOBS_PER_AGENT:,} | {server.core_s / seconds:.0%} "
        f"| {server.lock_s / seconds:.0%} | {_times(result.answers)} | {_times(result.waits)} | {result.silenced:,} |"
    )


def _times(values: Sequence[float]) -> str:
    """The values below which a half and 99 % of all are."""
    ordered = sorted(values) or [0.0]
    return ", ".join(_seconds(ordered[round(part * (len(ordered) - 1))]) for part in (0.5, 0.99))


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


if __name__ == "__main__":
    main()
