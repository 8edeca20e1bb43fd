"""Config that is a custom job of Vertex AI: a `CustomJobSpec`, as `gcloud ai custom-jobs create --config` takes it, or
a whole `CustomJob`, as its API does. It is translated as the server translates one; flags change the training input,
and the jobSpec in it follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic.alias_generators import to_snake

from trainyard_cli.submission import config_file
from trainyard_cli.submission.config_file import ConfigFile
from trainyard_cli.submission.flags import JobFlags
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.parsing import parse, parse_job

if TYPE_CHECKING:
    from trainyard_protocol.job.custom_jobs import CustomJob

LOCATION = "us-central1"
"""The location of a custom job without --region: that of Vertex AI's clients."""

_TRAINING = "trainingInput"
_POOLS, _JOB_SPEC = "worker_pool_specs", "job_spec"
_BESIDE = ("display_name", "labels", "encryption_spec", "name", "create_time", "state")
"""Fields of a CustomJob that a file may have beside those of its jobSpec."""

_SPECS = {"customJob": "jobSpec", "tuningJob": "trialJobSpec"}
"""The jobSpec in each key of a training input that was made from a job of Vertex AI."""

_ROLES = ("masterConfig", "workerConfig", "parameterServerConfig", "evaluatorConfig")


def translated(config: ConfigFile, name: str) -> ConfigFile:
    """The config with the training input of its custom job; any other config as it is. The custom job is called `name`
    where the file does not name it. Raises InvalidArgument with lines of the file."""
    keys = {to_snake(key): key for key in config.data}
    if "training_input" in keys or not {_POOLS, _JOB_SPEC} & keys.keys():
        return config
    from trainyard_protocol.job import custom_job_training
    from trainyard_protocol.job.custom_jobs import CustomJob

    body, at = _custom_job(config.data, keys)
    body.setdefault("displayName", name or config.path.stem)
    try:
        custom_job = parse(CustomJob, body, "custom_job")
        request = custom_job_training.create_request(custom_job, name, LOCATION)
    except InvalidArgument as error:
        violations = [_in_file(violation, at) for violation in error.violations]
        text = config_file.explain(violations, config, {})
        raise InvalidArgument(f"The custom job is not valid; nothing was created.\n{text}") from error
    data = {key: value for key, value in request.items() if key != "jobId"}
    return replace(config, data=data, located=partial(_located, custom_job, at))


def followed(body: dict[str, Any]) -> dict[str, Any]:
    """A create request whose job of Vertex AI, if it has one, has the changes of its training input."""
    sent = body.get(_TRAINING)
    if not isinstance(sent, Mapping) or not (key := _key(sent)):
        return body
    from trainyard_protocol.job import custom_job_training

    given, name = sent[key], _SPECS[key]
    changed = {**given, name: custom_job_training.followed(given[name], sent)}
    return {**body, _TRAINING: {**sent, key: changed}}


def add_arguments(data: dict[str, Any], arguments: Sequence[str]) -> bool:
    """Give the images of a custom job these arguments. False for any other job, which has them as `args`."""
    sent = data.get(_TRAINING)
    if not isinstance(sent, Mapping) or not _key(sent) or sent.get("pythonModule"):
        return False
    configs = {role: {**sent[role], "containerArgs": list(arguments)} for role in _ROLES if role in sent}
    data[_TRAINING] = {**sent, **configs}
    return True


def check_flags(data: dict[str, Any], origins: Mapping[str, str], flags: JobFlags) -> None:
    """Raises InvalidArgument for flags that a custom job cannot follow. `origins`: the flag by the path that it set."""
    sent = data.get(_TRAINING)
    if not isinstance(sent, Mapping) or _key(sent) != "customJob":
        return
    from trainyard_protocol.job import custom_job_training

    if flags.text("package_path") and "pythonPackageSpec" not in sent["customJob"]["jobSpec"]["workerPoolSpecs"][0]:
        raise InvalidArgument(
            "--package-path: this custom job of Vertex AI runs what its image has (containerSpec). Build an image with "
            "the program (--build DIR), or run it by a pythonPackageSpec with the image as its executorImageUri."
        )
    try:
        training = parse_job({**followed(data), "jobId": "job"}).training_input
        names = custom_job_training.differences(training)
    except InvalidArgument:  # values that are no job's are reported with all others
        return
    refused = [flag for path, flag in origins.items() if path.partition(".")[0] in names]
    if refused:
        raise InvalidArgument(
            f"{', '.join(dict.fromkeys(refused))}: a custom job of Vertex AI cannot say it, or not with these "
            "workerPoolSpecs. Change the file, or write the job with a trainingInput (docs/coming-from/google.md)."
        )


def _key(sent: Mapping[str, Any]) -> str:
    """The key of the job of Vertex AI that a training input was made from; "" without one."""
    for key, spec in _SPECS.items():
        given = sent.get(key)
        if isinstance(given, Mapping) and isinstance(given.get(spec), Mapping):
            return key
    return ""


def _custom_job(data: Mapping[str, Any], keys: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """The custom job of a file, and the path of its jobSpec in the file."""
    if _JOB_SPEC in keys:
        given = data[keys[_JOB_SPEC]]
        spec = _with_list_of_pools(given) if isinstance(given, Mapping) else given
        rest = {key: value for key, value in data.items() if key != keys[_JOB_SPEC]}
        return _named({**rest, "jobSpec": spec}), f"job.{_JOB_SPEC}"
    beside = {key: data[key] for name, key in keys.items() if name in _BESIDE}
    spec = _with_list_of_pools({key: value for key, value in data.items() if key not in beside})
    return _named({**beside, "jobSpec": spec}), "job"


def _named(body: dict[str, Any]) -> dict[str, Any]:
    """The custom job with its displayName in one spelling."""
    given = body.pop("display_name", None)
    return {**body, "displayName": given} if given is not None else body


def _with_list_of_pools(spec: Mapping[str, Any]) -> dict[str, Any]:
    """One pool may stand in place of the list of pools."""
    return {
        key: [value] if to_snake(key) == _POOLS and isinstance(value, Mapping) else value for key, value in spec.items()
    }


def _located(custom_job: "CustomJob", at: str, violation: Violation) -> Violation:
    """A violation of the job with the field of the custom job in its file."""
    from trainyard_protocol.job.custom_job_training import renamed

    return _in_file(renamed(InvalidArgument([violation]), custom_job).violations[0], at)


def _in_file(violation: Violation, at: str) -> Violation:
    field = violation.field
    if field == "parent":
        field = "region"
    elif field.startswith("custom_job"):
        inner = field.removeprefix("custom_job")
        field = f"{at}{inner.removeprefix('.job_spec')}" if inner.startswith(".job_spec") else f"job{inner}"
    return replace(violation, field=field)
