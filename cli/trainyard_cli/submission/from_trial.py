"""`--from-trial`: the config of a trial, with its hyperparameters among the arguments."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainyard_cli.client import Client
from trainyard_cli.submission import config_file
from trainyard_cli.submission.config_file import ConfigFile
from trainyard_protocol.errors import InvalidArgument


def trial_config(
    client: Client, name: str, user_args: Sequence[str], notify: Callable[[str], None]
) -> ConfigFile:
    """The config of a trial, or of the best one of a study, and `user_args` after its arguments. It has no jobDir: the
    new job gets one of its own. Raises InvalidArgument for a job that is neither."""
    trial = name if "." in name else f"{name}.{_best(client, name)}"
    sent: dict[str, Any] = client.get_job(trial)["trainingInput"]
    kept = {key: value for key, value in sent.items() if key != "jobDir"}
    kept["args"] = [*sent.get("args", ()), *user_args]
    study, _, number = trial.partition(".")
    notify(f"The config of trial {number} of {study}, with the arguments {shlex.join(kept['args'])}.")
    return replace(config_file.of({"trainingInput": kept}), path=Path(f"{study}_trial_{number}"))


def _best(client: Client, study: str) -> int:
    view = client.trials(study)
    if view.best is None:
        message = f"{study} has no best trial: none has reported {view.metric_tag} without failing."
        raise InvalidArgument(f"{message} Name one: {study}/1.")
    return view.best
