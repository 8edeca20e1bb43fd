"""Variables of a job: what a config may say of them."""

from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.text import violation_message
from trainyard_protocol.job.config.validation import check_addresses
from trainyard_protocol.job.training_input import parse_training_input


def test_names_and_values_are_returned_as_they_were_sent() -> None:
    env = {
        "NCCL_DEBUG": "INFO",
        "_x": "",
        "LD_PRELOAD": "libtcmalloc.so",
        "camelCase": "a=b, c\n",
        "PYTHONUNBUFFERED": "0",
        "TMPDIR": "/scratch",
    }
    training_input = parse_training_input({"env": env})
    assert training_input.canonical() == training_input.snake_case() == {"env": env}


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (["A=1"], "must be a mapping of names to values; this is a list."),
        ({"A-B": "1"}, "has the name 'A-B'; the name of a variable is a letter or '_'"),
        ({"": "1"}, "has the name ''"),
        ({"A" * 129: "1"}, "at most 128 characters"),
        ({7: "1"}, "has the name 7"),
        ({"A": 1}, "has 1 for A; a value is a string: write it in quotes."),
        ({"A": True}, "has True for A"),
        ({"A": "a\0b"}, "with a NUL character"),
        ({"TF_CONFIG": "{}"}, "sets TF_CONFIG, a variable of the service: choose another name."),
        ({"TRAINYARD_REPLICA": "x"}, "sets TRAINYARD_REPLICA"),
        ({"STORAGE_EMULATOR_ROOTS": "x"}, "sets STORAGE_EMULATOR_ROOTS"),
        ({"PATH": "/bin"}, "sets PATH"),
        ({f"A{n}": "" for n in range(101)}, "may have at most 100 variables; it has 101."),
        ({"A": "é" * 2**18}, "may have at most 524,288 bytes of names and values; it has 524,289."),
    ],
)
def test_wrong_variables_are_refused_with_what_is_allowed(env: Any, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_training_input({"env": env})
    (violation,) = caught.value.violations
    assert (violation.field, says in violation.description) == ("env", True), violation


def test_arguments_that_are_too_long_together_are_refused() -> None:
    args = ["x" * 100_000] * 9
    check_addresses(parse_training_input({"args": args}))
    with pytest.raises(InvalidArgument) as caught:
        check_addresses(parse_training_input({"args": args, "env": {"A": "x" * 90_000}}))
    assert str(caught.value).startswith("Field: args Error: are too long: 990,012 bytes with the variables"), (
        caught.value
    )


def test_variable_that_no_program_can_get_is_refused_by_its_name() -> None:
    fits = {"LONG_ONE": "x" * (2**17 - 1 - len("LONG_ONE=")), "OTHER": "é" * 40_000}
    check_addresses(parse_training_input({"env": fits}))
    with pytest.raises(InvalidArgument) as caught:
        check_addresses(parse_training_input({"env": {**fits, "LONG_ONE": fits["LONG_ONE"] + "x"}}))
    (violation,) = caught.value.violations
    assert violation.field == "env.LONG_ONE"
    assert violation_message(violation) == (
        "env.LONG_ONE: is too long: 131,072 bytes; a variable with its name can have 131,071 on Linux. Write it to a "
        "file, and give the program the file's path."
    )
