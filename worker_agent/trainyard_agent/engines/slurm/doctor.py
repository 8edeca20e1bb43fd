"""Checks of a Slurm cluster and of the directory that its nodes share: whether both answer, and jobs of nobody."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard_agent.engines.slurm import commands, site, spec
from trainyard_agent.engines.slurm.commands import SlurmError
from trainyard_agent.engines.slurm.spec import SlurmDefaults
from trainyard_protocol.views.health import Finding


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
    yield from _orphans(shared_dir)


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


def _orphans(shared_dir: Path) -> Iterator[Finding]:
    try:
        jobs = [(spec.run_of_job(job.name), job) for job in commands.active_jobs()]
    except SlurmError as error:
        yield Finding(check="orphans", status="unknown", found=f"{error.strerror}.")
        return
    lost = [(run_id, job) for run_id, job in jobs if run_id and not (shared_dir / "runs" / run_id).is_dir()]
    if not lost:
        yield Finding(check="orphans", status="ok", found="Every job of the agent in Slurm has its run.")
    for run_id, job in lost:
        yield Finding(
            check="orphans",
            status="problem",
            found=f"Job {job.id} in Slurm ({job.state}) is of the run {run_id}, which is not in {shared_dir}.",
            meaning="Unless another agent of yours has it, nobody ends it.",
            advice=f"`scancel {job.id}`",
        )
