"""A job once more: a free id, a config for the form of a new job, and the commands that speak of it. Pure."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard_protocol.config_views import CloneView, CommandView
from trainyard_server.domain.configs import resolved as resolving

_COUNTED = re.compile(r"(.*[A-Za-z0-9])_([1-9]\d{0,2})")
_MAX_ID = 128


def next_id(like: str, is_taken: Callable[[str], bool]) -> str:
    """A free id that continues another: `NAME_2` after `NAME`, `NAME_3` after `NAME_2`.

    Asks `is_taken` a few times only, however many clones there are.
    """
    match = _COUNTED.fullmatch(like)
    base, count = (match[1], int(match[2])) if match else (like, 1)

    def numbered(number: int) -> str:
        ending = f"_{number}"
        return base[: _MAX_ID - len(ending)].rstrip("_") + ending

    below, step = count, 1
    while is_taken(numbered(below + step)):
        below, step = below + step, step * 2
    above = below + step  # free, while `below` is taken: somewhere between a free one follows a taken one
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (middle, above) if is_taken(numbered(middle)) else (below, middle)
    return numbered(above)


def clone(job_id: str, new_id: str, sent: Mapping[str, Any], labels: Mapping[str, str]) -> CloneView:
    """The form of a new job, filled with an old one. `sent` is its training input as plain values."""
    args = tuple(map(str, sent.get("args", ())))
    rest = {key: value for key, value in sent.items() if key not in ("args", "jobDir")}
    return CloneView(
        job_id=new_id,
        config=resolving.as_yaml(resolving.document(rest, {})),
        args=args,
        args_text=shlex.join(args),
        job_dir=new_job_dir(str(sent.get("jobDir", "")), job_id, new_id),
        labels=dict(labels),
    )


def new_job_dir(job_dir: str, job_id: str, new_id: str) -> str:
    """The directory for the clone: one that is named after the job is named after the new one."""
    return "/".join(new_id if part == job_id else part for part in job_dir.split("/"))


def commands(
    project: str,
    job_id: str,
    new_id: str,
    sent: Mapping[str, Any],
    labels: Mapping[str, str],
    tasks: Sequence[str],
) -> tuple[CommandView, ...]:
    """What can be typed about the job. `tasks` are the names of its replicas, the primary first."""
    there = shlex.join(["--project", project])
    jobs = "trainyard jobs"
    once_more = dict(sent)
    if "jobDir" in once_more:
        once_more["jobDir"] = new_job_dir(str(once_more["jobDir"]), job_id, new_id)
    text = resolving.as_yaml(resolving.document(once_more, labels))
    end = _ending(text)
    submit = f"{jobs} submit training {new_id} {there} --config - <<'{end}'\n{text}{end}"
    return (
        CommandView(name="describe", title="Describe it", command=f"{jobs} describe {job_id} {there}"),
        CommandView(
            name="stream-logs", title="Follow its log", command=f"{jobs} stream-logs {job_id} {there}"
        ),
        CommandView(
            name="why", title="Why it waits, or what it does", command=f"{jobs} why {job_id} {there}"
        ),
        CommandView(
            name="explain",
            title="What a replica sees",
            command=f"{jobs} explain {job_id} {tasks[0]} {there}",
        ),
        CommandView(name="clone", title="Submit it once more", command=submit),
    )


def _ending(text: str) -> str:
    """A word that ends a here-document, and is no line of it."""
    word = "CONFIG"
    while word in text.splitlines():
        word += "_"
    return word
