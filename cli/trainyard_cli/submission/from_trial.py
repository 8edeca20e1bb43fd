"""`--from-trial`: the config of a trial, with its hyperparameters among the arguments."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard_cli.submission import config_file
from trainyard_cli.submission.config_file import ConfigFile
from trainyard_cli.submission.flags import JobFlags
from trainyard_protocol.errors import InvalidArgument

if TYPE_CHECKING:
    from trainyard_cli.client import Client


def trial_config(
    client: "Client", name: str, user_args: Sequence[str], notify: Callable[[str], None], flags: JobFlags
) -> tuple[ConfigFile, JobFlags]:
    """The config of a trial, or of the best one of a study, and `user_args` after its arguments; and the flags of the
    new job. It has no jobDir: the new job gets one of its own. Without --sweep, --metric and --goal say which trial is
    the best. Raises InvalidArgument for a job that is neither."""
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
    return config, flags


def _best(client: "Client", study: str, metric: str, goal: str) -> int:
    view = client.trials(study, metric, goal)
    if view.best is not None:
        return view.best
    message = f"{study} has no best trial: none has reported {view.metric_tag} without failing."
    hint = f" They reported {', '.join(view.reported)}: add --metric NAME." if view.reported else ""
    raise InvalidArgument(f"{message}{hint} Or name a trial: {study}/1.")
