"""Study around a job."""

from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_server.domain.configs.sweep import around


def test_ranges_are_around_the_numbers_that_are_a_choice() -> None:
    args = ["--learning-rate", "0.03", "--layers=4", "--seed", "7", "--num_epochs=5", "--opt", "adam", "--zero", "0"]
    study = around(args, "val_loss")
    assert study is not None
    assert (study["goal"], study["hyperparameterMetricTag"]) == ("MINIMIZE", "val_loss")
    low = {"parameterName": "learning-rate", "type": "DOUBLE", "minValue": 0.01, "maxValue": 0.09}
    whole = {"parameterName": "layers", "type": "INTEGER", "minValue": 2, "maxValue": 8}
    assert study["params"] == [low | {"scaleType": "UNIT_LOG_SCALE"}, whole | {"scaleType": "UNIT_LINEAR_SCALE"}]
    HyperparameterSpec.model_validate(study)


def test_ranges_are_around_overrides_of_hydra() -> None:
    study = around(["model.lr=0.03", "+trainer.max_steps=10", "db=mysql"], "accuracy")
    assert study is not None
    low = {"parameterName": "model.lr", "type": "DOUBLE", "minValue": 0.01, "maxValue": 0.09}
    assert study["params"][:1] == [low | {"scaleType": "UNIT_LOG_SCALE"}]
    assert (study["argumentStyle"], study["goal"]) == ("OVERRIDES", "MAXIMIZE")
