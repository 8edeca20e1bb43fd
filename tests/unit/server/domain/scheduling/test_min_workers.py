from dataclasses import replace
from datetime import timedelta

from trainyard_protocol.job.training_input import Scheduling, TrainingInput
from trainyard_server.domain.scheduling.scheduler import plan
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, held, only, placed, queued


def elastic(workers: int, least: int, *, retried: bool = True, key: int = 1) -> JobSnapshot:
    """A job with a master and workers of a vCPU each, of which so many are enough for a retry."""
    job = queued(key, 1 + workers, backoff_until=NOW - timedelta(minutes=1) if retried else None)
    return replace(job, training_input=TrainingInput(scheduling=Scheduling(min_workers=least)))


def test_retry_starts_with_as_many_workers_as_have_room() -> None:
    placement = only(plan([elastic(5, 1)], [agent("a", 3), agent("b", 4, gb=32)], NOW))
    assert placement.agent_id == "b"
    assert [given.task for given in placement.assignments] == [
        "master-replica-0",
        *(f"worker-replica-{number}" for number in range(3)),
    ]
    assert placement.scaled == "Starting with 3 of 5 workers, since there is no room for all."
    whole = only(plan([elastic(5, 1)], [agent("b", 4, gb=32), agent("c", 8, gb=32)], NOW))
    assert (whole.agent_id, len(whole.assignments), whole.scaled) == ("c", 6, "")


def test_job_waits_where_it_has_not_run_or_there_is_room_for_too_few() -> None:
    assert placed(plan([elastic(5, 1, retried=False)], [agent("b", 4, gb=32)], NOW)) == []
    assert placed(plan([elastic(5, 0)], [agent("b", 4, gb=32)], NOW)) == []
    waiting = plan([elastic(5, 4)], [agent("b", 4, gb=32)], NOW).waiting[1]
    assert (waiting.kind, waiting.reason.split("; ")[0]) == (
        "never",
        "can never start on the agents here: needs 6 vCPU and 12.0 GB",
    )


def test_room_that_others_have_is_not_waited_for_and_that_of_jobs_ahead_not_taken() -> None:
    busy = agent("b", 6, gb=32, gangs=(held(0, 1),))
    assert len(only(plan([elastic(5, 1)], [busy], NOW)).assignments) == 4
    ahead = queued(2, cpus=6, gb=2, age=60)
    result = plan([replace(elastic(5, 1), priority=-1), ahead], [busy], NOW)
    assert placed(result) == []
