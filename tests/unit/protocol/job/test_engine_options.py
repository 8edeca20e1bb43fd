"""Engine options: what a job may ask for at all, and what its operator allows."""

from pathlib import Path
from typing import Any

import pytest

from trainyard_cli.submission.flags import ENGINE_OPTIONS
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.engine_allowance import EngineAllowance, KubernetesAllowance, SlurmAllowance, violations
from trainyard_protocol.job.engine_options import KubernetesOptions, SlurmOptions
from trainyard_protocol.job.machines import Catalog, load_catalog
from trainyard_protocol.job.training_input import parse_training_input

ALL: dict[str, dict[str, Any]] = {
    "slurm": {
        "account": "vision",
        "qos": "high",
        "constraint": "[a100*2&h100]",
        "reservation": "r.1",
        "exclusive": True,
        "setup": ["module load cuda/12", "export A=1  # comment"],
    },
    "kubernetes": {
        "labels": {"team": "vision", "example.com/x": ""},
        "annotations": {"k8s.v1.cni.cncf.io/networks": '[{"name": "rdma"}]'},
        "nodeSelector": {"topology.kubernetes.io/zone": "a"},
        "serviceAccount": "trainer",
        "resources": {"rdma/hca": 1},
        "capabilities": ["IPC_LOCK"],
        "queue": "team-a",
    },
}
SITE = """\
engineOptions:
  slurm:
    account: [vision]
    qos: [high, low]
    constraint: "*"
    reservation: ["*"]
    exclusive: true
    setup: [module load cuda/12, "export A=1  # comment"]
  kubernetes:
    labels: {team: "*", example.com/x: [""]}
    annotations: {k8s.v1.cni.cncf.io/networks: "*"}
    nodeSelector: {topology.kubernetes.io/zone: [a]}
    serviceAccount: [trainer]
    resources: {rdma/hca: [1, 2]}
    capabilities: [IPC_LOCK]
    queue: {research: [team-a], "*": [shared]}
"""


def catalog(tmp_path: Path, text: str) -> Catalog:
    (tmp_path / "site.yaml").write_text(text)
    return load_catalog(tmp_path / "site.yaml")


def refusals(asked: Any, site: Catalog, project: str = "research") -> dict[str, str]:
    options = parse_training_input({"engineOptions": asked}).engine_options
    found = violations(options, site.engine_options, project, site.file)
    return {violation.field.removeprefix("engine_options."): violation.description for violation in found}


def test_options_are_returned_as_they_were_sent_and_allowed_by_the_operators_file(tmp_path: Path) -> None:
    assert parse_training_input({"engineOptions": ALL}).canonical() == {"engineOptions": ALL}
    assert refusals(ALL, catalog(tmp_path, SITE)) == {}
    assert refusals({"kubernetes": {"queue": "shared"}}, catalog(tmp_path, SITE), "other") == {}


def test_flags_and_allow_list_have_each_option() -> None:
    messages, allowances = {"slurm": SlurmOptions, "kubernetes": KubernetesOptions}, EngineAllowance.model_fields
    assert ENGINE_OPTIONS.keys() == messages.keys() == allowances.keys()
    for engine, message, allowance in (
        ("slurm", SlurmOptions, SlurmAllowance),
        ("kubernetes", KubernetesOptions, KubernetesAllowance),
    ):
        names = {field.alias for field in message.model_fields.values()}
        assert set(ENGINE_OPTIONS[engine]) == names == {field.alias for field in allowance.model_fields.values()}


def test_what_is_not_allowed_is_refused_with_what_is_and_by_which_file(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    asked: dict[str, Any] = {
        "slurm": {"qos": "top", "setup": ["module load cuda/12", "rm -rf ~"]},
        "kubernetes": {"labels": {"owner": "me"}, "resources": {"rdma/hca": 4}, "queue": "team-a"},
    }
    nothing = "nothing is allowed"
    by = f"in {file}, the server's file of --machine-types)."
    assert refusals(asked, catalog(tmp_path, SITE), "other") == {
        "slurm.qos": f"'top' is not allowed here; allowed: high, low (engineOptions.slurm.qos {by}",
        "slurm.setup[1]": "'rm -rf ~' is not allowed here; allowed: module load cuda/12, export A=1  # comment "
        f"(engineOptions.slurm.setup {by}",
        "kubernetes.labels": f"owner: 'me' is not allowed here; {nothing} (engineOptions.kubernetes.labels {by}",
        "kubernetes.resources": "rdma/hca: '4' is not allowed here; allowed: 1, 2 "
        f"(engineOptions.kubernetes.resources {by}",
        "kubernetes.queue": f"'team-a' is not allowed here; allowed: shared (engineOptions.kubernetes.queue.other {by}",
    }
    assert len(refusals(ALL, catalog(tmp_path, ""))) == 14
    nothing = "nothing is: the operator allows values in a file of --machine-types, and this server has none."
    assert refusals({"slurm": {"exclusive": True}}, load_catalog()) == {
        "slurm.exclusive": f"'true' is not allowed here; {nothing}"
    }


@pytest.mark.parametrize(
    ("asked", "field", "says"),
    [
        ({"slurm": {"qos": "a b"}}, "slurm.qos", "must be a name of letters, digits and _.@+-; this is 'a b'."),
        ({"slurm": {"constraint": "a100 --uid=0"}}, "slurm.constraint", "must be features of nodes, such as a100"),
        ({"slurm": {"setup": ["a\nb"]}}, "slurm.setup[0]", "a command of a shell on one line of at most 1000"),
        ({"slurm": {"setup": [" "]}}, "slurm.setup[0]", "a command of a shell"),
        ({"slurm": {"setup": ["true"] * 21}}, "slurm.setup", "at most 20 entries; it has 21."),
        ({"slurm": {"setup": "module load x"}}, "slurm.setup", "must be a list"),
        ({"slurm": {"exclusive": "yes"}}, "slurm.exclusive", "must be true or false"),
        ({"kubernetes": {"labels": {"trainyard.dev/run": "x"}}}, "kubernetes.labels", "keys below trainyard.dev are"),
        ({"kubernetes": {"labels": {"app.kubernetes.io/name": "x"}}}, "kubernetes.labels", "keys below kubernetes.io"),
        ({"kubernetes": {"annotations": {"kueue.x-k8s.io/queue-name": "x"}}}, "kubernetes.annotations",
         "keys below k8s.io are not a job's to set"),
        ({"kubernetes": {"labels": {"a b": "x"}}}, "kubernetes.labels", "has the key 'a b'; a key is a name such as"),
        ({"kubernetes": {"labels": {"a": 1}}}, "kubernetes.labels", "has 1 for a; a value is a string"),
        ({"kubernetes": {"labels": ["a"]}}, "kubernetes.labels",
         "must be a mapping of names to values; this is a list"),
        ({"kubernetes": {"annotations": {"a": "x" * 1001}}}, "kubernetes.annotations", "at most 1000 characters"),
        ({"kubernetes": {"resources": {"cpu": 1}}}, "kubernetes.resources", "an extended resource, such as rdma/hca"),
        ({"kubernetes": {"resources": {"rdma/hca": 0}}}, "kubernetes.resources", "between 1 and 1000; this is 0."),
        ({"kubernetes": {"capabilities": ["ipc_lock"]}}, "kubernetes.capabilities[0]", "a capability such as IPC_LOCK"),
        ({"kubernetes": {"serviceAccount": "A"}}, "kubernetes.service_account", "the name of an object in the cluster"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_what_is_allowed(asked: Any, field: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_training_input({"engineOptions": asked})
    (violation,) = caught.value.violations
    assert (violation.field, says in violation.description) == (f"engine_options.{field}", True), violation


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  slurm:\n    qos: high",
         ':3: engineOptions.slurm.qos: must be a list of the allowed values, or "*" for any.'),
        ("  slurm: {partition: [a]}", ":2: engineOptions.slurm.partition: there is no such entry; allowed: account,"),
        ("  kubernetes:\n    capabilities: '*'",
         ":3: engineOptions.kubernetes.capabilities: must list what is allowed"),
        ("  kubernetes:\n    serviceAccount: ['*']", ":3: engineOptions.kubernetes.serviceAccount: must list what"),
        ("  kubernetes:\n    labels:\n      team: vision", ":4: engineOptions.kubernetes.labels.team: must be a list"),
    ],
)  # fmt: skip
def test_allow_list_that_is_wrong_is_named_with_file_line_and_entry(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        catalog(tmp_path, f"engineOptions:\n{text}\n")
    assert f"{tmp_path / 'site.yaml'}{says}" in caught.value.message
