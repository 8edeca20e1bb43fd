"""Random histories of the real service, and what must be true after each.

pytest tests/chaos                                          a few of each combination, from a random seed
pytest tests/chaos --chaos-seed 7                           that one again (or CHAOS_SEED=7)
pytest tests/chaos --chaos-histories 200 --chaos-runtime process --chaos-database sqlite
make chaos                                                  many of everything
"""

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from chaos import plan
from chaos.history import History, Place
from chaos.invariants import check

pytestmark = pytest.mark.e2e


def test_history_keeps_every_invariant(
    combination: tuple[plan.Runtime, str, int],
    place: Place,
    chaos_table: list[tuple[str, int, bool, float]],
) -> None:
    runtime, database, seed = combination
    drawn = plan.draw(seed, runtime)
    root = Path(tempfile.mkdtemp(prefix=f"chaos-{runtime}-{database}-{seed}-", dir="/tmp"))
    print(f"{drawn}\nkept where it fails: {root}", flush=True)
    (root / "plan.txt").write_text(f"{drawn}\n")
    started, kept = time.monotonic(), False
    try:
        check(History(drawn, place, root).play())
        kept = True
        shutil.rmtree(root)
    finally:
        chaos_table.append((f"{runtime} {database}", seed, kept, time.monotonic() - started))
