"""Measure the regret of studies by algorithm, trials at a time and early stopping: `python -m benchmarks.tuning`."""

import argparse
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tuning.functions import FUNCTIONS
from benchmarks.tuning.simulation import STEPS, TRIALS, StudyResult, simulated

_ROOT = Path(__file__).parent.parent.parent
_SEEDS, _QUICK = 60, 6
_RANDOM, _ONE, _FOUR = "random search", "default, one at a time", "default, four at a time"
_ASHA: Mapping[str, Any] = {"earlyStopping": {"rule": "ASHA"}}
_STUDIES: Mapping[str, Mapping[str, Any]] = {
    _RANDOM: {"algorithm": "RANDOM_SEARCH"},
    f"{_RANDOM}, ASHA": {"algorithm": "RANDOM_SEARCH", **_ASHA},
    _ONE: {},
    f"{_ONE}, median rule": {"earlyStopping": {"rule": "MEDIAN"}},
    f"{_ONE}, ASHA": _ASHA,
    _FOUR: {"parallel": 4},
    f"{_FOUR}, ASHA": {"parallel": 4, **_ASHA},
}
_INTRODUCTION = f"""\
# Regret of studies

Written by `python -m benchmarks.tuning`. Each study has {TRIALS} trials of {STEPS} steps, with the server's own
decisions and suggestions over simulated trials; the same seeds give the same table. The regret is the distance of the
best trial's true value from the function's minimum: the median over the seeds, with the quartiles. Steps are those
that all trials trained, the median over the seeds, of what they train without early stopping. Kept: the part of the
default's advantage over random search, one trial at a time, that is left, by the medians.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="with few seeds; writes into build/")
    parser.add_argument(
        "--seeds", type=int, default=0, help=f"studies of each kind (default: {_SEEDS}, quick: {_QUICK})"
    )
    options = parser.parse_args()
    seeds = range(options.seeds or (_QUICK if options.quick else _SEEDS))
    if len(seeds) < 2:
        parser.error("--seeds: quartiles need 2 or more")
    kinds = [(place, name) for place in range(len(FUNCTIONS)) for name in _STUDIES]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        results = dict(zip(kinds, workers.map(partial(_studies, seeds=seeds), kinds), strict=True))
    text = "\n".join([_INTRODUCTION, f"{len(seeds)} seeds.\n", *_table(results), ""])
    folder = _ROOT / ("build" if options.quick else "benchmarks/results")
    folder.mkdir(exist_ok=True)
    (folder / "tuning.md").write_text(text, encoding="utf-8")
    lines = [
        json.dumps({"function": FUNCTIONS[place].name, "study": name, **_figures(of_kind)})
        for (place, name), of_kind in results.items()
    ]
    (folder / "tuning.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    print(text)


def _studies(kind: tuple[int, str], seeds: Sequence[int]) -> list[StudyResult]:
    place, name = kind
    return [simulated(FUNCTIONS[place], seed, **_STUDIES[name]) for seed in seeds]


def _figures(of_kind: Sequence[StudyResult]) -> dict[str, list[float]]:
    """The regret and the steps of each seed."""
    return {"regret": [round(result.regret, 6) for result in of_kind], "steps": [result.steps for result in of_kind]}


def _table(results: Mapping[tuple[int, str], Sequence[StudyResult]]) -> list[str]:
    lines = ["| function | study | regret | quartiles | kept | steps |", "|---|---|---|---|---|---|"]
    for (place, name), of_kind in results.items():
        low, middle, high = statistics.quantiles([result.regret for result in of_kind], n=4)
        random, one = (statistics.median(result.regret for result in results[place, of]) for of in (_RANDOM, _ONE))
        kept = "" if name.startswith(_RANDOM) else f"{(random - middle) / (random - one):.2f}" if random > one else "-"
        steps = statistics.median(result.steps for result in of_kind) / (TRIALS * STEPS)
        title = FUNCTIONS[place].name
        lines.append(f"| {title} | {name} | {middle:.3f} | {low:.3f} to {high:.3f} | {kept} | {steps:.2f} |")
    return lines


if __name__ == "__main__":
    main()
