"""Text of `jobs why`: why a job waits, which jobs hold what it needs, and what would start it. Pure."""

from datetime import datetime

from trainyard_cli.output.jobs import formats
from trainyard_cli.output.log.log_screen import elapsed, local_time
from trainyard_protocol.answers.why import HolderView, QueueExplanationView

_RESUBMIT = frozenset({"priority", "replicas", "machine-type"})


def text(view: QueueExplanationView, project: str, now: datetime) -> str:
    """Text for a person. Jobs of other projects are shown with their project."""
    lines = [f"{view.job_id}: {view.state}. {view.summary}"]
    if not view.kind:
        return lines[0]
    lines.append(f"It needs {view.needs}. Its priority is {view.priority}, its position {view.position}.")
    room = "has room, reserved for jobs ahead" if view.kind == "room" else "has room"
    if view.agents:
        rows = [[f"  {fit.agent}", fit.has, fit.free, fit.lacks or room] for fit in view.agents]
        lines += ["", formats.table(["  AGENT", "HAS", "FREE", "FOR THIS JOB"], rows)]
    if view.holders:
        rows = [
            [f"  {_name(job.job_id, job.project, project)}", job.agent, job.holds, str(job.priority), *_times(job, now)]
            for job in view.holders
        ]
        header = ["  HELD BY", "AGENT", "HOLDS", "PRIORITY", "SINCE", "ENDS AT THE LATEST"]
        lines += ["", formats.table(header, rows)]
    if count := view.hidden_holders:
        others = f"{count} {'job' if count == 1 else 'jobs'} of other projects"
        lines += [f"  and {others}"] if view.holders else ["", f"Held by {others}."]
    if view.ahead:
        rows = [
            [f"  {job.position}", _name(job.job_id, job.project, project), str(job.priority), job.needs]
            for job in view.ahead
        ]
        lines += ["", formats.table(["  AHEAD", "JOB", "PRIORITY", "NEEDS"], rows)]
        if hidden := view.position - 1 - len(view.ahead):
            lines.append(f"  and {hidden} more")
    lines.append("")
    if view.changes:
        lines += ["It would start now with any one of:"]
        lines += [f"  - {change.message}" for change in view.changes]
        if any(change.kind in _RESUBMIT for change in view.changes):
            lines.append("A submitted job's request cannot be changed: cancel the job and submit it again.")
    else:
        lines.append(view.nothing)
    return "\n".join(lines)


def _times(holder: HolderView, now: datetime) -> list[str]:
    if holder.left_over:
        return ["ended, being stopped", ""]
    if holder.running_since is None:
        return [str(holder.state), ""]
    until = local_time(holder.ends_by.isoformat()) if holder.ends_by is not None else ""
    return [f"runs for {elapsed(holder.running_since.isoformat(), now)}", until]


def _name(job_id: str, owner: str, project: str) -> str:
    return job_id if owner == project else f"{job_id} ({owner})"
