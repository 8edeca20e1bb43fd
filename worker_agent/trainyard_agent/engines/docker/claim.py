"""The jobs that run in containers. Pure.

A package job does where the operator or the job says so: an agent that runs nothing else, the field
`packageJobs: container` of the runtimes file, or a `runtimeVersion` that has an image of its own in that file (`*` has
one for every version, so it moves no job). An image that must be built and is not there moves no job either.
"""

from collections.abc import Collection

from trainyard_agent.engines.contract import Claim
from trainyard_protocol.job.runtimes import Runtimes
from trainyard_protocol.job.training_input import TrainingInput


def claim(
    wanted: TrainingInput, uses_gpus: bool, runtimes: Runtimes, has_answered: bool, images: Collection[str]
) -> Claim:
    """The word on a job, on a machine whose engine has answered with these images, or has never."""
    if wanted.image_uri:
        return Claim(True, "the job brings its image")
    if runtimes.package_jobs == "container":
        return Claim(True, "the runtimes file has `packageJobs: container`")
    if not has_answered:
        return Claim()
    version = wanted.runtime_version
    image = runtimes.own_image(version, uses_gpus)
    if image is None:
        return Claim(why="it is a package job")
    if image.dockerfile and image.image not in images:
        return Claim(why=f"the image of its runtimeVersion {version}, {image.image}, was not built on this machine")
    return Claim(True, f"its runtimeVersion {version} has the image {image.image}")
