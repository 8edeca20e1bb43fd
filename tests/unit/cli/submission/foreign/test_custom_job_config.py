"""Custom jobs of Vertex AI as configs of `jobs submit training`."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from trainyard_cli.submission import submit as submission
from trainyard_cli.submission.flags import JobFlags
from trainyard_cli.submission.foreign import custom_job_config
from trainyard_cli.submission.sweep import swept
from trainyard_cli.v1_client import V1Client
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.custom_job_training import check_given
from trainyard_protocol.job.parsing import parse_job
from trainyard_protocol.job.training_input import Job

IMAGE = "me/digits:1"
PACKAGE = {"executorImageUri": "me/base:1", "pythonModule": "trainer.task", "packageUris": ["gs://b/t.tar.gz"]}


def pool(count: int = 1, **program: Any) -> dict[str, Any]:
    spec = program or {"containerSpec": {"imageUri": IMAGE, "args": ["a"], "env": [{"name": "A", "value": "1"}]}}
    return {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": count, **spec}


def drafted(
    directory: Path, content: object, *, name: str = "job", args: tuple[str, ...] = (), **flags: Any
) -> tuple[submission.JobDraft, Job]:
    """The draft of a config with flags, and its create request as the server checks it."""
    path = directory / "v.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    draft = submission.draft(path, JobFlags(flags), current_dir=directory, name=name, user_args=args)
    with submission.in_users_terms(draft):
        job = parse_job(draft.named(draft.name or "job"))
        check_given(job)
    return draft, job


def test_every_form_of_a_custom_job_is_the_job_that_it_is(tmp_path: Path) -> None:
    single = {"machine_spec": {"machine_type": "n1-standard-4"}, "container_spec": {"image_uri": IMAGE}}
    forms: dict[str, dict[str, Any]] = {
        "CustomJobSpec": {"workerPoolSpecs": [pool()]},
        "in snake_case": {"worker_pool_specs": [{**single, "replica_count": 1}]},
        "a mapping in place of the list": {"workerPoolSpecs": {**single, "replicaCount": 1}},
        "CustomJob": {"displayName": "d", "jobSpec": {"workerPoolSpecs": [pool()]}, "labels": {"a": "b"}},
        "CustomJob in snake_case": {"display_name": "d", "job_spec": {"worker_pool_specs": single}},
        "fields of both": {"displayName": "d", "labels": {"a": "b"}, "workerPoolSpecs": [pool()]},
        "as it is returned": {"name": "x", "state": "y", "displayName": "d", "jobSpec": {"workerPoolSpecs": [pool()]}},
    }
    wrong = {}
    for form, content in forms.items():
        _, job = drafted(tmp_path, content)
        training = job.training_input
        given = training.custom_job
        assert given is not None
        named = given.display_name == ("d" if "d" in content.values() else "job")
        labelled = job.labels == content.get("labels", {})
        if training.image_uri != IMAGE or training.master_type != "n1-standard-4" or not named or not labelled:
            wrong[form] = job
    assert not wrong


def test_flags_change_the_job_and_its_job_spec_alike(tmp_path: Path) -> None:
    two = {"workerPoolSpecs": [pool(), {}, pool(2)], "scheduling": {"timeout": "60s"}}
    _, job = drafted(
        tmp_path, two, args=("--lr", "1"), region="europe-west4", job_dir="gs://b/out", master_machine_type="local-2",
        parameter_server_count=3, master_accelerator={"type": "nvidia-tesla-t4", "count": "2"},
        master_image_uri="me/other:2", env=(("A", "2"), ("B", "3")), service_account="me@p", enable_web_access=True,
        band="batch", labels=({"team": "vision"},), set_secrets=({"KEY": "key"},), mount=(("data", ""),),
    )  # fmt: skip
    given = job.training_input.custom_job
    assert given is not None
    assert given.job_spec["workerPoolSpecs"][0] == {
        "machineSpec": {"machineType": "local-2", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2},
        "replicaCount": "1",
        "containerSpec": {"imageUri": "me/other:2", "args": ["--lr", "1"],
         "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]},
    }  # fmt: skip
    assert given.job_spec["workerPoolSpecs"][2]["replicaCount"] == "3"
    assert given.job_spec["scheduling"] == {"timeout": "60s", "strategy": "SPOT"}
    assert (job.training_input.region, job.labels) == ("europe-west4", {"team": "vision"})


def test_package_pools_get_arguments_module_and_packages(tmp_path: Path) -> None:
    pools = {"workerPoolSpecs": [pool(pythonPackageSpec=PACKAGE), pool(2, pythonPackageSpec=PACKAGE)]}
    draft, _ = drafted(tmp_path, pools, args=("--x",), module_name="other.task", packages=(("gs://b/other.tar.gz",),))
    client = cast("V1Client", SimpleNamespace(create_job=dict))
    created = submission.submit(draft, client, upload=lambda *_: "", notify=print)
    check_given(parse_job(created))
    spec = created["trainingInput"]["customJob"]["jobSpec"]
    changed = {**PACKAGE, "pythonModule": "other.task", "packageUris": ["gs://b/other.tar.gz"], "args": ["--x"]}
    assert [item["pythonPackageSpec"] for item in spec["workerPoolSpecs"]] == [changed, changed]
    (tmp_path / "train.py").write_text("print(1)\n")
    draft, _ = drafted(
        tmp_path, {"workerPoolSpecs": [pool(pythonPackageSpec={})]}, package_path=str(tmp_path / "train.py")
    )
    assert draft.program is not None
    assert draft.named("a")["trainingInput"]["customJob"]["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"] == {
        "pythonModule": draft.program.module
    }


REFUSED: dict[str, dict[str, Any]] = {
    "--worker-count": {"worker_count": 2},
    "--band": {"band": "production"},
    "--keep-on-failure": {"keep_on_failure": "600s"},
    "--python-version": {"python_version": "3.7"},
    "--sweep": {"sweep": (swept("lr", ["1", "2"]),)},
    "--package-path": {"package_path": "."},
}


def test_flags_that_a_custom_job_cannot_say_are_refused_by_name(tmp_path: Path) -> None:
    wrong = {}
    for flag, given in REFUSED.items():
        with pytest.raises(InvalidArgument) as caught:
            drafted(tmp_path, {"workerPoolSpecs": [pool()]}, **given)
        if flag not in caught.value.message:
            wrong[flag] = caught.value.message
    assert not wrong


def test_errors_have_the_line_and_the_field_of_the_file(tmp_path: Path) -> None:
    spec = "workerPoolSpecs:\n- machineSpec: {machineType: n1-standard-4}\n  replicaCount: 1\n"
    rows = {
        f"{spec}  containerSpec: {{imageUri: a}}\n  oops: 1\n": ':5: "oops" is not a field of workerPoolSpecs[0].',
        f"{spec}  containerSpec: {{imageUri: a}}\ntensorboard: t\n": ":5: tensorboard: is not supported",
        spec: ":2: workerPoolSpecs[0]: must have either container_spec or python_package_spec.",
        f"{spec}  containerSpec: {{imageUri: a, env: [{{name: PATH, value: b}}]}}\n": (
            ":4: workerPoolSpecs[0].containerSpec.env: sets PATH, a variable of the service"
        ),
        f"displayName: d\njobSpec:\n  {spec.replace(chr(10), chr(10) + '  ')}  oops: 1\n": (
            ':6: "oops" is not a field of jobSpec.workerPoolSpecs[0].'
        ),
        "workerPoolSpecs: []\n": ":1: workerPoolSpecs: is required: a list of 1 to 4 pools",
        "jobSpec: 1\n": ":1: jobSpec: must be a mapping; this is the number 1.",
    }
    wrong = {}
    for text, says in rows.items():
        with pytest.raises(InvalidArgument) as caught:
            drafted(tmp_path, text)
        if f"{tmp_path / 'v.yaml'}{says}" not in caught.value.message:
            wrong[text] = caught.value.message
    assert not wrong


def test_tuning_job_of_a_study_that_runs_again_follows_its_training_input() -> None:
    given = {"displayName": "d", "trialJobSpec": {"workerPoolSpecs": [pool()]}}
    config = {"imageUri": IMAGE, "containerArgs": ["b"]}
    sent = {"tuningJob": given, "masterType": "local-2", "masterConfig": config, "jobDir": "gs://b/again"}
    changed = custom_job_config.followed({"trainingInput": sent})["trainingInput"]["tuningJob"]["trialJobSpec"]
    assert changed["baseOutputDirectory"] == {"outputUriPrefix": "gs://b/again"}
    (first,) = changed["workerPoolSpecs"]
    assert first["machineSpec"]["machineType"] == "local-2"
    assert first["containerSpec"]["args"] == ["b"]
