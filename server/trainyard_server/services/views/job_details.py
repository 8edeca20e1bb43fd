"""Job details beyond the v1 API: runs and replicas, the environment of a replica, the status of the server."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import trainyard_protocol
from trainyard_protocol.answers.cluster import RetentionView, ServerStatus
from trainyard_protocol.answers.jobs import EventView, Explanation, JobDetail, MountView, ReplicaView, RunView, Verdict
from trainyard_protocol.answers.log_views import LogSummary
from trainyard_protocol.answers.metrics import JobMetric, TrialMetric
from trainyard_protocol.answers.usage import UsageSample
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, NotFound, Violation
from trainyard_protocol.job.cluster import PRIMARY, Task, launch_environment
from trainyard_protocol.job.commands import container_arguments, filled, module_command, reproduce
from trainyard_protocol.job.keys import mounts as mount_rules
from trainyard_protocol.job.machines import config_of
from trainyard_protocol.job.mounts import CACHE
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.net.gcs import HIDDEN
from trainyard_protocol.states import JobState, Outcome
from trainyard_protocol.wire.agents import PACKAGE_JOBS, AgentInfo
from trainyard_server.context import Backend
from trainyard_server.control.removal import RETENTION
from trainyard_server.control.snapshots import awaited_agents, order_of_capabilities, peers_of, snapshot_of, trial_order
from trainyard_server.domain.access.permissions import Visible
from trainyard_server.domain.lifecycle.lost_work import lost_work
from trainyard_server.domain.metrics.summary import ordered
from trainyard_server.domain.tuning.study import tag_of
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.services.jobs.training_output import training_output, training_outputs
from trainyard_server.services.jobs.v1_job import v1_job
from trainyard_server.services.measurements.usage import newest
from trainyard_server.services.views.cluster import agent_lines
from trainyard_server.storage.db.base.columns import values_of
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import job_values, origins, studies
from trainyard_server.storage.logs.store import Stream

_METRICS = 100


class JobDetails:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def status(self, visible: Visible) -> ServerStatus:
        """The server with its agents, and the counts of jobs of visible projects."""
        with self._backend.store.read() as reader:
            agents = [line.view for line in agent_lines(reader, self._backend, visible)]
            counts = reader.job_counts(visible)
            retention = self._retention(reader, visible)
        settings = self._backend.settings
        return ServerStatus(
            version=trainyard_protocol.__version__,
            agents=tuple(agents),
            jobs=counts,
            retention=retention,
            has_storage=bool(settings.storage or settings.storage_emulator),
        )

    def _retention(self, reader: Reader, visible: Visible) -> RetentionView | None:
        policy = self._backend.retention
        if policy.keeps_everything:
            return None
        removed = reader.removal_counts(visible, RETENTION)
        return RetentionView(
            keep_jobs_s=policy.keep_jobs.total_seconds() if policy.keep_jobs is not None else None,
            projects=sum(own is not None for own in policy.own.projects.values()),
            jobs_deleted=removed.jobs,
            last_removal=removed.last,
        )

    def detail(self, project: str, job_id: str, with_events: bool = True, with_trials: bool = True) -> JobDetail:
        """The job with its runs; `with_events` adds history, metrics and origin, `with_trials` those of a study.
        Raises NotFound."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            runs = [*reader.runs(job.key), *reader.restarts([job.key])]
            parts = {part.run_id: part for run in runs for part in reader.parts(run)}
            gangs = _by_run(reader.replicas(parts), parts)
            events = reader.events(job.key) if with_events else ()
            digests = reader.digests(parts) if with_events else {}
            names = {row.agent_id: str(row.info["name"]) for row in reader.agents(removed=True)}
            output = training_output(reader, job) if with_trials else training_outputs(reader, [job])[job.key]
            metric = _trial_metric(reader, job)
            origin = origins.summary(reader, job) if with_events else None
            measured = _metrics(reader, job) if with_events else ()
            awaited = awaited_agents(reader, self._backend, job)
        counts = self._backend.logs.counts(project, job_id)
        views = _with_restarts(
            (
                run.beside,
                _run_view(
                    run,
                    gangs[run.run_id],
                    parts,
                    names,
                    counts,
                    digests,
                    newest(self._backend, project, job_id, run, gangs[run.run_id]),
                ),
            )
            for run in runs
        )
        verdict = Verdict.model_validate(job.verdict) if job.verdict else None
        study, _, trial = job.job_id.partition(".")
        return JobDetail(
            job=v1_job(job, output),
            job_dir=self._backend.job_dir(
                project, job.owner, job_id, str(job.training_input.get("jobDir") or ""), job.created_at
            ),
            owner=job.owner,
            note=job.note,
            is_study="isHyperparameterTuningJob" in output,
            study=study if trial else "",
            trial=int(trial) if trial else None,
            trial_metric=metric,
            state=job.state,
            waiting=job.waiting or awaited,
            verdict=verdict,
            exit_code=_exit_code(job.state, verdict),
            metrics=measured,
            origin=origin,
            runs=views,
            lost=lost_work(views),
            events=tuple(EventView.model_validate(event, from_attributes=True) for event in events),
        )

    def summary(self, project: str, job_id: str) -> tuple[LogSummary, int]:
        """The lines of the job's log as stored and as counted by its agents, and the cursor of its last line.

        Raises NotFound.
        """
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            every = (*reader.runs(job.key), *reader.restarts([job.key]))
            numbers = {part.run_id: part.number for run in every for part in reader.parts(run)}
            gangs = reader.replicas(numbers)
        counts, last = self._backend.logs.extent(project, job_id)
        lines = {stream.name: count for stream, count in counts.items()}
        sha256, stored = {}, {}
        for replica in gangs:
            name = Stream(numbers[replica.run_id], replica.task).name
            if replica.log_kept is not None:
                stored[name] = replica.log_kept
            if replica.log_lines is not None:
                lines[name] = replica.log_lines
                sha256[name] = replica.log_sha256
        return LogSummary(state=job.state, lines=lines, sha256=sha256, kept=stored), last

    def explain(self, project: str, job_id: str, task_name: str = "", run_number: int | None = None) -> Explanation:
        """Environment and command of a replica; by default the primary of the latest run.

        Raises NotFound for an unknown job, run or replica, FailedPrecondition while the replicas have no addresses.
        """
        try:
            task = Task.parse(task_name) if task_name else PRIMARY
        except ValueError as error:
            raise InvalidArgument(Violation("task", str(error))) from None
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            if studies.kind_of(reader, job.key).is_study:
                raise FailedPrecondition(f"{job_id} has no replicas: its trials have, such as {job_id}.1.")
            runs = reader.runs(job.key)
            run = _chosen(job, runs, reader.restarts([job.key]), run_number)
            gang = reader.gang(run)
            beside = next((item for item in runs if item.number == run.beside), None)
            peers = peers_of(gang, reader.gang(beside)) if beside is not None else {}
            agent = reader.agent(reader.part_with(run, task.name).agent_id)
            snapshot = replace(snapshot_of(job, reader.job_input(job)), trial=trial_order(reader, job))
            given_by_others = order_of_capabilities(reader, self._backend, job)["variables"]
            training_input = filled(snapshot.training_input, given_by_others)
            snapshot = replace(snapshot, training_input=training_input, variables=given_by_others)
        addresses = {Task.parse(replica.task): replica.address for replica in gang}
        if task not in addresses:
            tasks = ", ".join(sorted(replica.task for replica in gang))
            raise NotFound(f"Run {run.number} of the job {job_id} has no {task.name}; it has {tasks}.")
        if not all(addresses.values()):
            raise _not_placed(job)
        addresses |= {Task.parse(name): address for name, address in peers.items()}
        info = AgentInfo.model_validate(agent.info) if agent is not None else None
        # The service's own variables win over the agent's, as they do where the replica is started.
        row = next(replica for replica in gang if replica.task == task.name)
        job_dir = self._backend.job_dir(project, job.owner, job_id, snapshot.training_input.job_dir, job.created_at)
        given = info.environment_in(run.runtime) if info is not None else {}
        mounts = _mounts(project, snapshot.training_input, info, run.runtime)
        variables = {name: value for mount in mounts for name, value in mount.variables.items()}
        variables |= launch_environment(
            snapshot,
            addresses,
            task,
            job_dir,
            given,
            cpus=len(row.cpus) or row.vcpus,
            accelerators=len(row.gpus) or row.accelerator_count,
            grace_s=self._backend.settings.grace_s,
        )
        variables |= {
            item.variable: item.file if item.file and snapshot.training_input.image_uri else HIDDEN
            for item in snapshot.training_input.secrets
        }
        command = _command(snapshot.training_input, task)
        return Explanation(
            task=task.name,
            run=run.number,
            environment=variables,
            command=tuple(command),
            packages=snapshot.training_input.package_uris,
            reproduce=reproduce(variables, command),
            runtime=run.runtime,
            runtime_reason=run.runtime_reason,
            mounts=mounts,
        )


def _mounts(
    project: str, training_input: TrainingInput, info: AgentInfo | None, runtime: str | None
) -> tuple[MountView, ...]:
    """The mounts of a replica on that agent, with its project's cache. A process has links to them in its run's
    directory, which only the agent knows."""
    is_process = runtime in PACKAGE_JOBS if runtime else not training_input.image_uri

    def view(name: str, path: str, read_only: bool, directories: Mapping[str, str]) -> MountView:
        path = f".../mounts/{name}" if is_process else path
        return MountView(name=name, path=path, read_only=read_only, variables=mount_rules.paths_at(path, directories))

    offers = {offer.name: offer for offer in info.mounts} if info is not None else {}
    views = [
        view(
            mount.name,
            mount.target,
            mount.name not in offers or offers[mount.name].read_only,
            {mount_rules.variable_of(mount.name): ""},
        )
        for mount in training_input.mounts
    ]
    cache = info.cache if info is not None else None
    if cache is not None and cache.serves(project):
        views.append(view(CACHE, mount_rules.CACHE_PATH, False, mount_rules.CACHE_VARIABLES))
    return tuple(views)


def _exit_code(state: JobState, verdict: Verdict | None) -> int | None:
    """The exit code of a command that waits for the job; None before the job has ended."""
    match state:
        case JobState.SUCCEEDED:
            return 0
        case JobState.FAILED:
            code = verdict.exit_code if verdict is not None and verdict.outcome is Outcome.FAILED else None
            return code or 1
        case JobState.CANCELLED:
            return 1
        case _:
            return None


def _metrics(reader: Reader, job: JobRow) -> tuple[JobMetric, ...]:
    summaries = job_values.values_of(reader, [job.key], (), None)[job.key].metrics
    return tuple(
        JobMetric(
            name=name,
            step=summaries[name].step,
            last=math.nan if summaries[name].last is None else summaries[name].last,
            best=summaries[name].best(name),
        )
        for name in ordered(summaries)[:_METRICS]
    )


def _trial_metric(reader: Reader, job: JobRow) -> TrialMetric | None:
    """The metric that a trial has reported; None before it has, and for another job."""
    trial_and_study = studies.trial_of(reader, job)
    if trial_and_study is None:
        return None
    trial, study = trial_and_study
    spec = reader.job_input(study)[0].hyperparameters
    if spec is None or trial.step is None or trial.value is None:
        return None
    name = tag_of(spec, studies.metric_of(reader, study.key))
    return TrialMetric(name=name, step=trial.step, value=trial.value)


def _by_run(replicas: Sequence[ReplicaRow], parts: Mapping[str, RunRow]) -> dict[str, list[ReplicaRow]]:
    """The replicas of all parts of each run, by its id."""
    gangs: dict[str, list[ReplicaRow]] = {run_id: [] for run_id, part in parts.items() if part.part_of is None}
    for replica in replicas:
        gangs[parts[replica.run_id].part_of or replica.run_id].append(replica)
    return gangs


def _run_view(
    run: RunRow,
    gang: Sequence[ReplicaRow],
    parts: Mapping[str, RunRow],
    agents: dict[str, str],
    counts: dict[Stream, int],
    digests: Mapping[tuple[str, str], Mapping[str, Any]],
    used: Mapping[str, UsageSample],
) -> RunView:
    names = {part.run_id: agents.get(part.agent_id, part.agent_id) for part in parts.values()}
    doing = [part.activity for part in parts.values() if part.activity and run.run_id in (part.run_id, part.part_of)]
    return RunView(
        **values_of(run, RunView, but=("activity",)),
        agent=", ".join(dict.fromkeys([names[run.run_id], *(names[replica.run_id] for replica in gang)])),
        activity=next(iter(doing), ""),
        replicas=tuple(
            _replica_view(
                replica,
                counts.get(Stream(run.number, replica.task), 0),
                digests.get((replica.run_id, replica.task)),
                used.get(replica.task),
                names[replica.run_id] if run.agents > 1 else "",
            )
            for replica in gang
        ),
    )


def _replica_view(
    replica: ReplicaRow, log_lines: int, digest: Mapping[str, Any] | None, sample: UsageSample | None, agent: str
) -> ReplicaView:
    values = values_of(replica, ReplicaView, but=("metrics", "log_lines")) | {"agent": agent}
    if sample is not None:
        values |= {
            "cpu_used": sample.cpu,
            "memory_used_bytes": sample.memory_bytes,
            "gpus_used": sample.gpus,
            "used_at": sample.time,
        }
    return ReplicaView.model_validate(values | {"log_lines": log_lines, "metrics": digest or None})


def _with_restarts(runs: Iterable[tuple[int | None, RunView]]) -> tuple[RunView, ...]:
    """The runs of gangs, each with the restarts beside it; these come last."""
    gangs: dict[int, RunView] = {}
    for beside, view in runs:
        if beside is None:
            gangs[view.number] = view
        else:
            gang = gangs[beside]
            gangs[beside] = gang.model_copy(update={"restarts": (*gang.restarts, view)})
    return tuple(gangs.values())


def _chosen(job: JobRow, runs: Sequence[RunRow], restarts: Sequence[RunRow], number: int | None) -> RunRow:
    if not runs:
        raise _not_placed(job)
    if number is None:
        return runs[-1]
    every = [*runs, *restarts]
    for run in every:
        if run.number == number:
            return run
    raise NotFound(f"The job {job.job_id} has no run {number}; its last one is run {max(run.number for run in every)}.")


def _not_placed(job: JobRow) -> FailedPrecondition:
    waits = f" It waits: {job.waiting}." if job.waiting else ""
    return FailedPrecondition(
        f"The replicas of {job.job_id} have no addresses yet; they are known once the job is placed. "
        f"It is {job.state}.{waits}"
    )


def _command(training_input: TrainingInput, task: Task) -> list[str]:
    if not training_input.runs_image:
        return module_command(training_input)
    config = config_of(training_input, task.type)
    return [*config.container_command, *container_arguments(training_input, config)]
