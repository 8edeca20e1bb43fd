"""Report of a run of the benchmarks: `results/performance.md` with all rows, its JSON, and the table of
`docs/explanation/performance.md`."""

import json
import os
import platform
import re
import sqlite3
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rows import Row, Samples

Results = Sequence[tuple[Row, Samples]]
LeftOutRows = Sequence[tuple[Row, str]]
"""Rows that could not run, each with the reason, a sentence."""

_LIBRARIES = ("fastapi", "sqlalchemy", "pydantic", "httpx", "uvicorn")
VARIANTS = frozenset(
    {
        "end-command",
        "launch-package-edited",
        "launch-package-seen",
        "launch-sdist",
        "list-postgresql",
        "list-rare-label",
        "list-state",
        "list-unfinished",
        "logs-download",
        "logs-in-random",
        "logs-in-rate-64",
        "round-first",
        "round-unchanged-postgresql",
        "submits",
        "submits-1000",
        "submits-10000",
        "submits-long-queue",
        "submits-postgresql",
        "submits-postgresql-10000",
        "suggestion-200",
        "table-filter",
        "table-sorted",
        "template-16",
        "template-256",
        "template-saves",
        "template-saves-96",
        "template-second-start",
        "template-two",
        "template-two-ceiling",
        "train-16",
        "train-256",
        "train-memory-fsdp-4",
        "train-memory-fsdp-8",
        "train-saves-96",
        "train-two-ceiling",
    }
)
"""Names of rows that say little beside others: they are in the file of all rows alone."""

_TABLE = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""Place of the table in the page."""

_INTRODUCTION = """\
# Performance: all rows

Written by `make bench` (benchmarks/README.md). Each row starts both sides itself,
and takes them by turns. The figure is the median of the rounds' ratios, of their differences (+), or,
where it has a unit, of what was measured. The spread leaves out a tenth of the rounds at both ends.
Compare ratios alone: the medians belong to this machine. Both sides run once before, uncounted: bytecode is
written (PYTHONDONTWRITEBYTECODE is unset) and files are in the page cache, as for whoever works all day.
"""
_QUICK = """\
This is the quick form: fewer rounds, 20,000 jobs in place of 100,000, and 100,000 lines of a log in place of
1,000,000.
"""


def machine() -> dict[str, str]:
    """The machine and the versions, without names of hosts and people."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.machine()
    return {
        "CPU": f"{cpu}, {os.cpu_count()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        **{name: version(name) for name in _LIBRARIES},
    }


def is_busy() -> bool:
    """Whether others use so much of the machine that figures would mean little."""
    return os.getloadavg()[0] > (os.cpu_count() or 1) / 2


def figures(row: Row, samples: Samples) -> tuple[str, str, str]:
    """The figure, its spread and the reach, as text."""
    low, high = samples.spread
    reach = f"{'at least' if row.is_rate else 'at most'} {row.reach:g}"
    if row.is_figure:
        value = f"{figure(statistics.median(samples.measured))} {samples.unit}"
        spread = f"{figure(min(samples.measured))} to {figure(max(samples.measured))}"
    else:
        value, spread = samples.text(samples.figure), f"{samples.text(low)} to {samples.text(high)}"
    return value, spread, f"{reach} {samples.unit}" if samples.is_difference or row.is_figure else reach


def table(results: Results) -> list[str]:
    lines = ["| what | against | figure | spread | reach | medians | bounded by |", "|---|---|---|---|---|---|---|"]
    for row, samples in results:
        value, spread, reach = figures(row, samples)
        medians = " : ".join(figure(statistics.median(one)) for one in (samples.measured, samples.against))
        lines.append(
            f"| {row.what} | {row.against} | {value} | {spread} | "
            f"{reach}{'' if row.is_reached(samples) else ': **missed**'} | {medians} {samples.unit} | {row.bound} |"
        )
    return lines


def summary(results: Results) -> str:
    """The table of the page, without variants: what is measured, the figure, and the goal."""
    chosen = [(row, samples) for row, samples in results if row.name not in VARIANTS]
    lines = ["| what | against | figure | goal |", "|---|---|---|---|"]
    for row, samples in chosen:
        value, _, goal = figures(row, samples)
        lines.append(
            f"| {row.what} | {row.against} | {value} | {goal}{'' if row.is_reached(samples) else ': **missed**'} |"
        )
    facts = machine()
    end = (
        f"Of these rows {_count(chosen)}; of all {len(results)}, {_count(results)}. "
        "`benchmarks/results/performance.md` has all, with spread, medians, and what bounds each.",
        f"Machine: {facts['CPU']}, {facts['memory']}, {facts['system']}, Python {facts['Python']}.",
    )
    return "\n".join([*lines, "", *end, ""])


def _count(results: Results) -> str:
    missed = sum(not row.is_reached(samples) for row, samples in results)
    return f"{len(results) - missed} reach their goal and {missed} miss it"


def publish(results: Results, page: Path) -> None:
    """Put the summary into the page, in place of that of the run before."""
    text = page.read_text(encoding="utf-8")
    page.write_text(_TABLE.sub(lambda _: summary(results), text, count=1), encoding="utf-8")


def page(results: Results, quick: bool = False, left_out: LeftOutRows = ()) -> str:
    """The text of the file of all rows."""
    lines = [_INTRODUCTION, *([_QUICK] if quick else []), *table(results), ""]
    if left_out:
        lines += [*(f"- Left out: {row.what}. {reason}" for row, reason in left_out), ""]
    facts = (f"| {name} | {value} |" for name, value in machine().items())
    return "\n".join([*lines, "| machine | |", "|---|---|", *facts, ""])


def write(results: Results, text: Path, data: Path, quick: bool = False, left_out: LeftOutRows = ()) -> None:
    for path in (text, data):
        path.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(page(results, quick, left_out), encoding="utf-8")
    data.write_text(json.dumps(as_json(results), indent=1) + "\n", encoding="utf-8")


def read(data: Path) -> dict[str, Samples]:
    """The samples that `write` has stored, by the name of their row."""
    stored = json.loads(data.read_text(encoding="utf-8"))["rows"]
    return {name: Samples(**{key: row[key] for key in Samples.__annotations__}) for name, row in stored.items()}


def as_json(results: Results) -> dict[str, Any]:
    rows = {
        row.name: {
            "what": row.what,
            "beside": row.against,
            "reach": row.reach,
            "figure": samples.figure,
            "spread": samples.spread,
            "reached": row.is_reached(samples),
            **asdict(samples),
        }
        for row, samples in results
    }
    return {"machine": machine(), "rows": rows}


def figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
