"""The runtime of a run on a machine with processes and containers."""

from dataclasses import replace

import pytest

from trainyard_agent.control.runtime_choice import Machine, choose, default_runtime
from trainyard_agent.runtimes.runtime_set import Choice
from trainyard_protocol.job.runtimes import RuntimeImage, Runtimes, RuntimeVersion
from trainyard_protocol.wire.agents import RuntimeName
from unit.agent.stub_server import run_order

TABLE = Runtimes(
    images={
        "jax": RuntimeImage(image="jax:1", dockerfile="/jax.Dockerfile"),
        "torch": RuntimeImage(image="torch:2"),
        "built": RuntimeImage(image="built:3", dockerfile="/built.Dockerfile"),
    },
    versions={
        "*": RuntimeVersion(cpu="jax"),
        "2.11": RuntimeVersion(cpu="torch"),
        "3.0": RuntimeVersion(cpu="built"),
    },
)
EVERY_IMAGE = frozenset({"jax:1", "torch:2", "built:3"})
BOTH: frozenset[RuntimeName] = frozenset({"process", "docker"})
MACHINE = Machine(BOTH, TABLE, has_engine=True, images=EVERY_IMAGE)
PROCESSES = replace(MACHINE, offered=frozenset({"process"}))
CONTAINERS = replace(MACHINE, offered=frozenset({"docker"}))
MANY_USERS = replace(CONTAINERS, no_processes="it may not")
NO_ENGINE = replace(MACHINE, has_engine=False, images=frozenset())
NOT_BUILT = replace(MACHINE, images=frozenset())
BY_OPERATOR = replace(MACHINE, runtimes=replace(TABLE, package_jobs="container"))
PACKAGE = Choice("process", "it is a package job")
MISSING = "the image of its runtimeVersion 3.0, built:3, was not built on this machine"


@pytest.mark.parametrize(
    ("machine", "version", "expected"),
    [
        (MACHINE, "", PACKAGE),  # though the image of every version was built
        (MACHINE, "1.15", PACKAGE),
        (MACHINE, "*", PACKAGE),
        (MACHINE, "2.11", Choice("docker", "its runtimeVersion 2.11 has the image torch:2")),
        (MACHINE, "3.0", Choice("docker", "its runtimeVersion 3.0 has the image built:3")),
        (
            NOT_BUILT,
            "2.11",
            Choice("docker", "its runtimeVersion 2.11 has the image torch:2"),
        ),  # it is pulled
        (NOT_BUILT, "3.0", Choice("process", MISSING)),
        (NO_ENGINE, "2.11", Choice("process")),
        (BY_OPERATOR, "", Choice("docker", "the runtimes file has `packageJobs: container`")),
        (CONTAINERS, "", Choice("docker")),
        (PROCESSES, "3.0", Choice("process")),
        (MANY_USERS, "", Choice("docker", "it may not")),
    ],
)
def test_package_job_moves_to_containers_only_where_somebody_asked_for_it(
    machine: Machine, version: str, expected: Choice
) -> None:
    assert choose(run_order("1", runtimeVersion=version), machine) == expected


@pytest.mark.parametrize("machine", [MACHINE, NO_ENGINE, CONTAINERS, PROCESSES, BY_OPERATOR])
def test_job_with_an_image_is_always_for_containers(machine: Machine) -> None:
    order = run_order("1", pythonModule="", masterConfig={"imageUri": "gcr.io/p/i"})
    assert choose(order, machine) == Choice("docker", "the job brings its image")


def test_default_runtime_is_that_of_package_jobs() -> None:
    machines = [MACHINE, NO_ENGINE, PROCESSES, BY_OPERATOR, CONTAINERS]
    assert [default_runtime(machine) for machine in machines] == ["process"] * 3 + ["docker"] * 2
