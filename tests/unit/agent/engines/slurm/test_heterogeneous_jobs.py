"""Jobs of Slurm whose parts have different machines: their arguments, and their rows in squeue."""

import pytest

from trainyard_agent.engines.slurm import spec
from trainyard_agent.engines.slurm.commands import parse_jobs
from trainyard_protocol.wire.sync import ReplicaOrder
from unit.agent.stub_server import run_order


def replica(task: str, vcpus: int, gpus: int = 0) -> ReplicaOrder:
    kind = "NVIDIA_TESLA_A100" if gpus else ""
    return ReplicaOrder(
        task=task,
        machine_type="site",
        cpus=(),
        vcpus=vcpus,
        memory_bytes=8 << 30,
        accelerator_type=kind,
        accelerator_count=gpus,
    )


def test_consecutive_replicas_of_one_machine_are_one_part_with_its_own_resources() -> None:
    replicas = (
        replica("master-replica-0", 4, gpus=2),
        replica("worker-replica-0", 4, gpus=2),
        replica("ps-replica-0", 2),
    )
    order = run_order("r", "master-replica-0").model_copy(update={"replicas": replicas})
    each = [
        ["--ntasks=2", "--cpus-per-task=4", "--mem-per-cpu=2048M", "--gpus-per-task=a100:2"],
        ["--ntasks=1", "--cpus-per-task=2", "--mem-per-cpu=4096M"],
    ]

    arguments = spec.arguments(order, "/d", lambda _: "a100", spec.SlurmDefaults("gpu"))
    script = spec.script(order, lambda _: "a100", ["rank"], "/d")

    split = arguments.index(":")
    for part, resources in zip((arguments[:split], arguments[split + 1 :]), each, strict=True):
        assert part[-len(resources) :] == resources
        assert {"--partition=gpu", "--no-requeue", "--job-name=ty-r"} <= set(part)
    for resources in each:
        assert f"{' '.join(resources)} rank" in script


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
