"""Places of the event files of a job."""

from typing import Any

from trainyard_cli.capabilities.tensorboard.places import chosen, places_of
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.states import JobState


def job(job_dir: str, **training: Any) -> JobDetail:
    return JobDetail(job={"jobId": "j", "trainingInput": training}, job_dir=job_dir, state=JobState.RUNNING)


def test_places_are_the_job_dir_and_what_arguments_name_on_gs() -> None:
    """Each row: a training input, and the places beside the job-dir /jobs/j."""
    script = ["bash", "-c", "python t.py --epochs 3 --log_dir='gs://b/in a shell' --x=gs://b/none"]
    rows: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
        ({}, []),
        ({"args": ["--log_dir=gs://b/a"]}, [("log_dir", "gs://b/a")]),
        ({"args": ["--log-dir", "gs://b/a", "--logdir=gs://b/b"]}, [("log-dir", "gs://b/a"), ("logdir", "gs://b/b")]),
        ({"args": ["-model_dir=gs://b/a", "--model-dir=gs://b/c"]}, [("model_dir", "gs://b/a"), ("model-dir", "gs://b/c")]),
        ({"args": ["--output_dir", "gs://b/a/", "--logDir=gs://b/a/logs"]}, [("output_dir", "gs://b/a/")]),
        ({"args": ["log_dir=gs://b/hydra"]}, [("log_dir", "gs://b/hydra")]),
        ({"args": ["--log_dir=gs://b/a", "--log_dir=gs://b/b"]}, [("log_dir", "gs://b/a"), ("log_dir-2", "gs://b/b")]),
        ({"args": ["--log_dir=gs://b/a"], "masterConfig": {"containerArgs": ["--log_dir=gs://b/a"]}}, [("log_dir", "gs://b/a")]),
        ({"workerConfig": {"containerCommand": script}}, [("log_dir", "gs://b/in a shell")]),
        ({"evaluatorConfig": {"containerArgs": ["--log_dir='gs://b/a --x"]}}, []),
        ({"args": ["--log_dir", "--model_dir", "gs://b/a"]}, [("model_dir", "gs://b/a")]),
        ({"args": ["--log_dir=/data", "--log_dir=s3://b/a", "--log_dir=gs://", "--data=gs://b/a", "gs://b/c"]}, []),
        ({"args": ["--data_log_dir=gs://b/a", "--log_dir"]}, []),
    ]  # fmt: skip
    wrong = []
    for training, expected in rows:
        first, *others = places_of(job("/jobs/j", **training))
        found = [(place.name, place.location) for place in others]
        if first.name != "job-dir" or found != expected:
            wrong.append(f"{training}: {found}")
    assert not wrong, "\n".join(wrong)


def test_place_in_another_one_is_none_of_its_own() -> None:
    found = places_of(job("gs://b/j", args=["--log_dir=gs://b/j/logs", "--model_dir=gs://b/j2"]))
    assert [(place.name, place.location) for place in found] == [("job-dir", "gs://b/j"), ("model_dir", "gs://b/j2")]
    assert [place.name for place in chosen(["gs://b/x/", "/logs", "gs://b/x"])] == ["logdir", "logdir-2"]
