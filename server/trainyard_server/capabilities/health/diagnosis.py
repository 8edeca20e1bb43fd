"""Findings of the server for `trainyard doctor`: stuck runs, jobs that cannot start, damage and disk usage."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

from trainyard_protocol.answers.health import Finding
from trainyard_protocol.fields import sized
from trainyard_protocol.states import JobState, ReplicaState, RunState
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import live_runs
from trainyard_server.services.health.stopped import of_database
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.base.probes import DatabaseProbe, Unwritable
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.failures import Failure, failure_of, failure_reason
from trainyard_server.storage.uploads import SCHEME

STOPPING_SLACK_S = 300.0
"""The longest time that a run may be STOPPING beyond its grace period."""

PREPARING_S = 1800.0
"""The longest time that a run may be PREPARING: time to download packages and images of some gigabytes."""

UPLOAD_KEPT_S = 30 * 86400.0
"""The time after its last upload for which a package that no unfinished job uses is kept, at least."""

_STUCK = {
    "never": (
        "It waits forever, unless an agent with more resources connects.",
        "Request less (`jobs cancel`, then submit again), or add such an agent.",
    ),
    "no-mount": (
        "It starts as soon as an agent offers the mount to its project.",
        "Add the mount to the file of an agent (--mounts) and restart that; or cancel the job, if the name is wrong.",
    ),
    "no-engine": (
        "It starts as soon as the engine answers.",
        "Start Docker on that machine, fix the problem that its agent reports, or cancel the job.",
    ),
    "no-disk": (
        "It starts as soon as there is room.",
        "Free some space there: `trainyard agents list` has each agent's disks.",
    ),
}
"""Kinds of waiting that do not end by themselves, with their meaning and what to do."""

_TOP = 5


class Diagnosis:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def live_runs(self) -> tuple[str, ...] | None:
        """The runs that have not ended; None if the database cannot be used."""
        try:
            with self._backend.store.read() as reader:
                return tuple(run.run_id for run in reader.live_runs())
        except Exception as error:
            if failure_reason(error) is None:
                raise
            return None

    def findings(self) -> tuple[Finding, ...]:
        """All findings; may take seconds. Without the database they are `unknown`."""
        findings: list[Finding] = []
        for part in (self._database, self._jobs, self._disk):
            try:
                findings += part()
            except Exception as error:
                failure = failure_of(error)
                if failure is None:
                    raise
                return (*findings, _of_failure(failure))
        return tuple(findings)

    def _database(self) -> Iterator[Finding]:
        with closing(DatabaseProbe(self._backend.store.url)) as probe:
            try:
                yield of_database(probe.facts())
            except Unwritable as error:
                yield _problem("database", f"It answers, but {error}.", "No job can be accepted or continued.")

    def _jobs(self) -> Iterator[Finding]:
        now = self._backend.clock()
        with self._backend.store.read() as reader:
            names = {row.agent_id: AgentInfo.model_validate(row.info).name for row in reader.agents()}
            problems = [
                problem
                for run, gang in live_runs(reader)
                for problem in self._of_run(reader, run, gang, names.get(run.agent_id, run.agent_id), now)
            ]
            problems += [
                _problem("jobs", f"{_name(job)} is QUEUED and {job.waiting}.", *_STUCK[job.waiting_kind])
                for job in reader.queued()
                if job.waiting_kind in _STUCK
            ]
            counts = reader.job_counts(visible=None)
        yield from problems
        if not problems:
            live = counts.get(JobState.PREPARING, 0) + counts.get(JobState.RUNNING, 0)
            waiting = counts.get(JobState.QUEUED, 0)
            found = f"{_count(live, 'job')} prepared or running, {waiting} waiting; none is stuck."
            yield Finding(check="jobs", status="ok", found=found)

    def _of_run(
        self, reader: Reader, run: RunRow, gang: list[ReplicaRow], agent: str, now: datetime
    ) -> Iterator[Finding]:
        name = f"Run {run.number} of {_name(reader.job_by_key(run.job_key))}"
        unknown = [replica.task for replica in gang if replica.state is ReplicaState.UNKNOWN]
        if unknown:
            yield _problem(
                "runs",
                f"{name}: the state of {', '.join(unknown)} is unknown, since the agent {agent} is silent.",
                "They may still run. The job continues or ends when the agent is back, or its lease expires.",
                f"Start the agent {agent} again, or its machine.",
            )
        if run.state is RunState.STOPPING:
            for_s = (now - _since_stopping(reader, run)).total_seconds()
            if for_s <= self._backend.settings.grace_s + STOPPING_SLACK_S:
                return
            alive = [replica.task for replica in gang if replica.state is not ReplicaState.EXITED]
            left = f": {', '.join(alive)} did not end" if alive else ": the end of its logs is missing"
            yield _problem(
                "runs",
                f"{name} has been stopping for {_for(for_s)}{left}.",
                f"Its resources on the agent {agent} stay allocated, and the job does not end.",
                f"Check the agent {agent} (`trainyard status`, its log). Processes that survive SIGKILL hang in "
                "the kernel: only a restart of that machine helps.",
            )
        elif run.state is RunState.PREPARING and (now - run.created_at).total_seconds() > PREPARING_S:
            doing = f", now: {run.activity}" if run.activity else "; its agent has not reported on it"
            yield _problem(
                "runs",
                f"{name} has been prepared for {_for((now - run.created_at).total_seconds())}{doing}.",
                "Its resources are allocated, and nothing is computed.",
                "A large image or a slow package index may need the time; else `jobs cancel`, and read the "
                f"log of the agent {agent}.",
            )

    def _disk(self) -> Iterator[Finding]:
        logs = _largest(self._backend.settings.data_dir / "logs")
        if logs:
            top = ", ".join(f"{name} {sized(size)}" for name, size in logs.most_common(_TOP))
            found = f"All jobs together have {sized(logs.total())} of log lines; most have: {top}."
            yield Finding(check="logs", status="ok", found=found)
        yield from self._unused_uploads()

    def _unused_uploads(self) -> Iterator[Finding]:
        before = int(time.time() - UPLOAD_KEPT_S)
        old = self._backend.uploads.older_than(before)
        if not old:
            return
        with self._backend.store.read() as reader:
            used = {
                uri.removeprefix(SCHEME).partition("/")[0]
                for job in reader.unfinished(with_studies=True)
                for uri in job.training_input.get("packageUris", ())
            }
        unused = [path for path in old if path.name not in used]
        if not unused:
            return
        kept = [word for path in old if path.name in used for word in ("!", "-name", path.name)]
        chosen = ["-maxdepth", "1", "-type", "f", "!", "-newermt", f"@{before}", *kept]
        yield Finding(
            check="uploads",
            status="problem",
            found=f"{_count(len(unused), 'uploaded package')} of {sized(sum(map(_size, unused)))} were not used for "
            f"{UPLOAD_KEPT_S / 86400:.0f} days.",
            meaning="They use disk space. A job that needs one of them again uploads it again.",
            advice="Remove them on the server's machine. What is uploaded again in the meantime stays.",
            command=shlex.join(["find", str(old[0].parent.absolute()), *chosen, "-delete"]),
        )


def _of_failure(failure: Failure) -> Finding:
    """The finding in place of those that need the database. Damage is one of its own: all else passes."""
    found = f"Runs, jobs and the database could not be checked: {failure.reason}."
    if not failure.is_damage:
        return Finding(check="database", status="unknown", found=f"{found} {failure.remedy}")
    return _problem("database", found, "Some or all jobs cannot be read, and no new one is safe.", failure.remedy)


def _since_stopping(reader: Reader, run: RunRow) -> datetime:
    times = [e.time for e in reader.events(run.job_key) if e.run == run.number and e.after == RunState.STOPPING]
    return times[-1] if times else run.created_at


def _largest(logs: Path) -> Counter[str]:
    """The size in bytes of each job's log, by `project/job`."""
    sizes: Counter[str] = Counter()
    for directory in logs.glob("*/*/"):
        sizes[f"{directory.parent.name}/{directory.name}"] = sum(map(_size, directory.rglob("*")))
    return sizes


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:  # removed meanwhile
        return 0


def _problem(check: str, found: str, meaning: str, advice: str = "") -> Finding:
    return Finding(check=check, status="problem", found=found, meaning=meaning, advice=advice)


def _name(job: JobRow) -> str:
    return f"the job {job.job_id} of {job.project}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _for(seconds: float) -> str:
    whole = str(timedelta(seconds=int(seconds)))
    return whole if seconds >= 3600 else f"{seconds / 60:.0f} minutes"
