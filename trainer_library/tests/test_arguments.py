from typing import Any

import pytest

from trainyard_trainer.arguments import parse_arguments

VALUES: dict[str, tuple[str, Any]] = {
    "": ("job_dir", "./output"),
    "--input-shape 32,32,3": ("input_shape", (32, 32, 3)),
    "--input-shape 32x32x3": ("input_shape", (32, 32, 3)),
    "--input-shape 128": ("input_shape", (128,)),
    "--warmup 0": ("warmup", 0.0),
    "--best error:min": ("best", ("error", "min")),
    "--learning-rate 1e-3": ("learning_rate", 0.001),
    "--checkpoint-every 0": ("checkpoint_every", 0),
    "--mesh data=2,fsdp=4": ("mesh", (("data", 2), ("fsdp", 4))),
    "--cache": ("cache", True),
    "--batch_size=32": ("batch_size", 32),
    "--job_dir a_b": ("job_dir", "a_b"),
    "--job-dir=a_b": ("job_dir", "a_b"),
    "--job-dir mine --epochs 2 --job-dir gs://bucket/job": ("job_dir", "gs://bucket/job"),  # the service's
}

REFUSALS = {
    "--epoch 5": "unrecognized arguments: --epoch 5",
    "--epochs 0": "0 is not a whole number of at least 1",
    "--epochs five": "five is not a whole number of at least 1",
    "--batch-size -1": "-1 is not a whole number of at least 1",
    "--learning-rate 0": "0 is not a number above 0",
    "--learning-rate nan": "nan is not a finite number",
    "--learning-rate fast": "fast is not a finite number",
    "--seed -1": "-1 is not a whole number of at least 0",
    "--warmup 1": "1 is not at least 0 and below 1",
    "--heartbeat -1": "-1 is not a number of at least 0",
    "--input-shape 32,x": "is not a whole number of at least 1",
    "--mesh data=2,model=4": "is not sizes of data, fsdp and tensor",
    "--freeze (": "( is no regular expression",
    "--best loss": "loss is not METRIC:min or METRIC:max",
    "--model vgg": "invalid choice: 'vgg'",
    "--strategy tpu": "invalid choice: 'tpu'",
}


def test_arguments_are_typed() -> None:
    parsed = {line: (field, getattr(parse_arguments(line.split()), field)) for line, (field, _) in VALUES.items()}
    assert parsed == VALUES


def test_invalid_arguments_are_named_and_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {}
    for line, message in REFUSALS.items():
        with pytest.raises(SystemExit) as exit_:
            parse_arguments(line.split())
        error = capsys.readouterr().err
        if exit_.value.code != 2 or message not in error:
            wrong[line] = (exit_.value.code, error)
    assert not wrong
