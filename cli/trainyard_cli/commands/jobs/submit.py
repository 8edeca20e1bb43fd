"""`jobs submit training` and `jobs validate`: their flags. `submitting`, which takes ten times as long to import as the
flags, is imported when a command runs: not for its help, nor for a flag that the shell completes."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.service.completion import job_names
from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags, kms_flags
from trainyard_cli.commands.shared.options import (
    TrialName,
    WithUserArgs,
    follow_options,
    job_argument,
    output_options,
    server_options,
)
from trainyard_cli.settings import Target
from trainyard_cli.submission.flag_types import SetArgument
from trainyard_cli.submission.flags import job_flags, pop_flags

if TYPE_CHECKING:
    from trainyard_cli.commands.jobs.submitting import JobRequest
    from trainyard_cli.output.jobs.formats import Output

from_trial_option = click.option(
    "--from-trial",
    type=TrialName(),
    shell_complete=job_names,
    help="Take the config and the hyperparameters of this trial of a study, or of its best one. Arguments after -- "
    "follow them.",
)
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The job's YAML or JSON file, or - for standard input. Flags override it.",
)

stream_logs_option = click.option(
    "--stream-logs", is_flag=True, help="Show the log until the job ends, and exit with the job's exit code."
)

no_diff_option = click.option(
    "--no-diff",
    is_flag=True,
    help="Record the commit that the job comes from without the diff of what was changed since. TRAINYARD_NO_DIFF=1 "
    "does so for every job.",
)


@click.command(cls=WithUserArgs)
@click.argument("job", required=False)
@config_option
@from_trial_option
@job_flags
@no_diff_option
@click.option("--async", "asynchronous", is_flag=True, help="Return once the job is queued (the default).")
@stream_logs_option
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="Accept a job of this name that exists with the same content; with another one, show the differences.",
)
@follow_options
@kms_flags
@gcloud_wide_flags
@server_options
@output_options
def submit_training(target: Target, output: "Output", **parameters: Any) -> int | None:
    """Submit a training job. Arguments after -- go to the training program.

    The default JOB is made from the name of the config and the time.
    """
    if parameters["asynchronous"] and parameters["stream_logs"]:
        raise click.UsageError("argument --async: At most one of --async | --stream-logs can be specified.")
    return _submit(target, output, _request(parameters), parameters, if_not_exists=parameters["if_not_exists"])


@click.command(cls=WithUserArgs)
@job_argument
@click.argument("new_job", metavar="[NEW_JOB]", required=False)
@click.option(
    "--set-arg",
    "set_args",
    type=SetArgument(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Another value for an argument of the program, such as epochs=10. May be given several times.",
)
@job_flags
@no_diff_option
@stream_logs_option
@follow_options
@server_options
@output_options
def rerun(target: Target, output: "Output", job: str, new_job: str | None, **parameters: Any) -> int:
    """Submit a job again, with its packages and its config.

    Flags replace values of the config. Arguments after -- replace all of the program's; --set-arg changes single ones.
    The default NEW_JOB is JOB with the time. A job-dir becomes one beside that of JOB.
    """
    if parameters["set_args"] and parameters["user_args"]:
        raise click.UsageError("argument --set-arg: give either --set-arg or all arguments after --.")
    given = {**parameters, "job": new_job, "config": None, "from_trial": None}
    request = replace(_request(given), rerun_of=job, set_args=parameters["set_args"])
    return _submit(target, output, request, parameters)


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def submit_prediction() -> None:
    """Refused: batch prediction is not offered."""
    raise click.ClickException(
        "Batch prediction is not offered here: jobs are training jobs. A training job with an image or a script "
        "of your own can read a model and write predictions."
    )


@click.command(cls=WithUserArgs)
@click.argument("job", required=False)
@config_option
@from_trial_option
@job_flags
@server_options
@output_options
def validate(target: Target, output: "Output", **parameters: Any) -> None:
    """Check a job and show its replicas, without submitting it."""
    from trainyard_cli.commands.jobs import submitting

    submitting.validate(target, output, _request(parameters))


def _submit(
    target: Target, output: "Output", request: "JobRequest", parameters: dict[str, Any], *, if_not_exists: bool = False
) -> int:
    """Submit the job, and follow it if the flags say so. Raises a usage error for a flag that needs --stream-logs."""
    for flag in ("raw", "cancel_on_interrupt"):
        if parameters[flag] and not parameters["stream_logs"]:
            raise click.UsageError(f"argument --{flag.replace('_', '-')}: It needs --stream-logs.")
    from trainyard_cli.commands.jobs import submitting

    return submitting.submit(
        target,
        output,
        request,
        stream_logs=parameters["stream_logs"],
        if_not_exists=if_not_exists,
        raw=parameters["raw"],
        cancel_on_interrupt=parameters["cancel_on_interrupt"],
    )


def _request(parameters: dict[str, Any]) -> "JobRequest":
    """The job that the flags ask for. Raises a usage error for a --staging-bucket that is none."""
    from trainyard_cli.commands.jobs.submitting import JobRequest

    flags = pop_flags(parameters)
    bucket = flags.text("staging_bucket")
    name = bucket.removeprefix("gs://").rstrip("/")
    if bucket and (not name or "/" in name or not bucket.startswith("gs://")):
        raise click.UsageError(f"argument --staging-bucket: Must be of form gs://BUCKET; this is {bucket!r}.")
    return JobRequest(
        flags,
        parameters["job"] or "",
        parameters["config"],
        parameters["from_trial"] or "",
        parameters["user_args"],
        parameters["words"],
        no_diff=parameters.get("no_diff", False),
    )
