from typing import Any

import pytest

from trainer.arguments import Arguments, parse_arguments


def test_arguments_all_have_defaults() -> None:
    assert parse_arguments([]) == Arguments(
        model="cnn",
        task=None,
        strategy="auto",
        parallel="shard-map",
        precision="float32",
        data="digits",
        held_out_data=None,
        sharding="auto",
        cache=False,
        stream=False,
        augment=(),
        input_shape=None,
        classes=None,
        epochs=None,
        steps=None,
        batch_size=16,
        accumulate=1,
        optimizer=None,
        weight_decay=0.0,
        learning_rate=None,
        learning_rate_scaling="linear",
        warmup=0.2,
        seed=0,
        job_dir="./output",
        keep=3,
        checkpoint_every=0,
        save_seconds=0.0,
        evaluate_every=1,
        best=None,
        early_stopping=0,
        histograms=False,
        profile=None,
        log_every=10,
        heartbeat=30.0,
    )


def test_arguments_take_the_last_job_dir_which_the_service_appends() -> None:
    arguments = parse_arguments(["--job-dir", "mine", "--epochs", "2", "--job-dir", "gs://bucket/job"])
    assert (arguments.epochs, arguments.job_dir) == (2, "gs://bucket/job")


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--input-shape", "32,32,3"], "input_shape", (32, 32, 3)),
        (["--input-shape", "32x32x3"], "input_shape", (32, 32, 3)),
        (["--input-shape", "128"], "input_shape", (128,)),
        (["--warmup", "0"], "warmup", 0.0),
        (["--best", "error:min"], "best", ("error", "min")),
        (["--profile=20-29"], "profile", (20, 29)),
        (["--learning-rate", "1e-3"], "learning_rate", 0.001),
        (["--checkpoint-every", "0"], "checkpoint_every", 0),
        (["--cache"], "cache", True),
        (["--batch_size=32"], "batch_size", 32),
        (["--job_dir", "a_b"], "job_dir", "a_b"),
        (["--job-dir=a_b"], "job_dir", "a_b"),
    ],
)
def test_arguments_are_typed(argv: list[str], field: str, value: Any) -> None:
    assert getattr(parse_arguments(argv), field) == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--epoch", "5"], "unrecognized arguments: --epoch 5"),
        (["--epochs", "0"], "0 is not a whole number of at least 1"),
        (["--epochs", "five"], "five is not a whole number of at least 1"),
        (["--batch-size", "-1"], "-1 is not a whole number of at least 1"),
        (["--learning-rate", "0"], "0 is not a number above 0"),
        (["--learning-rate", "nan"], "nan is not a finite number"),
        (["--learning-rate", "fast"], "fast is not a finite number"),
        (["--seed", "-1"], "-1 is not a whole number of at least 0"),
        (["--warmup", "1"], "1 is not at least 0 and below 1"),
        (["--heartbeat", "-1"], "-1 is not a number of at least 0"),
        (["--input-shape", "32,x"], "is not a whole number of at least 1"),
        (["--best", "loss"], "loss is not METRIC:min or METRIC:max"),
        (["--profile", "20-10"], "20-10 is not FIRST-LAST"),
        (["--model", "vgg"], "invalid choice: 'vgg'"),
        (["--strategy", "tpu"], "invalid choice: 'tpu'"),
    ],
)
def test_invalid_arguments_are_named_and_end_with_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_arguments(argv)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
