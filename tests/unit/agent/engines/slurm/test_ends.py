"""Ends of jobs of Slurm and refusals, from Slurm's words to the contract's reasons."""

from datetime import UTC, datetime

import pytest

from trainyard_agent.engines.slurm import spec
from trainyard_agent.engines.slurm.commands import parse_jobs
from trainyard_agent.engines.slurm.run_files import SlurmJobEnd
from trainyard_protocol.states import Reason

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_job_that_sbatch_does_not_take_is_refused_or_given_back_by_slurms_words() -> None:
    words = {
        "sbatch: invalid partition specified: nowhere; Batch job submission failed: Invalid partition name specified": (
            Reason.REFUSED
        ),
        "sbatch: Batch job submission failed: Invalid account or account/partition combination specified": (
            Reason.REFUSED
        ),
        "sbatch: Batch job submission failed: User's group not permitted to use this partition": Reason.REFUSED,
        "sbatch: Batch job submission failed: Access/permission denied": Reason.REFUSED,
        "sbatch: Memory specification can not be satisfied; Batch job submission failed: Requested node "
        "configuration is not available": Reason.REFUSED,
        "sbatch: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)": (
            Reason.REFUSED
        ),
        "sbatch: Batch job submission failed: Unable to contact slurm controller (connect failure)": (
            Reason.GIVEN_BACK
        ),
        "sbatch: Batch job submission failed: Socket timed out on send/recv operation": Reason.GIVEN_BACK,
        "sbatch did not answer within 60 s": Reason.GIVEN_BACK,
        "sbatch: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
        "and/or time limits)": Reason.GIVEN_BACK,
        "sbatch: Batch job submission failed: Required partition not available (inactive or drain)": (
            Reason.GIVEN_BACK
        ),
        "sbatch: Please name a project; Batch job submission failed: Unspecified error": Reason.HOST_FAILED,
    }
    wrong = {line: spec.refusal(line) for line, reason in words.items() if spec.refusal(line) is not reason}
    assert not wrong


def test_job_that_ended_of_a_signal_before_its_end_by_slurm_is_told_as_if_slurm_had_ended_it() -> None:
    """The signal before a time limit comes up to a minute earlier than asked for."""
    cases = {
        ("0:32", 30, False): "TIMEOUT",
        ("1:30", 30, False): "TIMEOUT",
        ("1:31", 30, False): "",
        ("INVALID", 5, False): "TIMEOUT",
        ("1-00:00:10", 30, False): "",
        ("1:00:10", 30, False): "",
        ("1-00:00:10", 90_000, False): "TIMEOUT",
        ("UNLIMITED", 30, False): "",
        ("NOT_SET", 30, False): "",
        ("0:10", 30, True): "PREEMPTED",
        ("UNLIMITED", 30, True): "PREEMPTED",
    }
    wrong = {case: spec.state_of_end(*case) for case, state in cases.items() if spec.state_of_end(*case) != state}
    assert not wrong


def test_end_by_slurm_says_where_and_what_can_be_done() -> None:
    ended = SlurmJobEnd(time=NOW, state="", nodes="n[1-3]", partition="short", limit="1:00:00")
    limit = "Slurm ended its job at the time limit of 1:00:00 in the partition short. For a longer one, start the agent"
    cases: dict[tuple[str, tuple[str, ...]], tuple[Reason, str]] = {
        ("NODE_FAIL", ("n2",)): (
            Reason.HOST_LOST,
            "Node n2 of its job stopped answering, and Slurm ended the job (job 7",
        ),
        ("NODE_FAIL", ("n1", "n2")): (Reason.HOST_LOST, "One of the nodes n1 and n2 of its job stopped"),
        ("NODE_FAIL", ()): (Reason.HOST_LOST, "One of the nodes n[1-3] of its job stopped answering"),
        ("BOOT_FAIL", ()): (Reason.HOST_LOST, "One of the nodes n[1-3] of its job did not boot (job 7, BOOT_FAIL)."),
        ("TIMEOUT", ()): (Reason.TIME_LIMIT, limit),
        ("PartitionTimeLimit", ()): (
            Reason.REFUSED,
            "Slurm would never start its job: its time limit is longer than its partition allows (job 7, Partition",
        ),
        ("COMPLETED", ()): (Reason.VANISHED, "It was gone when its job in Slurm ended (job 7, COMPLETED)."),
    }
    wrong = {}
    for (state, lost), (reason, message) in cases.items():
        seen = spec.end(ended.model_copy(update={"state": state, "lost_nodes": list(lost)}), "7")
        if seen[0] is not reason or not seen[1].startswith(message):
            wrong[state, lost] = seen
    unknown = SlurmJobEnd(time=NOW, state="NODE_FAIL")
    assert spec.end(unknown, "7")[1].startswith("A node of its job stopped answering")
    assert not wrong


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("PENDING None", "PENDING Resources"), "PENDING Resources"),
        (("NODE_FAIL NodeDown", "COMPLETING None"), "COMPLETING None"),
        (("COMPLETED None", "OUT_OF_MEMORY OutOfMemory"), "OUT_OF_MEMORY OutOfMemory"),
        (("CANCELLED None", "NODE_FAIL NodeDown"), "NODE_FAIL NodeDown"),
    ],
)
def test_state_of_a_job_is_that_of_the_part_that_tells_most(states: tuple[str, ...], expected: str) -> None:
    rows = [
        f"7+{part}|{state.split()[0]}|n|ty-r|main|1:00|0:30|{state.split()[1]}" for part, state in enumerate(states)
    ]
    (job,) = parse_jobs("\n".join(rows))
    assert (job.id, f"{job.state} {job.reason}") == ("7", expected)
