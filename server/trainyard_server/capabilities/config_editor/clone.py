"""Clone of a job: a free id, the form of a new job, and the commands about the job. Pure."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard_protocol.answers.configs import CloneView, CommandView
from trainyard_server.capabilities.config_editor import resolved

_COUNTED = re.compile(r"(.*[A-Za-z0-9])_([2-9]|[1-9]\d{1,2})")
_MAX_ID = 128


def next_id(like: str, is_taken: Callable[[str], bool]) -> str:
    """A free id that follows `like`: `NAME_2` after `NAME`, `NAME_3` after `NAME_2`.

    A number at the end counts clones only where the id without it exists: `lr0_1` has no original `lr0`, so its clone
    is `lr0_1_2`. Calls `is_taken` a few times only, however many clones there are.
    """
    match = _COUNTED.fullmatch(like)
    base, count = (match[1], int(match[2])) if match and is_taken(match[1]) else (like, 1)

    def numbered(number: int) -> str:
        ending = f"_{number}"
        return base[: _MAX_ID - len(ending)].rstrip("_") + ending

    below, step = count, 1
    while is_taken(numbered(below + step)):
        below, step = below + step, step * 2
    above = below + step  # free, and `below` is taken
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (middle, above) if is_taken(numbered(middle)) else (below, middle)
    return numbered(above)


def clone(job_id: str, new_id: str, sent: Mapping[str, Any], labels: Mapping[str, str]) -> CloneView:
    """The form of a new job, filled from an old one. `sent` is its training input as plain values."""
    args = tuple(map(str, sent.get("args", ())))
    config = {key: value for key, value in sent.items() if key not in ("args", "jobDir")}
    return CloneView(
        job_id=new_id,
        config=resolved.as_yaml(resolved.document(config, {})),
        args=args,
        args_text=shlex.join(args),
        job_dir=new_job_dir(str(sent.get("jobDir", "")), job_id, new_id),
        labels=dict(labels),
    )


def new_job_dir(job_dir: str, job_id: str, new_id: str) -> str:
    """The job-dir of the clone: parts that are the old id become the new id."""
    return "/".join(new_id if part == job_id else part for part in job_dir.split("/"))


def commands(
    project: str, job_id: str, new_id: str, sent: Mapping[str, Any], labels: Mapping[str, str], tasks: Sequence[str]
) -> tuple[CommandView, ...]:
    """Shell commands about the job. `tasks` are the names of its replicas, the primary first."""
    project_flag = shlex.join(["--project", project])
    jobs = "trainyard jobs"
    again = dict(sent)
    if "jobDir" in again:
        again["jobDir"] = new_job_dir(str(again["jobDir"]), job_id, new_id)
    text = resolved.as_yaml(resolved.document(again, labels))
    end = _ending(text)
    submit = f"{jobs} submit training {new_id} {project_flag} --config - <<'{end}'\n{text}{end}"
    return (
        CommandView(name="describe", title="Describe it", command=f"{jobs} describe {job_id} {project_flag}"),
        CommandView(name="stream-logs", title="Follow its log", command=f"{jobs} stream-logs {job_id} {project_flag}"),
        CommandView(name="why", title="Why it waits, or what it does", command=f"{jobs} why {job_id} {project_flag}"),
        CommandView(
            name="explain", title="What a replica sees", command=f"{jobs} explain {job_id} {tasks[0]} {project_flag}"
        ),
        CommandView(name="clone", title="Submit it once more", command=submit),
    )


def _ending(text: str) -> str:
    """The delimiter of a here-document with this text."""
    word = "CONFIG"
    while word in text.splitlines():
        word += "_"
    return word
