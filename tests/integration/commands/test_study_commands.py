"""Studies on the command line, against a server whose agent plays a trainer."""

import json

import pytest

from trainyard import Client
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run


def test_sweep_and_its_best_trial_again(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    def jobs(words: str) -> tuple[int, str, str]:
        code = run(trainyard, "trainyard", ["jobs", *words.split()])
        return (code, *capsys.readouterr())

    sweep = "--config config.yaml --sweep learning-rate=0.1,high --metric loss --goal minimize"
    code, _, err = jobs(f"submit training rates {sweep} --stream-logs")
    assert code == 0, err  # one trial of two failed: the study has succeeded
    assert "A study by GRID_SEARCH: 2 trials, 2 at a time, over learning-rate, for the smallest loss." in err
    for line in ("Trial 1 finished: loss 0.75 at step 200", "Trial 2 failed: The replica master 0 exited"):
        assert line in err
    assert "Trials: 2 trials, best loss 0.75 (trial 1)." in err
    assert "jobs submit training --from-trial rates/1" in err

    code, out, err = jobs("trials rates")
    assert err == "2 trials, 1 of them failed. Best: trial 1.\n"
    assert [line.split()[:5] for line in out.splitlines()] == [
        ["TRIAL", "STATE", "loss", "STEP", "learning-rate"],
        ["1", "SUCCEEDED", "0.75", "200", "0.1"],
        ["2", "FAILED", "0.75", "200", "high"],
    ]
    rows = json.loads(jobs("trials rates -o json")[1])
    assert [row["job_id"] for row in rows] == ["rates.1", "rates.2"]
    assert "Trial 2 of rates: loss 0.75 at step 200." in jobs("describe rates/2")[2]
    assert "the learning rate is no number" in jobs("stream-logs rates/2 --no-follow")[1]

    assert jobs("submit training again --from-trial rates -- --epochs 2")[0] == 0
    sent = client.job("again").detail().job["trainingInput"]
    assert sent["args"] == ["--learning-rate", "0.1", "--epochs", "2"]
    assert "jobDir" not in sent
    client.job("again").wait(timeout=60)
    assert "again has no trials" in jobs("trials again")[2]
    assert "At most one of --config | --from-trial" in jobs("validate --config a --from-trial rates/1")[2]
    assert "--goal is for a study: add --sweep" in jobs("validate --module-name a --goal minimize")[2]
