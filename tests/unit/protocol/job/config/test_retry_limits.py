"""Retry rules and the time for which a failed replica is kept: what a config may say of them."""

from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.training_input import parse_training_input


def test_rules_are_returned_as_they_were_sent() -> None:
    rules = [{"exitCodes": [1, 255], "count": 100, "otherHost": True}, {"log": "p" * 512}]
    rows: list[dict[str, Any]] = [{"retry": rules, "keepOnFailure": "86400s"}, {"retry": []}]
    for scheduling in rows:
        assert parse_training_input({"scheduling": scheduling}).canonical() == {"scheduling": scheduling}


@pytest.mark.parametrize(
    ("scheduling", "field", "says"),
    [
        ({"retry": {"log": "x"}}, "retry", "must be a list; this is a mapping."),
        ({"retry": [{"log": "x"}] * 17}, "retry", "may have at most 16 rules; it has 17."),
        ({"retry": [{}]}, "retry[0]", "must have either exitCodes or log"),
        ({"retry": [{"exitCodes": [1], "log": "x"}]}, "retry[0]", "must have either exitCodes or log"),
        ({"retry": [{"exitCodes": 33}]}, "retry[0].exit_codes", "must be a list"),
        (
            {"retry": [{"exitCodes": [1] * 256}]},
            "retry[0].exit_codes",
            "may list at most 255 exit codes; it lists 256.",
        ),
        ({"retry": [{"exitCodes": [1, 256]}]}, "retry[0].exit_codes[1]", "from 1 to 255; this is 256."),
        ({"retry": [{"log": "x" * 513}]}, "retry[0].log", "at most 512 characters; this has 513."),
        ({"retry": [{"log": "x", "count": 0}]}, "retry[0].count", "must be between 1 and 100; this is 0."),
        ({"retry": [{"log": "x", "otherHost": "maybe"}]}, "retry[0].other_host", "must be true or false"),
        ({"keepOnFailure": "0s"}, "keep_on_failure", "must be more than 0s and at most 86400s (a day); this is 0s."),
        ({"keepOnFailure": "86401s"}, "keep_on_failure", "this is 86401s."),
        ({"keepOnFailure": "10m"}, "keep_on_failure", "must be a duration in seconds such as '3600s'"),
    ],
)
def test_wrong_values_are_refused_with_what_is_allowed(scheduling: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_training_input({"scheduling": scheduling})
    (violation,) = caught.value.violations
    assert (violation.field, says in violation.description) == (f"scheduling.{field}", True), violation
