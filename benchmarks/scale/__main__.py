"""Measure how the server's work grows, and simulate a day of a large installation: `python -m benchmarks.scale`."""

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.scale.fit import Series
from benchmarks.scale.limits import Limit, limits
from benchmarks.scale.measures import measured_costs, sizes_of
from benchmarks.scale.scenarios import Scenario, percentile, shares, simulated, table
from benchmarks.scale.simulation import Result
from benchmarks.scale.sizes import measured_sizes

_ROOT = Path(__file__).parent.parent.parent
_RESULTS = _ROOT / "benchmarks" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute or two; writes into build/")
    parser.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="simulate with the measurements in this JSON, and measure nothing",
    )
    options = parser.parse_args()
    if options.costs is not None:
        known = json.loads(options.costs.read_text(encoding="utf-8"))
        series = [
            Series(**{**one, "sizes": tuple(one["sizes"]), "values": tuple(one["values"])})
            for one in known["series"]
        ]
        commit_ms, machine = known["commit_ms"], known["machine"]
    else:
        load = os.getloadavg()[0]
        series = [*measured_costs(options.quick, _log), *measured_sizes(options.quick, _log)]
        commit_ms, machine = _commit_ms(), {**report.machine(), "load before": f"{load:.1f}"}
    directory = _ROOT / "build" if options.quick else _RESULTS
    directory.mkdir(exist_ok=True)
    data = {"machine": machine, "commit_ms": commit_ms, "series": [asdict(one) for one in series]}
    _write(directory / "scale.json", data)
    results = simulated(series, commit_ms, options.quick, _log)
    _write(directory / "scale.json", {**data, "simulations": [_summary(*one) for one in results]})
    text = "\n".join(_page(series, commit_ms, machine, limits(series, commit_ms), results))
    (directory / "scale.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"Written: {directory.relative_to(_ROOT)}/scale.md and scale.json")


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _log(message: str) -> None:
    print(message, flush=True)


def _commit_ms(times: int = 300) -> float:
    """Milliseconds until the disk has a bare row: the median."""
    taken = []
    with tempfile.TemporaryDirectory() as name:
        connection = sqlite3.connect(Path(name) / "bare.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE bare (number INTEGER)")
        for number in range(times):
            began = time.perf_counter()
            connection.execute("INSERT INTO bare VALUES (?)", (number,))
            taken.append((time.perf_counter() - began) * 1000)
        connection.close()
    return statistics.median(taken)


def _page(
    series: Sequence[Series],
    commit_ms: float,
    machine: dict[str, str],
    found: Sequence[Limit],
    results: Sequence[tuple[Scenario, Result]],
) -> list[str]:
    of_jobs = [f"| {one.part} | {one.arithmetic} | {one.number:,.0f} {one.unit} |" for one in found]
    return [
        "# Scale",
        "",
        "Written by `python -m benchmarks.scale`; docs/scale.md says what follows from it. ms are CPU time, steps",
        "are instructions of SQLite's virtual machine (they grow with the rows that a statement looks at), writes",
        "are write transactions and `held ms` the CPU time inside of them. The residual is the largest ratio",
        "between a value and the power law through all of them; the last decade is the exponent between the two",
        "largest sizes.",
        "",
        *sizes_of(list(series)),
        "",
        f"A bare durable commit takes {commit_ms:.2f} ms (wall time): {1000 / commit_ms:,.0f} a second at most.",
        "",
        "## Limits of one server process, each part alone",
        "",
        "| what is used up | arithmetic | at |",
        "|---|---|---|",
        *of_jobs,
        "",
        "## Simulations",
        "",
        "In the hour of most jobs; seed 1. More than 100 % is work that is not done in time.",
        "",
        *table(results),
        "",
        "Parts of one core:",
        "",
        *shares(results),
        "",
        f"{'; '.join(f'{name} {value}' for name, value in machine.items())}.",
        "",
    ]


def _summary(scenario: Scenario, result: Result) -> dict[str, Any]:
    numbers = {
        name: value
        for name, value in asdict(result).items()
        if name not in ("waits", "ticks", "answers", "busy_s")
    }
    times = {
        f"{name}_s": {part: percentile(getattr(result, name), part / 100) for part in (50, 90, 95, 99, 100)}
        for name in ("waits", "ticks", "answers")
    }
    return {"name": scenario.name, **numbers, "busy_s": dict(result.busy_s), **times}


if __name__ == "__main__":
    main()
