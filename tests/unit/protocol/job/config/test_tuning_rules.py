"""Rules of `hyperparameters` across its fields, each with the field at which it is reported."""

from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.validation import check
from trainyard_protocol.job.machines import default_catalog
from trainyard_protocol.job.parsing import parse_training_input

RATE = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0, "maxValue": 1}
OPTIMIZER = {"parameterName": "optimizer", "type": "CATEGORICAL", "categoricalValues": ["sgd", "adam"]}
LAYERS = {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 3}
SGD = {"parentCategoricalValues": {"values": ["sgd"]}}


def checked(spec: dict[str, Any]) -> None:
    ti = {"pythonModule": "trainer.task", "hyperparameters": spec}
    check(parse_training_input(ti), default_catalog())


def below(parent: dict[str, Any], *children: dict[str, Any]) -> dict[str, Any]:
    return {"params": [parent | {"childParameterSpecs": list(children)}]}


@pytest.mark.parametrize(
    "accepted",
    [
        {"params": [RATE], "maxTrials": 2, "maxParallelTrials": 5},  # all at once
        {"params": [OPTIMIZER, LAYERS], "algorithm": "GRID_SEARCH"},
        below(OPTIMIZER, RATE | SGD, LAYERS | SGD),
        *(
            {"params": [RATE | {"parameterName": name}], "argumentStyle": "OVERRIDES"}
            for name in ("lr", "model.lr", "+trainer.max_steps", "++a", "db/mysql@backup", "job-dir")
        ),
        below(LAYERS, below(OPTIMIZER | {"parentIntValues": {"values": ["2", 3]}}, RATE | SGD)["params"][0]),
    ],
)
def test_study_is_accepted(accepted: dict[str, Any]) -> None:
    checked(accepted)


@pytest.mark.parametrize(
    ("spec", "where", "says"),
    [({"params": []}, "params", "is empty: list the parameters"),
     ({"params": [LAYERS | {"parameterName": f"p{n}"} for n in range(101)]}, "params", "100 are allowed"),
     ({"params": [RATE], "maxTrials": 0}, "max_trials", "must be between 1 and 10000; this is 0."), ({"params": [RATE],
     "maxTrials": 10001}, "max_trials", "between 1 and 10000"), ({"params": [RATE], "maxParallelTrials": 0},
     "max_parallel_trials", "must be 1 or more"), ({"params": [RATE], "maxFailedTrials": -1}, "max_failed_trials",
     "must be 0 or more"), ({"params": [RATE], "enableTrialEarlyStopping": False, "earlyStopping": {"rule": "ASHA"}},
     "early_stopping", "does not fit enableTrialEarlyStopping: false. Remove one of the two."), ({"params": [RATE],
     "earlyStopping": {"reductionFactor": 4}}, "early_stopping.reduction_factor", "is only for the rule ASHA."),
     ({"params": [RATE], "earlyStopping": {"rule": "ASHA", "reductionFactor": 1}}, "early_stopping.reduction_factor",
     "must be between 2 and 10000; this is 1."), ({"params": [RATE], "earlyStopping": {"rule": "ASHA", "minSteps": -1}},
     "early_stopping.min_steps", "must be 1 or more, or 0"), ({"params": [RATE], "hyperparameterMetricTag": ""},
     "hyperparameter_metric_tag", "is empty. Name the metric that the program reports, or remove the field"),
     ({"params": [OPTIMIZER, RATE], "algorithm": "GRID_SEARCH"}, "params[1].type",
     "cannot be DOUBLE with GRID_SEARCH: list the values of 'rate' as discreteValues"), ({"params": [RATE,
     LAYERS | {"parameterName": "rate"}]}, "params[1].parameter_name",
     "'rate' is the name of another parameter already."), (below(OPTIMIZER,
     RATE | SGD | {"parameterName": "optimizer"}), "params[0].child_parameter_specs[0].parameter_name",
     "another parameter already"), *(({"params": [RATE | {"parameterName": name}]}, "params[0].parameter_name",
     "flag of the program") for name in ("", "--rate", "two words", "a=b", "ä")),
     *(({"params": [RATE | {"parameterName": name}], "argumentStyle": "OVERRIDES"}, "params[0].parameter_name",
     "cannot be overridden (NAME=VALUE)") for name in ("", "--rate", "a=b", "+", "+++a", "~a", "a b")),
     ({"params": [RATE | {"parameterName": "+a"}]}, "params[0].parameter_name",
     "A name with + needs argumentStyle: OVERRIDES."), ({"params": [RATE | {"parameterName": "job-dir"}]},
     "params[0].parameter_name", "by the service"),
     ({"params": [OPTIMIZER | {"categoricalValues": [str(n) for n in range(1001)]}]}, "params[0]",
     "may have 1000 categoricalValues; it has 1001."), ({"params": [RATE | SGD]}, "params[0].parent_categorical_values",
     "only for a parameter among child"), (below(RATE, LAYERS | SGD), "params[0].child_parameter_specs[0]",
     "cannot depend on 'rate', whose type is DOUBLE"), (below(OPTIMIZER, RATE), "params[0].child_parameter_specs[0]",
     "needs parentCategoricalValues with a value: with which values of 'optimizer' does 'rate' exist?"), (below(LAYERS,
     RATE | SGD), "params[0].child_parameter_specs[0].parent_categorical_values",
     "does not fit 'layers', whose type is INTEGER: use parentIntValues."), (below(OPTIMIZER,
     RATE | {"parentCategoricalValues": {"values": ["sgd", "adm"]}}),
     "params[0].child_parameter_specs[0].parent_categorical_values.values[1]",
     "'adm' is not a value of 'optimizer'. Did you mean \"adam\"?"), (below(LAYERS,
     RATE | {"parentIntValues": {"values": [4]}}), "params[0].child_parameter_specs[0].parent_int_values.values[0]",
     "4 is not a value of 'layers'.")],
)  # fmt: skip
def test_study_is_refused_with_one_message_at_the_field(spec: dict[str, Any], where: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked(spec)
    assert [violation.field for violation in caught.value.violations] == [f"hyperparameters.{where}"]
    assert says in caught.value.message
