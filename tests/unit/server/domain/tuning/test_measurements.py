"""Which measurement of a trial counts."""

import pytest

from trainyard_server.domain.tuning.measurements import Measurement, Report, best

REPORTS: list[Report] = [(1, 0.5), (2, None), (3, 0.9), (4, 0.9), (5, 0.1)]


@pytest.mark.parametrize(
    ("reports", "earlier", "highest", "lowest"),
    [
        (REPORTS, None, (3, 0.9), (5, 0.1)),
        (REPORTS, (7, 2.0), (7, 2.0), (5, 0.1)),  # its report was dropped
        (REPORTS, (5, 2.0), (3, 0.9), (5, 0.1)),  # its step was trained again
        ([(2, None)], None, None, None),
    ],
)
def test_best_is_the_first_of_the_best_values(
    reports: list[Report], earlier: Measurement | None, highest: Measurement | None, lowest: Measurement | None
) -> None:
    assert best(reports, earlier, maximize=True) == highest
    assert best(reports, earlier, maximize=False) == lowest
