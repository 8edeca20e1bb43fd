"""Parameters of a job, read from its arguments."""

import pytest

from trainyard_protocol.job.parameters import (
    MAX_PARAMETER_NAME,
    MAX_PARAMETER_VALUE,
    MAX_PARAMETERS,
    number_of,
    parameter_name,
    parameters_of,
)


@pytest.mark.parametrize(
    ("args", "parameters"),
    [
        (["--lr", "0.1", "--epochs=5"], {"lr": "0.1", "epochs": "5"}),
        (["-lr", "0.1", "-v"], {"lr": "0.1", "v": "true"}),
        (["--learning-rate", "-1e-3"], {"learning_rate": "-1e-3"}),
        (["--layers", "64", "64", "--bias"], {"layers": "64 64", "bias": "true"}),
        (["--name", "a=b"], {"name": "a=b"}),
        (["--lr", "1", "--lr", "2"], {"lr": "2"}),
        (["train", "optimizer.lr=0.1", "+db=mysql", "++x=", "~y"], {"optimizer.lr": "0.1", "db": "mysql", "x": ""}),
        (["--flag", "--", "--no-option", "key=1"], {"flag": "true", "key": "1"}),
        (["--text", "two words", "--empty="], {"text": "two words", "empty": ""}),
        (["---", "--", "=", "--=3", "1=2"], {}),
        ([], {}),
    ],
)
def test_arguments_are_names_and_values(args: list[str], parameters: dict[str, str]) -> None:
    assert parameters_of(args) == parameters


def test_parameters_beyond_the_limits_are_left_out_and_long_values_are_cut() -> None:
    many = parameters_of([f"--p{number}=1" for number in range(MAX_PARAMETERS + 1)] + ["--p0=2"])
    assert (len(many), many["p0"], f"p{MAX_PARAMETERS}" in many) == (MAX_PARAMETERS, "2", False)
    assert parameters_of(["--" + "x" * (MAX_PARAMETER_NAME + 1), "1"]) == {}
    assert parameters_of(["--x", "y" * (MAX_PARAMETER_VALUE + 1)]) == {"x": "y" * MAX_PARAMETER_VALUE}
    assert [parameter_name(name) for name in ("--a-b", "++a.b", "-")] == ["a_b", "a.b", "-"]


@pytest.mark.parametrize(
    ("value", "number"),
    [("0.1", 0.1), ("-1e-3", -0.001), (".5", 0.5), (" 3 ", 3.0)]
    + [(text, None) for text in ("", "nan", "inf", "1e999", "0x10", "adam", "1 2", "1_000", "\u0663")],
)
def test_the_number_of_a_value(value: str, number: float | None) -> None:
    assert number_of(value) == number
