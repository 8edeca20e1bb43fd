"""Print the table of docs/how-to/tuning.md, the regret of simulated studies: `python -m benchmarks.tuning`."""

import argparse
import os
import statistics
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from benchmarks.tuning.functions import FUNCTIONS
from benchmarks.tuning.simulation import STEPS, TRIALS, StudyResult, simulated

_ASHA: Mapping[str, Any] = {"earlyStopping": {"rule": "ASHA"}}
_STUDIES: Mapping[str, Mapping[str, Any]] = {
    "random search": {"algorithm": "RANDOM_SEARCH"},
    "with ASHA": {"algorithm": "RANDOM_SEARCH", **_ASHA},
    "default": {},
    "four at a time": {"parallel": 4},
    "default with ASHA": _ASHA,
    "four at a time, with ASHA": {"parallel": 4, **_ASHA},
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=60, help="studies of each kind (default: 60)")
    seeds = parser.parse_args().seeds
    kinds = [(place, name) for place in range(len(FUNCTIONS)) for name in _STUDIES]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        results = list(workers.map(partial(_studies, seeds=seeds), kinds))
    names = [cell for name in _STUDIES for cell in (name, "its steps")]
    print(f"| function | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for place, function in enumerate(FUNCTIONS):
        cells = [cell for row in results[place * len(_STUDIES) :][: len(_STUDIES)] for cell in _cells(row)]
        print(f"| {function.name} | {' | '.join(cells)} |")


def _studies(kind: tuple[int, str], seeds: int) -> list[StudyResult]:
    place, name = kind
    return [simulated(FUNCTIONS[place], seed, **_STUDIES[name]) for seed in range(seeds)]


def _cells(of_kind: list[StudyResult]) -> tuple[str, str]:
    """The medians of the regret and of the part of all steps."""
    steps = statistics.median(result.steps for result in of_kind) / (TRIALS * STEPS)
    return f"{statistics.median(result.regret for result in of_kind):.3f}", f"{steps:.0%}"


if __name__ == "__main__":
    main()
