"""`python -m benchmarks.training [--quick] [--only MEASUREMENT] [--model MODEL] [--json FILE]`, from the repository."""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

# The trainer is a separate package that is not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "trainer_template"))

from benchmarks.training import against_handwritten, pictures, pmap, saving, scaling, start
from benchmarks.training.cases import FULL, QUICK
from benchmarks.training.results import log_progress, machine, machine_markdown

MEASUREMENTS = {
    "handwritten": against_handwritten.measure,
    "scaling": scaling.measure,
    "pmap": pmap.measure,
    "start": start.measure,
    "pictures": pictures.measure,
    "saving": saving.measure,
}
# Start-up time is dominated by imports and initialization, which are the same for all models.
START_MODELS = ("cnn",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small cases that only check the programs")
    parser.add_argument("--only", choices=tuple(MEASUREMENTS), action="append", help="repeatable")
    parser.add_argument(
        "--model", choices=("cnn", "resnet50", "transformer"), action="append", help="repeatable"
    )
    parser.add_argument("--rounds", type=int, help="rounds of all measurements (default: 5, quick: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    arguments = parser.parse_args()
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        parser.error("this requires Linux and two cores")

    facts = machine()
    print(machine_markdown(facts))
    measured = {}
    cases = [
        case for case in (QUICK if arguments.quick else FULL) if case.model in (arguments.model or case.model)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only or MEASUREMENTS:
            selected = (
                [case for case in cases if case.model in START_MODELS][:1] if name == "start" else cases
            )
            rounds = arguments.rounds or (1 if arguments.quick else 5)
            table = MEASUREMENTS[name](selected, rounds, Path(folder))
            print(table.markdown(), flush=True)
            measured[name] = dataclasses.asdict(table)
            log_progress(f"{name} is done")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": facts, "measured": measured}, indent=2) + "\n")


if __name__ == "__main__":
    main()
