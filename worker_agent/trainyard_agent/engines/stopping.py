"""The stop of everything that runs, without its agent: for --stop-all, and for a lease that has expired."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from trainyard_agent.engines.contract import Engine
from trainyard_agent.host.process_tags import StillAlive
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.runtimes.base import Handle, Runtime
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.states import Reason

_KILL_TIMEOUT_S = 60.0  # for replicas to die of SIGKILL and logs to be complete
_PAUSE_S = 0.05


def stop_runs(
    engines: Sequence[Engine], settings: AgentSettings, grace_of: Callable[[Handle], float], reason: Reason
) -> dict[Engine, int]:
    """Stop the runs of every engine at once, so that each ends within its own grace, and wait for their ends. An engine
    that fails, or whose runs do not end, affects no other: its error is raised when theirs have ended. Returns the
    number of replicas that were alive by engine. Raises StillAlive, and what an engine raises."""
    counts: dict[Engine, int] = {}
    stopped: list[tuple[Runtime, dict[str, float]]] = []
    failure: Exception | None = None
    with ExitStack() as stack:
        for engine in engines:
            try:
                runtime = stack.enter_context(engine.attach(settings))
                handles = runtime.recover()
                reports = [report for handle in handles for report in runtime.observe(handle.run_id)]
                counts[engine] = sum(report.exit is None for report in reports)
                stopped.append((runtime, _stop(runtime, handles, grace_of, reason)))
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        for runtime, deadlines in stopped:
            try:
                _wait_for_ends(runtime, deadlines)
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
    if failure is not None:
        raise failure
    return counts


def _stop(
    runtime: Runtime, handles: Sequence[Handle], grace_of: Callable[[Handle], float], reason: Reason
) -> dict[str, float]:
    """Stop every run. Returns when (monotonic) each must have ended."""
    deadlines = {}
    for handle in handles:
        grace_s = grace_of(handle)
        runtime.stop(handle.run_id, grace_s, reason)
        deadlines[handle.run_id] = deadline_in(grace_s + _KILL_TIMEOUT_S)
    return deadlines


def _wait_for_ends(runtime: Runtime, deadlines: dict[str, float]) -> None:
    def alive() -> list[str]:
        return [run_id for run_id in deadlines if not runtime.has_ended(run_id)]

    if not wait_until(lambda: not alive(), max(deadlines.values(), default=0.0), _PAUSE_S):
        raise StillAlive(f"the replicas of the runs {', '.join(alive())} do not end")
