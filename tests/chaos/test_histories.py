"""Random histories of the real service, and what must be true after each.

pytest tests/chaos                                  a few of each combination, always the same
pytest tests/chaos --chaos-seed 7                   that one again (or CHAOS_SEED=7)
pytest tests/chaos --chaos-histories 200 --chaos-runtime process --chaos-database sqlite
make chaos                                          many of everything
"""

from collections.abc import Callable

import pytest

from chaos import plan
from chaos.history import History, Place
from chaos.invariants import check
from chaos.service.artifacts import keep_on_failure

pytestmark = pytest.mark.e2e

MOST_SERVERS = {"sqlite": 1, "postgresql": 2}


def test_history_keeps_every_invariant(
    combination: tuple[plan.Runtime, str, int], place: Place, record_property: Callable[[str, object], None]
) -> None:
    runtime, database, seed = combination
    record_property("combination", f"{runtime} {database}")
    record_property("history", seed)
    drawn = plan.draw(seed, runtime, most_servers=MOST_SERVERS[database])
    with keep_on_failure(drawn, f"{runtime}-{database}-{seed}") as root:
        outcome = History(drawn, place, root).play()
        print(f"faults {outcome.faults}; harmed {outcome.harmed}")
        record_property("effects", outcome.effects)
        check(outcome)
