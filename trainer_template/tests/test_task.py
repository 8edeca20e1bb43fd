import pytest

from trainer import predict
from trainer.task import Arguments, parse_arguments


def test_arguments_all_have_defaults() -> None:
    assert parse_arguments([]) == Arguments(
        epochs=5, batch_size=16, learning_rate=0.002, seed=0, job_dir="./output", keep=3, log_every=10
    )


def test_arguments_take_the_last_job_dir_which_the_service_appends() -> None:
    arguments = parse_arguments(["--job-dir", "mine", "--epochs", "2", "--job-dir", "gs://bucket/job"])
    assert (arguments.epochs, arguments.job_dir) == (2, "gs://bucket/job")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--epoch", "5"], "unrecognized arguments: --epoch 5"),
        (["--epochs", "0"], "0 is not a whole number of at least 1"),
        (["--epochs", "five"], "five is not a whole number of at least 1"),
        (["--batch-size", "-1"], "-1 is not a whole number of at least 1"),
        (["--learning-rate", "0"], "0 is not a number above 0"),
        (["--learning-rate", "nan"], "nan is not a number above 0"),
        (["--seed", "-1"], "-1 is not a whole number of at least 0"),
    ],
)
def test_arguments_that_are_wrong_are_named_and_end_with_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_arguments(argv)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_predict_without_a_model_is_one_line_and_1(job_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main(["--model", job_dir]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"python -m trainer.predict: there is no model in {job_dir}\n"
