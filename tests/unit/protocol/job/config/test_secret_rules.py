"""References to secrets: what a config may say of one."""

from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.training_input import parse_training_input


def test_variable_of_a_secret() -> None:
    account = "GOOGLE_APPLICATION_CREDENTIALS"
    table: list[tuple[dict[str, str], str]] = [
        ({"name": "WANDB_API_KEY"}, "WANDB_API_KEY"),
        ({"name": "hf", "env": "HF_TOKEN"}, "HF_TOKEN"),
        ({"name": "gcs", "file": "/run/secrets/gcs.json"}, "gcs_FILE"),
        ({"name": "gcs", "file": "/gcs.json", "env": account}, account),
        ({"name": "PATH", "file": "/a"}, "PATH_FILE"),
    ]
    found = [parse_training_input({"secrets": [reference]}).secrets[0] for reference, _ in table]
    assert [(one.canonical(), one.variable) for one in found] == table


@pytest.mark.parametrize(
    ("secrets", "field", "says"),
    [
        ([{}], "secrets[0].name", "is required"),
        ([{"name": "a-b"}], "secrets[0].name", "is not a secret's name"),
        ([{"name": "a" * 65}], "secrets[0].name", "at most 64"),
        ([{"name": "a", "env": "A=B"}], "secrets[0].env", "cannot be the name of a variable"),
        ([{"name": "a", "env": "TF_CONFIG"}], "secrets[0].env", "is a variable of the service"),
        ([{"name": "a", "env": "TRAINYARD_REPLICA"}], "secrets[0].env", "is a variable of the service"),
        ([{"name": "PATH"}], "secrets[0]", "is a variable of the service: name another one in env"),
        ([{"name": "a", "file": "key.json"}], "secrets[0].file", "must be an absolute path"),
        ([{"name": "a", "file": "/a/../b"}], "secrets[0].file", "must be an absolute path"),
        ([{"name": "a", "file": "/a/"}], "secrets[0].file", "must be an absolute path"),
        ([{"name": "a", "file": "/proc/self/mem"}], "secrets[0].file", "must not be below /proc"),
        ([{"name": "a", "value": "no"}], "job.training_input.secrets[0]", "Known here: name, env, file"),
        ([{"name": f"a{n}"} for n in range(21)], "secrets", "at most 20 secrets; it lists 21"),
        ("a", "secrets", "must be a list"),
    ],
)
def test_wrong_reference_is_refused_at_its_field(secrets: Any, field: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_training_input({"secrets": secrets})
    (violation,) = caught.value.violations
    assert violation.field == field
    assert says in violation.description
