"""The Slurm runtime: each run is one job of Slurm, each replica a task of it under its own supervisor (`rank.py`).

All state is in `runs/RUN/` of a directory that the nodes share with the agent. The agent writes run.json (the handle
and the job), stop.json, ask.json and job.json (the state in which the job ended); the ranks write the rest. What a
replica did is read from its files, and Slurm is asked for what no file can tell: why a job waits, and whether it has
ended.

An end that Slurm caused (its SIGTERM came before ours) is reported once the job has ended, because only then does Slurm
say why: other work, a node that was lost, a user's scancel.
"""

import contextlib
import logging
import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainyard_agent.control.keeping import kept
from trainyard_agent.engines.slurm import commands, containers, inside, pull, rank, run_files, spec, step
from trainyard_agent.engines.slurm.commands import JobTable, SlurmError, SlurmJob
from trainyard_agent.engines.slurm.run_files import (
    PullFailure,
    PullWait,
    RankAddress,
    RankUsage,
    SignsAsked,
    SlurmEnd,
    SlurmJobEnd,
    SlurmRecord,
    SlurmStart,
    SlurmStop,
    Times,
)
from trainyard_agent.engines.slurm.spec import SlurmDefaults
from trainyard_agent.engines.slurm.step_attachment import StepAttachment
from trainyard_agent.host import disk
from trainyard_agent.host.files import remove_tree, write_json
from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.runtimes.attaching import beside
from trainyard_agent.runtimes.attaching.attachment import Attachment, NotAttachable
from trainyard_agent.runtimes.attaching.port_command import port_command
from trainyard_agent.runtimes.base import STOPPED, Handle, Launch, StartFailed, Traits, metric_tag
from trainyard_agent.runtimes.exits import StopOrder, code_of_status, exit_report, stopped_exit
from trainyard_agent.runtimes.run_directories import MOUNTS, RunDirectories, is_run_id, link_mounts
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.attachments import Terminal
from trainyard_protocol.wire.sync import ExitReport, ReplicaReport, RunOrder

_FIRST_SERIAL = 1
_OVERDUE_S = 30.0  # after a replica should have been killed: then Slurm kills it
_ENDS_ITSELF_S = 5.0  # for ranks to end by themselves before their run is removed
_KILL_TIMEOUT_S = 60.0
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_INSTANT = timedelta(microseconds=1)
_log = logging.getLogger(__name__)


class SlurmRuntime(RunDirectories[SlurmRecord]):
    traits = Traits(starts_whole=False, tells_changes=False)

    def __init__(
        self,
        shared_dir: Path,
        defaults: SlurmDefaults | None = None,
        gres: Callable[[str], str] = str.lower,
        longest_s: Callable[[], float] = lambda: math.inf,
        times: Times | None = None,
        images: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`gres`: what Slurm calls an accelerator type, such as `gpu:a100` without its `gpu:`. `longest_s`: the time
        limit of the partition now. `images`: the program of the nodes that runs images; `patience_s`: how long they
        wait for a registry that is away."""
        super().__init__(shared_dir / "runs", SlurmRecord, _log)
        self._defaults, self._gres, self._longest_s = defaults or SlurmDefaults(), gres, longest_s
        self._times = times or Times()
        self._images = images
        self._patience_s = patience_s
        self._table = JobTable(self._times.queue)
        self._reports: dict[str, tuple[float, tuple[ReplicaReport, ...]]] = {}
        self._ended_since: dict[str, float] = {}
        self._refused_since: dict[str, float] = {}
        self._killed_at: dict[str, float] = {}
        self._launched_records: dict[str, SlurmRecord] = {}

    @property
    def problem(self) -> str:
        """The last error of Slurm; "" if it answered when it was last asked."""
        return self._table.problem

    def recover(self) -> list[Handle]:
        with self._lock:
            return [_handle(record) for record in self._recovered()]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002 - it tells nothing
        return lambda: None

    def place(self, order: RunOrder) -> Handle:
        with self._lock:
            record = self._record(order.run_id)
            if record is not None:
                return _handle(record)
            first = order.replicas[0].task
            if not is_run_id(order.run_id):
                raise StartFailed(first, f"{order.run_id!r} is not a run id.")
            tasks = [Task.parse(replica.task).name for replica in order.replicas]
            record = SlurmRecord(
                run_id=order.run_id,
                addresses={task: spec.placeholder(order.run_id, task) for task in tasks},
                grace_s=order.grace_s,
                metric_tag=metric_tag(order),
                order=order,
            )
            run = self._runs / order.run_id
            try:
                run.mkdir(mode=0o700)
                for name in ("addresses", *tasks, *(f"{task}/work" for task in tasks)):
                    (run / name).mkdir(mode=0o700)
                self._write(record)
            except OSError as error:
                remove_tree(run)
                words = f"There is no room for it: {disk.in_words(error)}."
                raise StartFailed(first, words, Reason.HOST_FAILED) from error
            return _handle(record)

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        with self._lock:
            record = self._record(run_id)
            if record is None or record.order is None:
                raise StartFailed(launches[0].task, "Its run was not placed.")
            if record.launched:
                return _handle(record)
            try:
                return self._launch(record, record.order, launches)
            except OSError as error:
                words = disk.in_words(error).rstrip(".")
                with contextlib.suppress(OSError):  # else the next agent removes it
                    self.remove(run_id)
                reason = spec.refusal(words) if isinstance(error, SlurmError) else Reason.HOST_FAILED
                raise StartFailed(launches[0].task, f"Slurm did not accept the job: {words}.", reason) from error

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        with self._lock:
            now = time.monotonic()
            at, reports = self._reports.get(run_id, (float("-inf"), ()))
            if now - at >= self._times.files:
                reports = self._observe(run_id)
                self._reports[run_id] = (now, reports)
            return reports

    def has_ended(self, run_id: str) -> bool:
        return all(report.exit is not None for report in self.observe(run_id))

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:  # noqa: ARG002 - none is seen
        return ()  # they are on other machines

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        directory = self._runs / run_id / task
        if (directory / "exit.json").exists() or (directory / "lost.json").exists():
            return None
        use = self._files.read(directory / "usage.json", RankUsage)
        return None if use is None else ReplicaUse(use.cpu_s, use.memory)

    def execute(self, run_id: str, task: str, command: Sequence[str], terminal: Terminal | None) -> Attachment:
        return self._execute(run_id, task, command, terminal, in_container=True)

    def _execute(
        self, run_id: str, task: str, command: Sequence[str], terminal: Terminal | None, *, in_container: bool
    ) -> Attachment:
        record, directory = self._record(run_id), self._runs / run_id
        replicas = record.order.replicas if record is not None and record.order is not None else ()
        tasks = [replica.task for replica in replicas]
        is_there = task in tasks and (directory / task / "started.json").exists()
        if record is None or not is_there or self._has_ended(run_id, task):
            raise NotAttachable(f"{task} does not run.")
        address = self._files.read(directory / "addresses" / str(tasks.index(task)), RankAddress)
        if address is None or not address.node:
            raise NotAttachable(f"The node of {task} is not known.")
        code = directory / task / f"step-{uuid.uuid4().hex}"
        python = (sys.executable, "-I", "-S")
        beside_it = [*python, beside.__file__, str(directory / task), "0", "0", *command]
        if in_container and (directory / task / containers.CONTAINER).exists():
            beside_it = [*python, inside.__file__, str(directory / task), *command]
        program = [*python, step.__file__, str(code), *beside_it]
        srun = spec.step_beside(record.job, replicas, task, address.node, program, on_terminal=terminal is not None)
        return StepAttachment(srun, terminal, self._runs.parent, code)

    def connect(self, run_id: str, task: str, port: int) -> Attachment:
        """The network of a container is its node's."""
        return self._execute(run_id, task, port_command(port, sys.executable), None, in_container=False)

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        with self._lock:
            record = self._record(run_id)
            tasks = list(record.addresses) if record and record.launched else []
            ended = [task for task in tasks if self._has_ended(run_id, task)]
            if record is None or len(ended) == len(tasks):
                return
            path = self._runs / run_id / "stop.json"
            now = time.time()
            before = self._files.read(path, SlurmStop)
            kill_at = now + grace_s
            if before is not None:
                kill_at = min(kill_at, before.kill_at.timestamp())
            if before is None or kill_at < before.kill_at.timestamp():
                order = SlurmStop(
                    serial=before.serial + 1 if before else _FIRST_SERIAL,
                    grace_s=max(0.0, kill_at - now),
                    kill_at=datetime.fromtimestamp(kill_at, UTC),
                    reason=before.reason if before else reason,
                    ended=before.ended if before else ended,
                )
                write_json(path, order.model_dump(mode="json"))
                self._reports.pop(run_id, None)
            if not any((self._runs / run_id / "addresses").iterdir()):  # else it has started
                with contextlib.suppress(SlurmError):  # it stops as soon as it starts
                    commands.cancel_pending([record.job])

    def remove(self, run_id: str) -> None:
        path = self._runs / run_id
        if not is_run_id(run_id) or not path.exists():
            return
        self._kill_all(run_id)  # takes its time, in which other runs are observed
        with self._lock:
            self._remove_directory(run_id)
            for memory in (
                *(self._reports, self._ended_since, self._refused_since),
                *(self._killed_at, self._launched_records),
            ):
                memory.pop(run_id, None)

    def _launch(self, record: SlurmRecord, order: RunOrder, launches: Sequence[Launch]) -> Handle:
        run = self._runs / record.run_id
        if launches[0].mounts:
            (run / MOUNTS).mkdir(mode=0o700, exist_ok=True)
            link_mounts(run, launches[0].mounts)
        write_json(run / "tasks.json", {"tasks": [launch.task for launch in launches]})
        images = list(dict.fromkeys(launch.image for launch in launches if launch.image))
        if images:
            (run / containers.IMAGES).mkdir(mode=0o700, exist_ok=True)
            write_json(run / containers.LIST, {"images": images})
        for launch in launches:
            directory = run / launch.task
            run_files.write_secrets(launch, directory)
            write_json(directory / "launch.json", self._spec(record, launch, images, directory))
        arguments = spec.arguments(order, str(run), self._gres, self._defaults, self._longest_s())
        program = [sys.executable, "-I", "-S", rank.__file__, str(run)]
        program_of_images = [pull.__file__, str(run), self._images, f"{self._patience_s:g}"]
        pulls = [sys.executable, "-I", "-S", *program_of_images] if images else []
        job = commands.submit(arguments, spec.script(order, self._gres, program, str(run), pulls))
        launched = record.model_copy(update={"job": job, "launched": True})
        self._write(launched)
        self._table.expect(job)
        self._reports.pop(record.run_id, None)
        return _handle(launched)

    def _spec(self, record: SlurmRecord, launch: Launch, images: Sequence[str], directory: Path) -> dict[str, object]:
        """The content of launch.json."""
        environment = run_files.replica_environment(record.run_id, launch, directory, os.environ)
        container = (
            run_files.container(record.run_id, launch, images, directory, self._images) if launch.image else None
        )
        return {
            "command": kept(launch.command, launch.keep, launch.task, alone=False),
            **({"container": container} if container else {}),
            "environment": environment,
            "fixed": run_files.fixed_variables(environment, launch, os.environ),
            "placeholders": record.addresses,
            "directory": str(directory / "work"),
            "cpus": [],
            "log_quota": launch.log_quota_bytes,
            "grace_s": record.grace_s,
            "poll_s": self._times.rank,
            "usage_s": self._times.usage,
        }

    def _observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        record = self._record(run_id)
        if record is None:
            return ()
        if not record.launched:
            return tuple(
                ReplicaReport(task=task, state=ReplicaState.PENDING, address=address)
                for task, address in record.addresses.items()
            )
        waits = ""
        ended = self._files.read(self._runs / run_id / "job.json", SlurmJobEnd)
        stop = self._files.read(self._runs / run_id / "stop.json", SlurmStop)
        if ended is None and not all(self._is_settled(run_id, task) for task in record.addresses):
            waits, ended = self._ask(record, stop)
        reports = tuple(
            self._report(record, rank_, task, waits, ended, stop) for rank_, task in enumerate(record.addresses)
        )
        return reports if ended or stop else self._without_unclear_failures(run_id, reports)

    def _without_unclear_failures(self, run_id: str, reports: tuple[ReplicaReport, ...]) -> tuple[ReplicaReport, ...]:
        """The reports without failures while a replica is silent. Its node may have died, of which its peers fail at
        once and Slurm learns minutes later; every rank that lives gives a sign within a second or two."""
        run = self._runs / run_id
        failed = [item.task for item in reports if item.exit is not None and item.exit.code]
        silent = [item for item in reports if item.exit is None and not (run / item.task / "here.json").exists()]
        if not failed or not silent:
            return reports
        now = datetime.now(UTC)
        asked = self._files.read(run / "ask.json", SignsAsked)
        if asked is None:
            asked = SignsAsked(time=now)
            try:
                write_json(run / "ask.json", asked.model_dump(mode="json"))
            except OSError as error:
                self._files.warn_once(f"{run_id}: the cause of a failure stays unclear: {error}")
                return reports
        if (now - asked.time).total_seconds() > self._times.silence:
            return reports
        unclear = {"state": ReplicaState.RUNNING, "exit": None}
        return tuple(item.model_copy(update=unclear) if item.task in failed else item for item in reports)

    def _ask(self, record: SlurmRecord, stop: SlurmStop | None) -> tuple[str, SlurmJobEnd | None]:
        """The reason why the job waits, and its end, once its files have settled."""
        names = [spec.job_name(other.run_id) for other in self._records() if other.launched]
        try:
            job = self._table.find(record.job, names)
        except SlurmError as error:
            return f"Slurm does not answer: {error.strerror}", None
        state = spec.GONE if job is None else job.state
        if job is not None and state not in spec.ENDED:
            self._ended_since.pop(record.run_id, None)
            if stop is not None and time.time() - stop.kill_at.timestamp() > _OVERDUE_S:
                self._kill_overdue(record)
            if self._is_refused(record, job):
                with contextlib.suppress(SlurmError):  # tried again
                    commands.cancel_pending([record.job])
                    return "", self._record_end(record, job.reason, job)
            return spec.waits(state, job.reason) or self._pulls(record), None
        now = time.monotonic()
        if now - self._ended_since.setdefault(record.run_id, now) < self._times.settle:
            return "", None
        if job is not None and state in spec.BY_ITSELF and any(end.taken for end in self._ends(record)):
            try:
                was_preempted = commands.was_preempted(job.id)
            except SlurmError:  # it has forgotten the job by now
                was_preempted = False
            state = spec.state_of_end(job.left, record.grace_s, was_preempted) or state
        return "", self._record_end(record, state, job)

    def _pulls(self, record: SlurmRecord) -> str:
        """The reason why no rank of a job that Slurm has started is there yet; "" if it is not its image."""
        run = self._runs / record.run_id
        if not (run / containers.LIST).exists() or any((run / "addresses").iterdir()):
            return ""
        waiting = self._files.read(run / containers.WAITS, PullWait)
        return f"its node tries again to pull the image: {waiting.words}" if waiting else "its node pulls the image"

    def _ends(self, record: SlurmRecord) -> list[SlurmEnd]:
        """The ends of those replicas whose ranks have written one."""
        run = self._runs / record.run_id
        ends = [self._files.read(run / task / "exit.json", SlurmEnd) for task in record.addresses]
        return [end for end in ends if end is not None]

    def _is_refused(self, record: SlurmRecord, job: SlurmJob) -> bool:
        """Whether Slurm says, and goes on saying, that it will never start the job."""
        if not spec.will_never_start(job.state, job.reason):
            self._refused_since.pop(record.run_id, None)
            return False
        now = time.monotonic()
        return now - self._refused_since.setdefault(record.run_id, now) >= self._times.refusal

    def _record_end(self, record: SlurmRecord, state: str, job: SlurmJob | None) -> SlurmJobEnd:
        """Note the end of the job, and close the replicas without an end of their own."""
        run = self._runs / record.run_id
        numbers = [n for n, task in enumerate(record.addresses) if not (run / task / "exit.json").exists()]
        addresses = [self._files.read(run / "addresses" / str(number), RankAddress) for number in numbers]
        ended = SlurmJobEnd(
            time=datetime.now(UTC),
            state=state,
            words=run_files.last_line(run / "slurm.out"),
            nodes=job.nodes if job else "",
            lost_nodes=sorted({address.node for address in addresses if address is not None and address.node}),
            partition=job.partition if job else "",
            limit=job.limit if job else "",
        )
        for task in record.addresses:
            if not (run / task / "exit.json").exists():
                write_json(run / task / "lost.json", {"state": state})
            if not (run / task / "done.json").exists():
                write_json(run / task / "done.json", {"supervisor": "lost"})
        write_json(run / "job.json", ended.model_dump(mode="json"))
        return ended

    def _kill_overdue(self, record: SlurmRecord) -> None:
        """Let Slurm kill what its rank should have killed: its node may be cut off from the shared file system."""
        now = time.monotonic()
        if now - self._killed_at.get(record.run_id, float("-inf")) >= _OVERDUE_S:
            self._killed_at[record.run_id] = now
            with contextlib.suppress(SlurmError):  # tried again
                commands.kill([record.job])

    def _report(
        self, record: SlurmRecord, number: int, task: str, waits: str, job: SlurmJobEnd | None, stop: SlurmStop | None
    ) -> ReplicaReport:
        directory = self._runs / record.run_id / task
        started = self._files.read(directory / "started.json", SlurmStart)
        address = self._files.read(self._runs / record.run_id / "addresses" / str(number), RankAddress)
        how = self._exit(record, task, job, stop)
        state = ReplicaState.RUNNING if started else ReplicaState.STARTING
        return ReplicaReport(
            task=task,
            state=ReplicaState.EXITED if how else state,
            address=f"{address.host}:{address.port}" if address else "",
            started_at=started.time.astimezone(UTC) if started else None,
            exit=how,
            waits="" if started or how else waits,
        )

    def _exit(
        self, record: SlurmRecord, task: str, job: SlurmJobEnd | None, stop: SlurmStop | None
    ) -> ExitReport | None:
        run = self._runs / record.run_id
        directory = run / task
        lost = (directory / "lost.json").exists()
        end = None if lost else self._files.read(directory / "exit.json", SlurmEnd)
        if end is None and (job is None or not lost):
            return None
        after_stop = stop is not None and task not in stop.ended
        if end is None or end.taken:
            if job is None:
                return None
            code = None if end is None or end.status is None else code_of_status(end.status)
            at = (end or job).time.astimezone(UTC)
            reason, message = spec.end(job, record.job)
            if end is None and reason is Reason.HOST_LOST:
                at = self._lost_at(record, at)
            if after_stop and stop is not None and (end is None or job.state not in spec.TAKEN):
                return stopped_exit(code, stop.reason, at)
            never = not any((run / other / "started.json").exists() for other in record.addresses)
            pulling = self._files.read(run / containers.FAILED, PullFailure)
            if never and pulling is not None:
                words = "" if pulling.missing else pulling.words
                reason, message = spec.failed_pull(pulling.image, words, pulling.node, self._images)
            elif never and (line := run_files.failed_setup(run, record.order)):
                reason, message = Reason.START_FAILED, f"{line} of its setup failed: {job.words.rstrip('.')}."
            elif never and job.state == "FAILED":
                reason, message = Reason.HOST_FAILED, f"Slurm could not start it: {job.words.rstrip('.')}."
            return ExitReport(code=code, reason=reason, message=message, finished_at=at)
        code = None if end.status is None else code_of_status(end.status)
        at = end.time.astimezone(UTC)
        if end.out_of_memory and not after_stop:
            message = "It was killed at its memory limit."
            return ExitReport(code=code, reason=Reason.OUT_OF_MEMORY, message=message, finished_at=at)
        order = StopOrder(0.0, stop.reason) if after_stop and stop else None
        return exit_report(code, at, 0.0, order, end.failure)

    def _lost_at(self, record: SlurmRecord, at: datetime) -> datetime:
        """The end of a replica that was lost with its node: before its peers failed, who may have failed of it."""
        failures = [end.time for end in self._ends(record) if end.status and not end.taken]
        return min([at, *(failure.astimezone(UTC) - _INSTANT for failure in failures)])

    def _is_settled(self, run_id: str, task: str) -> bool:
        """Whether the replica has an end that Slurm need not explain."""
        end = self._files.read(self._runs / run_id / task / "exit.json", SlurmEnd)
        return end is not None and not end.taken and (self._runs / run_id / task / "done.json").exists()

    def _has_ended(self, run_id: str, task: str) -> bool:
        directory = self._runs / run_id / task
        return (directory / "exit.json").exists() or (directory / "lost.json").exists()

    def _kill_all(self, run_id: str) -> None:
        """End every job of the run. Raises SlurmError, and OSError if one does not end."""
        record = self._record(run_id)
        if record is not None and record.job and (self._runs / run_id / "job.json").exists():
            return
        self.stop(run_id, 0.0)
        try:
            self._kill_jobs(run_id, record)
        except SlurmError:  # a job whose ranks have all ended ends by itself
            if record is None or not all(self._is_settled(run_id, task) for task in record.addresses):
                raise

    def _kill_jobs(self, run_id: str, record: SlurmRecord | None) -> None:
        begun, pause = time.monotonic(), _PAUSE_S
        killed = False
        while active := self._active_jobs(run_id, record):
            waited = time.monotonic() - begun
            if waited > _KILL_TIMEOUT_S:
                raise SlurmError(0, f"job {', '.join(active)} of run {run_id} does not end")
            if (waited > _ENDS_ITSELF_S and not killed) or record is None or not record.launched:
                commands.kill(active)
                killed = True
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)

    def _active_jobs(self, run_id: str, record: SlurmRecord | None) -> list[str]:
        """The jobs of the run in which something may still run: not those whose ranks have all ended and whose nodes
        only run what the site has them do after a job."""
        settled = record is not None and all(self._is_settled(run_id, task) for task in record.addresses)
        ended = spec.ENDED | ({spec.COMPLETING} if settled else set())
        return [job.id for job in commands.jobs([spec.job_name(run_id)]) if job.state not in ended]

    def _record(self, run_id: str) -> SlurmRecord | None:
        path = self._runs / run_id / "run.json"
        if not is_run_id(run_id) or not path.exists():
            return None
        if run_id in self._launched_records:
            return self._launched_records[run_id]
        record = super()._record(run_id)
        if record is not None and record.launched:  # nothing in it changes any more
            self._launched_records[run_id] = record
        return record


def _handle(record: SlurmRecord) -> Handle:
    return Handle(**record.model_dump(include=set(Handle.model_fields)))
