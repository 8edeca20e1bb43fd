from typing import Any

import pytest

from trainyard_protocol.job.config import text as config_text
from trainyard_protocol.job.config.validation import check
from trainyard_protocol.job.machines import default_catalog, gang
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_server.capabilities.config_editor import resolved


def made(**given: Any) -> TrainingInput:
    training_input = parse_training_input(given)
    check(training_input, default_catalog())
    return training_input


def resolve(training_input: TrainingInput) -> dict[str, Any]:
    replicas = resolved.groups(gang(training_input, default_catalog()), training_input)
    return resolved.resolved(training_input, replicas)


def test_filled_lines_are_those_that_nobody_sent() -> None:
    training_input = made(pythonModule="t", scheduling={"maxRunningTime": "60s"}, masterConfig={"diskConfig": {}})
    text = resolved.as_yaml(resolve(training_input))
    filled = resolved.filled_lines(text, resolved.as_sent(training_input))
    lines = text.splitlines()
    shown = {line.strip().partition(":")[0] for number, line in enumerate(lines, 1) if number in filled}
    assert shown == {"scaleTier", "masterType", "priority", "useChiefInTfConfig"}


@pytest.mark.parametrize(
    "given",
    [
        {"args": ["--lr", "0.1", "", "yes", "a\nb", "<script>", "\u00fc", "- x", "# y"]},
        {"jobDir": "gs://b/d", "region": "on", "scheduling": {"maxWaitTime": "1800s", "priority": 7}},
        {"useChiefInTfConfig": "True", "runtimeVersion": "2.10"},
    ],
)
def test_as_yaml_is_the_same_job_when_it_is_read_again(given: dict[str, Any]) -> None:
    training_input = made(pythonModule="t", **given)
    text = resolved.as_yaml(resolved.document(resolved.as_sent(training_input), {"a": "no"}))
    data = config_text.read(text, "yaml").data
    assert parse_training_input(data["trainingInput"]).canonical() == training_input.canonical()
    assert data["labels"] == {"a": "no"}
