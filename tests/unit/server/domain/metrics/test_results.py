"""Results of a job: the last and the best value of a metric."""

import math

from trainyard_server.domain.metrics.results import result
from trainyard_server.domain.metrics.series import Curve, Points
from trainyard_server.domain.metrics.sources import MetricSource


def points(*given: tuple[int, float]) -> Points:
    curve = Curve()
    for step, value in given:
        curve.add(step, value, float(step))
    return curve.points()


def test_result_has_the_last_and_the_best_point_of_all_runs() -> None:
    runs = [(1, points((1, 5.0), (2, 0.1), (3, 0.01))), (2, points((2, 2.0), (4, math.nan), (5, 3.0)))]
    found = result("loss", "master-replica-0", runs)
    assert found is not None
    assert list(found.points.steps) == [1, 2, 4, 5]  # step 3 of the first run was lost
    assert (found.last, found.best, found.run) == ((5, 3.0), (2, 2.0), 2)
    assert found.summary(MetricSource.LOGGED) == (5, 3.0, 2.0, 5.0, MetricSource.LOGGED, 5000, 2)


def test_result_without_a_direction_or_a_finite_value_has_no_best() -> None:
    rate = result("rate", "master-replica-0", [(1, points((1, 1.0)))])
    lost = result("loss", "master-replica-0", [(1, points((1, math.inf)))])
    assert rate is not None
    assert lost is not None
    assert (rate.best, lost.best, lost.last) == (None, None, (1, math.inf))
    assert result("loss", "master-replica-0", []) is None
