from typing import Any

from trainyard_cli.submission.comparison import compared, differences

OLD, NEW = "a" * 64, "b" * 64
BASE: dict[str, Any] = {
    "scaleTier": "CUSTOM",
    "workerCount": "2",
    "masterConfig": {"imageUri": "img:1"},
    "args": ["--lr", "0.1 "],
    "packageUris": [f"staging://{OLD}/trainer-0.0.0.tar.gz"],
    "hyperparameters": {"params": [{"parameterName": "lr", "maxValue": 1.0}]},
}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in BASE.items() if key != name}


def test_differences_name_each_field_with_both_values() -> None:
    table: list[tuple[dict[str, Any], list[str]]] = [
        (BASE, []),
        # The same content at another place is the same package.
        (BASE | {"packageUris": [f"gs://bucket/job/{OLD}/trainer-0.0.0.tar.gz"]}, []),
        (
            BASE | {"packageUris": [f"staging://{NEW}/trainer-0.0.0.tar.gz", "gs://b/x.whl"]},
            [
                "packageUris[0]: the job has trainer-0.0.0.tar.gz (SHA-256 aaaaaaaaaaaa); "
                "this submission has trainer-0.0.0.tar.gz (SHA-256 bbbbbbbbbbbb)",
                'packageUris[1]: the job has none; this submission has "gs://b/x.whl"',
            ],
        ),
        (BASE | {"args": ["--lr", "0.2", "\x1b[31m"], "workerCount": "3"},
         ["args: the job has --lr '0.1 '; this submission has --lr 0.2 '\N{REPLACEMENT CHARACTER}[31m'",
         'workerCount: the job has "2"; this submission has "3"']),
        (without("args"), ["args: the job has --lr '0.1 '; this submission has none"]),
        (BASE | {"masterConfig": {"imageUri": "img:2"}},
         ['masterConfig.imageUri: the job has "img:1"; this submission has "img:2"']),
        (BASE | {"hyperparameters": {"params": [{"parameterName": "lr", "maxValue": 2.0}]}},
         ["hyperparameters.params[0].maxValue: the job has 1.0; this submission has 2.0"]),
    ]  # fmt: skip
    wrong = [(found, expected) for requested, expected in table if (found := differences(BASE, requested)) != expected]
    assert not wrong


def test_two_jobs_are_compared_flag_by_flag_then_config_labels_origin_outcome_and_metrics() -> None:
    first = {
        "jobId": "a",
        "state": "SUCCEEDED",
        "trainingInput": BASE | {"args": ["train", "--lr", "0.1", "--tags", "x", "-v"], "env": {"MODE": "x"}},
        "labels": {"team": "a"},
        "origin": {"git": {"commit": "1" * 40, "branch": "main", "changed": ["a.py"], "diff": "+1"}, "python": "3.11.2",
         "resolved": {"images": {"a:1": "a@sha256:1"}, "requirements": "numpy==1.26.4\nrich==13.0\n"}},
        "metrics": {"loss": 0.5, "accuracy": 0.9},
    }  # fmt: skip
    second = {
        "jobId": "b",
        "state": "FAILED",
        "exitCode": 3,
        "trainingInput": BASE
        | {"args": ["train", "--lr=0.2", "--tags", "x", "seed=7"], "env": {"MODE": "y"},
         "packageUris": [f"gs://b/{NEW}/trainer-0.0.0.tar.gz"]},
        "origin": {"git": {"commit": "2" * 40, "branch": "main"}, "python": "3.11.2",
         "resolved": {"images": {"a:1": "a@sha256:2"}, "requirements": "numpy==2.0.0\nrich==13.0\n"}},
        "metrics": {"loss": 0.25, "accuracy": 0.9},
    }  # fmt: skip
    assert [tuple(row.values()) for row in compared(first, second)] == [
        ("args.--lr", "0.1", "0.2"),
        ("args.-v", "set", ""),
        ("args.seed", "", "7"),
        ("packageUris[0]", "trainer-0.0.0.tar.gz (SHA-256 aaaaaaaaaaaa)",
         "trainer-0.0.0.tar.gz (SHA-256 bbbbbbbbbbbb)"),
        ("env.MODE", "x", "y"),
        ("labels.team", "a", ""),
        ("origin.commit", "1" * 40, "2" * 40),
        ("origin.changes", "1 file (SHA-256 29cf9439cc7a)", ""),
        ("origin.image.a:1", "a@sha256:1", "a@sha256:2"),
        ("origin.requirements.numpy", "1.26.4", "2.0.0"),
        ("state", "SUCCEEDED", "FAILED"),
        ("exitCode", "", "3"),
        ("metrics.loss", "0.5", "0.25"),
    ]  # fmt: skip
    assert compared(first, first) == []
