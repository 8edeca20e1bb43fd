from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainyard_cli.output.jobs.queue_explanation import text
from trainyard_protocol.answers.why import (
    CandidateView,
    HolderView,
    QueuedAheadView,
    QueueExplanationView,
    SuggestionView,
)
from trainyard_protocol.states import JobState

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WAITS = QueueExplanationView(
    project="p",
    job_id="large",
    state=JobState.QUEUED,
    priority=3,
    summary="It waits: needs 2 vCPU.",
    kind="room",
    needs="2 vCPU",
    position=4,
    agents=(CandidateView(agent="vm", alive=True, has="2 vCPU", free="1 vCPU", home=True, lacks="lacks 1 vCPU"),
     CandidateView(agent="other", alive=True, has="4 vCPU", free="3 vCPU", home=True)),
    holders=(HolderView(project="q", job_id="first", state=JobState.RUNNING, priority=9, agent="vm", holds="1 vCPU",
     running_since=NOW - timedelta(minutes=2), ends_by=NOW + timedelta(hours=1)),
     HolderView(project="p", job_id="gone", state=JobState.FAILED, priority=0, agent="vm", holds="1 vCPU",
     left_over=True)),
    ahead=(QueuedAheadView(project="q", job_id="next", priority=5, position=1, needs="1 vCPU", waiting="room"),),
    changes=(SuggestionView(kind="priority", message="a priority above 5 (it has 3)"),),
)  # fmt: skip


def test_waiting_job_is_explained_in_tables_and_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    assert (
        text(WAITS, "p", NOW)
        == """\
large: QUEUED. It waits: needs 2 vCPU.
It needs 2 vCPU. Its priority is 3, its position 4.

  AGENT  HAS     FREE    FOR THIS JOB
  vm     2 vCPU  1 vCPU  lacks 1 vCPU
  other  4 vCPU  3 vCPU  has room, reserved for jobs ahead

  HELD BY    AGENT  HOLDS   PRIORITY  SINCE                 ENDS AT THE LATEST
  first (q)  vm     1 vCPU  9         runs for 02:00        2026-11-20 13:00:00 +0000
  gone       vm     1 vCPU  0         ended, being stopped

  AHEAD  JOB       PRIORITY  NEEDS
  1      next (q)  5         1 vCPU
  and 2 more

It would start now with any one of:
  - a priority above 5 (it has 3)
A submitted job's request cannot be changed: cancel the job and submit it again."""
    )


def test_explanation_without_a_change_a_named_holder_or_a_wait_says_so() -> None:
    def shown(**changes: Any) -> str:
        return text(WAITS.model_copy(update=changes), "p", NOW)

    assert shown(changes=(), nothing="Nothing short of x.").endswith("\n\nNothing short of x.")
    assert "  and 2 jobs of other projects" in shown(hidden_holders=2)
    assert "\nHeld by 1 job of other projects.\n" in shown(hidden_holders=1, holders=())
    runs = QueueExplanationView(
        project="p", job_id="j", state=JobState.RUNNING, priority=0, summary="It does not wait."
    )
    assert text(runs, "p", NOW) == "j: RUNNING. It does not wait."
