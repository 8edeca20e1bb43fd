"""The runtime of a run: a container where the job brings its image, a process otherwise. Pure.

A package job runs in a container where the operator or the job says so: an agent that runs nothing else, the field
`packageJobs: container` of the runtimes file, or a `runtimeVersion` that has an image of its own in that file (`*` has
one for every version, so it moves no job). An image that must be built and is not there moves no job either.
"""

from collections.abc import Collection, Set
from dataclasses import dataclass

from trainyard_agent.runtimes.runtime_set import Choice
from trainyard_protocol.job.runtimes import Runtimes
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.sync import RunOrder


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything on a machine that the choice depends on. `offered` are the runtimes that may start runs;
    `has_engine`: an engine has answered there, with these `images`. `no_processes`: why package jobs may not run as
    processes there, "" where nobody would ask."""

    offered: Set[RuntimeName]
    runtimes: Runtimes
    has_engine: bool = False
    images: Collection[str] = ()
    no_processes: str = ""


def choose(order: RunOrder, machine: Machine) -> Choice:
    """The runtime of the run, and the reason where the machine has several."""
    training_input, runtimes = order.training_input, machine.runtimes
    if training_input.image_uri:
        return Choice("docker", "the job brings its image")
    if machine.offered == {"docker"}:
        return Choice("docker", machine.no_processes)
    if "docker" not in machine.offered:
        return Choice("process")
    if runtimes.package_jobs == "container":
        return Choice("docker", "the runtimes file has `packageJobs: container`")
    if not machine.has_engine:
        return Choice("process")
    version = training_input.runtime_version
    image = runtimes.own_image(version, gpus=any(replica.has_gpus for replica in order.replicas))
    if image is None:
        return Choice("process", "it is a package job")
    if image.dockerfile and image.image not in machine.images:
        missing = f"the image of its runtimeVersion {version}, {image.image}, was not built on this machine"
        return Choice("process", missing)
    return Choice("docker", f"its runtimeVersion {version} has the image {image.image}")


def default_runtime(machine: Machine) -> RuntimeName:
    """The runtime of package jobs without a runtimeVersion."""
    containers = machine.offered == {"docker"} or (
        "docker" in machine.offered and machine.runtimes.package_jobs == "container"
    )
    return "docker" if containers else "process"
