"""Standings of jobs among those that ran the same program."""

from integration.api.api_support import Server
from integration.api.jobs.test_values import trained  # noqa: F401 - a fixture
from trainyard_server.capabilities.experiments.standings import Standings


def test_a_job_stands_among_those_with_its_program(trained: Server) -> None:  # noqa: F811
    standings = trained.use_cases.of(Standings)
    second = standings.result("p", "a").standing
    assert second is not None
    assert (second.metric, second.rank, second.of, second.best_job) == ("loss", 2, 3, "b")
    assert [tuple(one) for one in second.differing] == [("learning_rate", "0.1", "1e-2")]
    best = standings.result("p", "b").standing
    assert best is not None
    assert (best.rank, best.best_job, best.differing) == (1, "b", ())
    assert standings.result("p", "text").standing is None
