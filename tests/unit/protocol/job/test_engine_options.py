"""Engine options: what a job may ask for at all, and what its operator allows."""

from pathlib import Path
from typing import Any

from trainyard_cli.submission.flag_types import ENGINE_OPTIONS
from trainyard_protocol.job.engine_allowance import EngineAllowance, KubernetesAllowance, SlurmAllowance, violations
from trainyard_protocol.job.keys.engine_options import KubernetesOptions, SlurmOptions
from trainyard_protocol.job.machines import Catalog, load_catalog
from trainyard_protocol.job.parsing import parse_training_input

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
