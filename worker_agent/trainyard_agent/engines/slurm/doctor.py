"""Checks of a Slurm cluster and of the directory that its nodes share: whether both answer, and jobs of nobody."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard_agent.engines.slurm import commands, site, spec
from trainyard_agent.engines.slurm.commands import SlurmError
from trainyard_agent.engines.slurm.spec import SlurmDefaults
from trainyard_agent.runtimes.base import EngineUnavailable, Orphan
from trainyard_protocol.answers.health import Finding


def findings(shared_dir: Path, count_nodes: Callable[[], int], defaults: SlurmDefaults) -> Iterator[Finding]:
    """`count_nodes`: the nodes that can be used now; raises SlurmError."""
    try:
        about, refused = commands.version(), list(site.problems(defaults))
        nodes = count_nodes()
    except SlurmError as error:
        yield Finding(
            check="slurm",
            status="problem",
            found=f"Slurm does not answer: {error.strerror}.",
            meaning="No run is started or stopped. Existing runs continue.",
            advice="Run the agent on a login node; see the site's status of Slurm.",
        )
        return
    for problem in refused:
        yield Finding(
            check="settings",
            status="problem",
            found=problem,
            meaning="The agent does not start with this setting.",
            advice="Name an existing one, or leave the setting out.",
        )
    if nodes:
        yield Finding(check="slurm", status="ok", found=f"{about} answers, and {nodes} nodes can be used.")
    else:
        yield Finding(
            check="slurm",
            status="problem",
            found=f"{about} answers, and no node can be used.",
            meaning="Jobs stay queued.",
            advice="`sinfo` says why nodes are out; --slurm-partition chooses others.",
        )
    yield _directory(shared_dir)


def _directory(shared_dir: Path) -> Finding:
    try:
        with tempfile.NamedTemporaryFile(dir=shared_dir, prefix=".doctor-"):
            return Finding(check="shared-dir", status="ok", found=f"{shared_dir} can be written.")
    except OSError as error:
        return Finding(
            check="shared-dir",
            status="problem",
            found=f"{shared_dir} cannot be written: {error.strerror}.",
            meaning="Runs are not started, and ends of replicas are not recorded.",
            advice="Free space in it, or mount it again.",
        )


def orphans(shared_dir: Path) -> list[Orphan]:
    """Raises EngineUnavailable."""
    try:
        jobs = [(spec.run_of_job(job.name), job) for job in commands.active_jobs()]
    except SlurmError as error:
        raise EngineUnavailable(f"Slurm does not answer: {error.strerror}") from error
    why = f"the run is not in {shared_dir}, and may only be in that of another agent of yours"
    return [
        Orphan(f"job {job.id} in Slurm ({job.state})", run_id, why, f"scancel {job.id}")
        for run_id, job in jobs
        if run_id and not (shared_dir / "runs" / run_id).is_dir()
    ]
