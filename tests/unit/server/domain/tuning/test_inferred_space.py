"""The space of parameters of jobs, inferred from their values."""

from trainyard_protocol.job.hyperparameters import ParameterType, ScaleType
from trainyard_server.domain.tuning.importance import importances
from trainyard_server.domain.tuning.inferred_space import MOST, NOT_SET, inferred_space


def test_parameters_in_which_jobs_differ_have_types_and_scales() -> None:
    jobs = [
        {"lr": "1e-4", "layers": "2", "optimizer": "adam", "width": "8", "epochs": "5", "offset": "-0.5"},
        {"lr": "0.1", "layers": "4", "optimizer": "sgd", "width": "wide", "epochs": "5", "offset": "0.5"},
    ]
    spec, completed = inferred_space(jobs)
    kinds = {param.parameter_name: (param.type, param.scale_type) for param in spec.params}
    assert kinds == {
        "lr": (ParameterType.DOUBLE, ScaleType.UNIT_LOG_SCALE),
        "layers": (ParameterType.INTEGER, ScaleType.NONE),
        "optimizer": (ParameterType.CATEGORICAL, ScaleType.NONE),
        "width": (ParameterType.CATEGORICAL, ScaleType.NONE),
        "offset": (ParameterType.DOUBLE, ScaleType.NONE),
    }
    assert completed == jobs


def test_a_flag_that_some_jobs_have_is_a_parameter() -> None:
    spec, completed = inferred_space([{"augment": "true"}, {}])
    assert spec.params[0].categorical_values == (NOT_SET, "true")
    assert completed == [{"augment": "true"}, {"augment": NOT_SET}]


def test_equal_and_unordinary_values_make_no_mistake() -> None:
    table: list[tuple[list[dict[str, str]], list[str]]] = [
        ([], []),
        ([{}, {}], []),
        ([{"a": "1"}, {"a": "1"}], []),
        ([{"a": "1"}, {"a": "1.0"}], ["a"]),
        ([{"a": "1e308"}, {"a": "-1e308"}], ["a"]),
        ([{"a": "9" * 400}, {"a": "1"}], ["a"]),
        ([{"a": ""}, {"a": "x"}], ["a"]),
        ([{f"a{number}": str(job) for number in range(99)} for job in range(2)], [f"a{n}" for n in range(MOST)]),
    ]
    for jobs, names in table:
        spec, completed = inferred_space(jobs)
        assert [param.parameter_name for param in spec.params] == names, jobs
        importances(spec, [(job, 1.0) for job in completed])


def test_the_parameter_that_decides_is_the_most_important() -> None:
    jobs = [{"lr": rate, "seed": str(seed)} for rate in ("0.3", "0.1", "0.03") for seed in range(3)]
    spec, completed = inferred_space(jobs)
    measured = [(job, abs(float(job["lr"]) - 0.1) + int(job["seed"]) / 1000) for job in completed]
    importance = importances(spec, measured)
    assert importance["lr"] > 0.9 > importance["seed"]
