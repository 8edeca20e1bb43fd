"""The config of a job for another one: of a trial, with its hyperparameters among the arguments (`--from-trial`), and
of a job that runs again (`jobs rerun`)."""

import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard_cli.submission import config_file
from trainyard_cli.submission.comparison import is_flag
from trainyard_cli.submission.config_file import ConfigFile
from trainyard_cli.submission.flags import JobFlags
from trainyard_protocol.errors import InvalidArgument

if TYPE_CHECKING:
    from trainyard_cli.client import Client


_STAMP = re.compile(r"_\d{8}_\d{6}(_\d+)?$")


def trial_config(
    client: "Client", name: str, user_args: Sequence[str], notify: Callable[[str], None], flags: JobFlags
) -> tuple[ConfigFile, JobFlags, str]:
    """The config of a trial, or of the best one of a study, and `user_args` after its arguments; the flags of the new
    job, and the trial's name. It has no jobDir: the new job gets one of its own. Without --sweep, --metric and --goal
    say which trial is the best. Raises InvalidArgument for a job that is neither."""
    metric = goal = ""
    if not flags.given.get("sweep"):
        metric, goal = flags.text("metric"), flags.text("goal")
        flags = JobFlags({name: value for name, value in flags.given.items() if name not in ("metric", "goal")})
    trial = name if "." in name else f"{name}.{_best(client, name, metric, goal)}"
    sent: dict[str, Any] = client.get_job(trial)["trainingInput"]
    kept = {key: value for key, value in sent.items() if key != "jobDir"}
    kept["args"] = [*sent.get("args", ()), *user_args]
    study, _, number = trial.partition(".")
    notify(f"The config of trial {number} of {study}, with the arguments {shlex.join(kept['args'])}.")
    config = replace(config_file.of({"trainingInput": kept}), path=Path(f"{study}_trial_{number}"))
    return config, flags, trial


def _best(client: "Client", study: str, metric: str, goal: str) -> int:
    view = client.trials(study, metric, goal)
    if view.best is not None:
        return view.best
    message = f"{study} has no best trial: none has reported {view.metric_tag} without failing."
    hint = f" They reported {', '.join(view.reported)}: add --metric NAME." if view.reported else ""
    raise InvalidArgument(f"{message}{hint} Or name a trial: {study}/1.")


def rerun_config(
    client: "Client",
    job: str,
    new_job: str,
    changes: Sequence[tuple[str, str]],
    user_args: Sequence[str],
    notify: Callable[[str], None],
    flags: JobFlags,
) -> tuple[ConfigFile, str]:
    """The config of a job for another one, and the name of that. `user_args` replace its arguments, else `changes` are
    made in them. A job-dir of its own becomes one beside it: in the same one a program finds the end of the first. A
    program of `flags` replaces the job's packages."""
    found = client.get_job(job)
    sent: dict[str, Any] = dict(found["trainingInput"])
    name = new_job or f"{_STAMP.sub('', job.replace('.', '_'))}_{time.strftime('%Y%m%d_%H%M%S')}"
    args = list(user_args) or changed(sent.get("args", ()), changes)
    if args != list(sent.get("args", ())):
        sent["args"] = args
        notify(f"The arguments of {job}, changed: {shlex.join(args)}")
    if flags.text("package_path"):
        sent.pop("packageUris", None)
    directory = str(sent.get("jobDir", "")).rstrip("/")
    if directory and not flags.text("job_dir"):
        scheme, _, path = directory.rpartition("://")
        parent = path.rpartition("/")[0] or (path if scheme else "")
        sent["jobDir"] = f"{scheme}://{parent}/{name}" if scheme else f"{parent}/{name}"
        notify(f"Its job-dir is {sent['jobDir']} (--job-dir for another one).")
    data: dict[str, Any] = {"trainingInput": sent, **({"labels": found["labels"]} if found.get("labels") else {})}
    return replace(config_file.of(data), path=Path(job)), name


def changed(args: Sequence[str], changes: Sequence[tuple[str, str]]) -> list[str]:
    """Arguments with other values: of `--lr 0.1`, `--lr=0.1` and `lr=0.1`, wherever the flag is. A flag that is not
    there is added, as the others are written.

    >>> changed(["--lr", "0.1", "-v"], [("lr", "0.2"), ("epochs", "5")])
    ['--lr', '0.2', '-v', '--epochs=5']
    """
    words = list(args)
    for name, value in changes:
        words = _with(words, name, value)
    return words


def _with(words: Sequence[str], name: str, value: str) -> list[str]:
    bare = name.lstrip("-").replace("_", "-")
    result: list[str] = []
    is_there = False
    rest = iter(range(len(words)))
    for at in rest:
        flag, equals, _ = words[at].partition("=")
        if flag.lstrip("-").replace("_", "-") != bare or (name.startswith("-") and flag != name):
            result.append(words[at])
            continue
        if not equals and not flag.startswith("-"):
            result.append(words[at])  # the value of another flag, or a word by itself
            continue
        is_there = True
        if equals:
            result.append(f"{flag}={value}")
        elif at + 1 < len(words) and not is_flag(words[at + 1]):
            result += [flag, value]
            next(rest)
        else:
            result.append(f"{flag}={value}")
    if is_there:
        return result
    if not name.startswith("-") and words and all("=" in word and not word.startswith("-") for word in words):
        return [*result, f"{name}={value}"]
    return [*result, f"{name if name.startswith('-') else f'--{name}'}={value}"]
