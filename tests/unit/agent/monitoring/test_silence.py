"""A run that prints nothing and uses no CPU."""

from collections.abc import Mapping

from trainyard_agent.monitoring.silence import RunSilence
from trainyard_agent.runtimes.use import ReplicaUse

LIMIT = 100.0


class Program:
    """A run of one replica, polled every 10 s."""

    def __init__(self) -> None:
        self.silence = RunSilence()
        self.lines = 0
        self.cpu_s = 0.0
        self.cores: float | None = None
        self.measured = True

    def passes(self, seconds: int, cpu: float = 0.0) -> bool:
        for _ in range(0, seconds, 10):
            self.cpu_s += 10 * cpu
            self.silence.add(self.lines, 10, LIMIT, self._use)
        return self.silence.is_silent

    def _use(self) -> Mapping[str, ReplicaUse] | None:
        return {"master-replica-0": ReplicaUse(self.cpu_s, 0, self.cores)} if self.measured else None


def test_run_is_silent_after_the_limit_and_until_it_prints_or_computes() -> None:
    program = Program()
    assert not program.passes(100)
    assert program.passes(10)
    assert program.silence.idle_s == LIMIT
    assert program.passes(500)
    program.lines += 1
    assert not program.passes(10)
    assert program.passes(110)
    assert not program.passes(60, cpu=0.5)


def test_run_that_computes_or_cannot_be_measured_is_not_silent() -> None:
    program = Program()
    assert not program.passes(1000, cpu=0.1)
    program.cores = 0.5  # by its engine
    assert not program.passes(1000)
    program.measured = False
    assert not program.passes(1000)


def test_threads_that_poll_are_no_computation_and_one_long_pause_of_the_agent_is_no_silence() -> None:
    program = Program()
    assert program.passes(120, cpu=0.02)
    program = Program()
    program.silence.add(0, 0, LIMIT, program._use)
    program.silence.add(0, 10_000, LIMIT, program._use)
    assert program.silence.idle_s == LIMIT / 4


def test_lines_that_somebody_else_made_it_print_do_not_end_silence() -> None:
    program = Program()
    program.passes(110)
    program.lines = 20
    program.silence.expect(20)
    assert program.passes(10)
