from datetime import UTC, datetime, timedelta

from trainyard_cli.output.queue_explanation import text
from trainyard_protocol.states import JobState
from trainyard_protocol.views import AheadView, ChangeView, FitView, HolderView, WhyView

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WAITS = WhyView(
    project="p",
    job_id="large",
    state=JobState.QUEUED,
    priority=3,
    summary="It waits: needs 2 vCPU.",
    kind="room",
    needs="2 vCPU",
    position=4,
    agents=(
        FitView(agent="vm", alive=True, has="2 vCPU", free="1 vCPU", home=True, lacks="lacks 1 vCPU"),
        FitView(agent="other", alive=True, has="4 vCPU", free="3 vCPU", home=True),
    ),
    holders=(
        HolderView(
            project="q",
            job_id="first",
            state=JobState.RUNNING,
            priority=9,
            agent="vm",
            holds="1 vCPU",
            running_since=NOW - timedelta(minutes=2),
            ends_by=NOW + timedelta(hours=1),
        ),
        HolderView(
            project="p",
            job_id="gone",
            state=JobState.FAILED,
            priority=0,
            agent="vm",
            holds="1 vCPU",
            left_over=True,
        ),
    ),
    ahead=(AheadView(project="q", job_id="next", priority=5, position=1, needs="1 vCPU", waiting="room"),),
    changes=(ChangeView(kind="priority", message="a priority above 5 (it has 3)"),),
)


def test_waiting_job_is_explained_in_tables_and_changes() -> None:
    said = text(WAITS, "p", NOW).splitlines()
    assert said[0] == "large: QUEUED. It waits: needs 2 vCPU."
    assert said[1] == "It needs 2 vCPU. Its priority is 3, its position 4."
    assert any(line.split()[0] == "vm" and line.endswith("lacks 1 vCPU") for line in said if line)
    assert any(line.endswith("has room, kept for jobs ahead") for line in said)
    (first,) = [line for line in said if "first (q)" in line]
    assert "runs for 02:00" in first
    (gone,) = [line for line in said if line.startswith("  gone ")]
    assert "is over, being stopped" in gone
    assert "  and 2 more" in said
    assert said[-3:] == [
        "It would start now with any one of:",
        "  - a priority above 5 (it has 3)",
        "What a job asks for cannot be changed: cancel it and submit it anew.",
    ]


def test_where_no_change_helps_that_is_said() -> None:
    said = text(WAITS.model_copy(update={"changes": (), "nothing": "Nothing short of x."}), "p", NOW)
    assert said.endswith("\n\nNothing short of x.")


def test_job_that_does_not_wait_is_one_line() -> None:
    runs = WhyView(project="p", job_id="j", state=JobState.RUNNING, priority=0, summary="It does not wait.")
    assert text(runs, "p", NOW) == "j: RUNNING. It does not wait."
