"""The table of `jobs list`: whole in a pipe, as wide as the terminal on one."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from trainyard_cli.output.jobs import job_table

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
LONG = "bert_base_uncased_finetuned_on_squad_with_lr_3e5_seed_17"
EXITED = "The replica master 0 exited with a non-zero status of 3."


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


def job(name: str, state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {"jobId": name, "state": state, "createTime": "2026-11-20T11:30:05Z", "owner": "ana", **more}


def activity(state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    return {"project": "p", "job_id": "j", "state": state, "replicas": 2, "running": 1, **more}


def fitted(jobs: list[dict[str, Any]], width: int, **activities: dict[str, Any]) -> list[str]:
    """The lines without colours, each of which has to fit."""
    text = re.sub(r"\x1b\[\d*m", "", job_table.fitted(jobs, activities, width, NOW))
    lines = text.split("\n")
    assert max(map(job_table.cell_len, lines)) <= width
    return lines


def test_names_stay_whole_and_causes_are_cropped() -> None:
    failed = job(
        "resnet_lr0_1", "FAILED", errorMessage=f"{EXITED} ValueError: shapes 日本語 (3, 224) and (1, 28)\nmore"
    )
    bare = job("a", "FAILED", errorMessage=EXITED, createTime="2025-01-02T00:00:00Z")
    assert fitted([failed, bare], 60) == [
        "JOB_ID        STATUS  CREATED      CAUSE",
        "resnet_lr0_1  FAILED  11-20 11:30  ValueError: shapes 日本…",
        "a             FAILED  2025-01-02   exit code 3 of master 0",
    ]
    plain = job_table.plain([failed, bare]).split("\n")
    assert plain[1].endswith("  2026-11-20T11:30:05  ValueError: shapes 日本語 (3, 224) and (1, 28)")
    assert plain[2].endswith(f"  2025-01-02T00:00:00  {EXITED}")


def test_long_name_loses_its_middle_before_the_last_column_goes() -> None:
    jobs = [job(LONG, "CANCELLED"), job("x")]
    doing = {"x": activity(step=7, steps=9, metric="loss", value=0.25)}
    assert fitted(jobs, 80, **doing)[1:] == [
        "bert_base_uncased…h_lr_3e5_seed_17  CANCELLED  11-20 11:30",
        "x                                   RUNNING    11-20 11:30  step 7/9, loss 0.25",
    ]
    assert fitted(jobs, 45, **doing)[1:] == [
        "bert_base_…e5_seed_17  CANCELLED  11-20 11:30",
        "x                      RUNNING    11-20 11:30",
    ]
    assert fitted([job(LONG), job("x", owner="bo")], 100)[0].split() == ["JOB_ID", "STATUS", "CREATED", "OWNER"]


@pytest.mark.parametrize(
    ("doing", "text"),
    [(activity("QUEUED", position=3, waiting="needs 4 vCPU"), "#3 in the queue: needs 4 vCPU"), (activity("QUEUED"),
     "waiting"), (activity(), "1 of 2 replicas running"), (activity("PREPARING", activity="installing x"),
     "installing x"), (activity(step=5), "step 5"), (activity(epoch=2.0, epochs=5, metric="loss", value="NaN"),
     "epoch 2/5, loss nan"), (activity(step=50, steps=100, step_at="2026-11-20T11:31:00Z", first_step=0,
     started_at="2026-11-20T11:30:00Z"), "step 50/100, 1:00 left"), (activity(step=5, attention="stalled"),
     "stalled, step 5"), (activity(activity="\x1b[2Jclear"), "clear")],
)  # fmt: skip
def test_active_job_shows_what_it_does(doing: dict[str, Any], text: str) -> None:
    assert fitted([job("j", doing["state"])], 100, j=doing)[1].endswith(f"  11-20 11:30  {text}")


def test_wide_table_has_owner_duration_main_metric_and_labels() -> None:
    jobs = [job("j", duration=3725, metrics={"epoch": 3, "val_loss": 0.31}, labels={"team": "nlp", "x": "y"}), job("k")]
    header, *rows = job_table.plain(jobs, wide=True).split("\n")
    assert header.split() == ["JOB_ID", "STATUS", "CREATED", "OWNER", "DURATION", "METRIC", "LABELS"]
    assert rows[0].endswith("  ana    1:02:05   val_loss 0.31  team=nlp,x=y")
    assert rows[1].endswith("  ana")
