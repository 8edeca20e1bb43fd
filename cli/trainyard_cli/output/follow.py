"""Following a job to its end: its log on a screen, each line once, then the verdict and the exit code."""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from contextlib import closing
from types import MappingProxyType

from trainyard_cli.client import EVERYTHING, Away, Back, Client, LogQuery
from trainyard_cli.output.log_screen import Screen, elapsed, moment
from trainyard_protocol.errors import NotFound
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_protocol.sync import LogDigest
from trainyard_protocol.views import JobDetail, LogEntry, LogSummary

INTERRUPTED = 130
TAIL_LINES = 10

_SHOWN = 8


def stream(
    client: Client, job: str, screen: Screen, *, wanted: LogQuery = EVERYTHING, follow: bool = True
) -> int:
    """Show the job's log until it has ended; without `follow`, what there is now. Returns the job's exit code
    (0 where it has none yet); 130 after Ctrl-C, which leaves the job as it is. Raises NotFound for a task
    that the job turns out not to have. What arrived is counted and digested, and compared with what the agents say: a
    difference is a warning, and no other exit code."""
    received: defaultdict[str, LogDigest] = defaultdict(LogDigest)
    task = wanted.task
    tails: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=TAIL_LINES))
    detail: JobDetail | None = None
    summary: LogSummary | None = None
    try:
        with closing(client.logs(job, wanted=wanted, follow=follow)) as events:
            for event in events:
                match event:
                    case LogEntry():
                        received[f"{event.run}/{event.task}"].add(event.stream, event.text)
                        tails[event.task].append(event.text)
                        screen.line(event)
                    case JobDetail():
                        _check_replica(event, job, task)
                        detail = event
                        screen.status(event)
                    case LogSummary():
                        summary = event
                    case Away():
                        screen.note(
                            f"The server is away ({event.reason}). The job goes on; the log will, too, "
                            "once the server is back..."
                        )
                    case Back():
                        screen.note("The server is back.")
        if detail is None or (follow and detail.state not in FINAL_JOB_STATES):
            detail = client.detail(job)
            _check_replica(detail, job, task)
    except KeyboardInterrupt:
        screen.close()
        screen.note(come_back(job))
        return INTERRUPTED
    finally:
        screen.close()
    if summary is not None:
        for line in complaints(summary, received, wanted):
            screen.note(line)
    if not follow and detail.state not in FINAL_JOB_STATES:
        return 0
    for line in conclusion(detail, tails):
        screen.note(line)
    return exit_code(detail)


def come_back(job: str) -> str:
    """What to say when the user stops looking."""
    return (
        f"\nThe job goes on. To see its log again:  jobs stream-logs {job}\n"
        f"To end it:                             jobs cancel {job}"
    )


def complaints(
    summary: LogSummary, received: Mapping[str, LogDigest], wanted: LogQuery = EVERYTHING
) -> list[str]:
    """What is to be said of each replica whose log is not what it wrote: fewer or more lines came, or others, or
    a quota has cut it. Pure."""
    said = []
    for name, count in summary.lines.items():
        run, _, replica = name.partition("/")
        if wanted.task and replica != wanted.task:
            continue
        whose = f"the log of {replica} (run {run})"
        if name in summary.kept:
            said.append(
                f"NOTE: {whose} went on, but the job's log quota was used up: "
                f"its lines from number {summary.kept[name]} on were not kept."
            )
        if wanted.hides:
            continue
        arrived = received.get(name) or LogDigest()
        expected = summary.sha256.get(name, "")
        if arrived.count != count:
            said.append(f"WARNING: {whose} has {count} lines; {arrived.count} arrived here.")
        elif expected and arrived.hexdigest() != expected:
            said.append(
                f"WARNING: {whose} is not what the replica wrote: {count} lines arrived, as many as there should be, "
                "but not with the digest that its agent computed of them. Some were damaged on the way or on a disk."
            )
    return said


def _check_replica(detail: JobDetail, job: str, task: str) -> None:
    names = dict.fromkeys(replica.task for run in detail.runs for replica in run.replicas)
    if task and names and task not in names:
        raise NotFound(f"Job [{job}] has no replica {task}; it has {_some(list(names))}.")


def _some(names: list[str]) -> str:
    if len(names) <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])} and {len(names) - _SHOWN} more"


def exit_code(detail: JobDetail) -> int:
    """0 only for a job that succeeded; else the code of the replica that failed first, else 1."""
    if detail.state is JobState.SUCCEEDED:
        return 0
    return detail.exit_code or 1


def conclusion(detail: JobDetail, tails: Mapping[str, Collection[str]] = MappingProxyType({})) -> list[str]:
    """The verdict in a few lines. `tails`: the last lines of each replica that were seen, for a verdict that
    brings none. Pure."""
    job = detail.job
    started = job.get("startTime") or job.get("createTime")
    took = f" after {elapsed(started, moment(job['endTime']))}" if started and job.get("endTime") else ""
    job_dir = job.get("trainingInput", {}).get("jobDir")
    where = [f"  Job dir: {job_dir}"] if job_dir else []
    headline = f"Job [{job.get('jobId')}] {_PAST[detail.state]}{took}."
    if detail.state is JobState.SUCCEEDED:
        return ["", headline, *where]
    verdict = detail.verdict
    lines = ["", headline]
    if verdict is None or not verdict.replica or detail.state is JobState.CANCELLED:
        said = str(job.get("errorMessage") or (verdict.message if verdict else ""))
        lines += [f"  {line}" for line in said.rstrip().splitlines()]
    else:
        code = f", exit code {verdict.exit_code}" if verdict.exit_code is not None else ""
        lines.append(f"  {verdict.replica} failed first ({verdict.reason}{code}):")
        lines += [f"  {line}" for line in verdict.message.rstrip().splitlines()]
        if last_lines := verdict.last_lines or tails.get(verdict.replica, ()):
            lines.append(f"  The last lines of {verdict.replica}:")
            lines += [f"    {line}" for line in last_lines]
    return [*lines, *where, f"  Exit code: {exit_code(detail)}"]


_PAST = {
    **{state: f"is {state}" for state in JobState},
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}
