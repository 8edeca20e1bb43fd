"""Machine types of jobs that name none: --cpus, and the default of this machine's own service. Pure."""

from collections.abc import Mapping

from trainyard_cli.submission.flags import JobFlags
from trainyard_cli.submission.job_data import ROLES, JobData
from trainyard_protocol.errors import InvalidArgument

ONE_CPU = "Using 1 CPU (add --cpus N for more)."
"""What is said where `add_default` has added it."""


def add_cpus(job: JobData, origins: dict[str, str], flags: JobFlags) -> None:
    """Set the machine types that --cpus means: the master's, and those of the other roles without one, in place.

    Raises InvalidArgument beside a tier with machines of its own, and beside --master-machine-type.
    """
    cpus = flags.text("cpus")
    if not cpus:
        return
    tier = job.scale_tier.upper() or "CUSTOM"
    if tier != "CUSTOM":
        where = "--scale-tier" if flags.text("scale_tier") else "the config's scaleTier"
        raise InvalidArgument(f"--cpus and {where} {tier}, which has machines of its own, exclude each other.")
    if flags.text("master_machine_type"):
        raise InvalidArgument("Only one of --cpus, --master-machine-type can be set.")
    job.scale_tier, job.machine_type = "CUSTOM", f"local-{cpus}"
    origins["master_type"] = "--cpus"
    for role in filter(job.has_replicas, ROLES):
        if not job.training(f"{role}Type"):
            job.put_training(f"{role}Type", f"local-{cpus}")


def add_default(job: JobData) -> bool:
    """Give a job of packages that says nothing about machines one CPU, in place. True: it was added."""
    says = (f"{role}{field}" for role in ROLES for field in ("Type", "Count", "Config"))
    named = map(job.training, ("masterConfig", "imageUri", "scaleTier", "masterType", *says))
    if not isinstance(job.get("trainingInput"), Mapping) or any(named):
        return False
    job.scale_tier, job.machine_type = "CUSTOM", "local-1"
    return True
