"""A study of 20 trials: server and agent are killed in the middle, and each trial runs once."""

import json
from contextlib import suppress
from pathlib import Path

import psutil

from beds.waiting import until
from e2e.harness import Service, local

TRIAL = """
import json, os, pathlib, sys, time
trial, x = os.environ["CLOUD_ML_TRIAL_ID"], int(sys.argv[sys.argv.index("--x") + 1])
with (pathlib.Path(os.environ["TRAINYARD_JOB_DIR"]).parent / "launches").open("a") as launches:
    launches.write(trial + chr(10))
metrics = pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
metrics.parent.mkdir(parents=True, exist_ok=True)
lines = []
for step in (1, 2):
    time.sleep(0.3)
    lines.append(json.dumps({"score": str(x * step), "global_step": str(step), "trial": trial}))
    metrics.write_text(chr(10).join(lines))  # as cloudml-hypertune does: the whole file
"""
SPEC = {
    "goal": "MAXIMIZE",
    "hyperparameterMetricTag": "score",
    "maxTrials": 20,
    "maxParallelTrials": 3,
    "algorithm": "GRID_SEARCH",
    "params": [{"parameterName": "x", "type": "INTEGER", "minValue": 1, "maxValue": 20}],
}


def launches(study: Path) -> list[str]:
    file = study / "launches"
    return file.read_text().split() if file.exists() else []


def kill(service: Service, module: str) -> None:
    """`kill -9`. Programs of trials come and go beside it."""
    for process in service.processes():
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            if "-m" in words and module in words:
                process.kill()
                return
    raise AssertionError(f"{module} does not run")


def test_each_trial_of_a_study_runs_once_though_server_and_agent_are_killed(own_service: Service) -> None:
    service = own_service
    service.program(TRIAL)
    service.config(**local(), hyperparameters=SPEC)
    service.ok("jobs", "submit", "training", "study", "--config", "config.yaml")
    directory = service.job_dir("study")
    for module, count in (("trainyard_server", 4), ("trainyard_agent", 10)):
        until(lambda: len(launches(directory)) >= count, f"{count} trials")  # noqa: B023
        kill(service, module)
        service.ok("up")
    service.wait_for("study", "SUCCEEDED", "FAILED", timeout=180)

    assert sorted(map(int, launches(directory))) == list(range(1, 21))
    job = json.loads(service.ok("jobs", "describe", "study", "-o", "json"))
    output = job["trainingOutput"]
    assert (job["state"], output["completedTrialCount"]) == ("SUCCEEDED", "20")
    assert {trial["hyperparameters"]["x"] for trial in output["trials"]} == {str(x) for x in range(1, 21)}
    best = output["trials"][0]
    assert best["finalMetric"] == {"trainingStep": "2", "objectiveValue": 40}
    for trial in output["trials"]:
        x = int(trial["hyperparameters"]["x"])
        assert [one["objectiveValue"] for one in trial["allMetrics"]] == [x, 2 * x]
    assert "Best of 20 trials: trial 20, score 40 (x=20)." in service.log("study")
