from datetime import UTC, datetime

from trainyard_cli.commands.service.service import retention_text
from trainyard_protocol.views.views import RetentionView


def test_retention_is_shown_with_its_limits_and_what_was_removed() -> None:
    last = datetime(2026, 11, 20, 12, 5, tzinfo=UTC)
    both = RetentionView(keep_jobs_s=90 * 86400, projects=2, jobs_deleted=1, last_removal=last)
    assert retention_text(both) == (
        "Retention: jobs are deleted 90 days after their end; 2 projects have limits of their own. "
        "So far 1 job was deleted, the last on 2026-11-20 12:05 UTC."
    )
    periods = {3600.0: "1 hour", 5400.0: "90 minutes", 90.0: "90 seconds"}
    shown = {seconds: retention_text(RetentionView(keep_jobs_s=seconds)) for seconds in periods}
    assert shown == {
        seconds: f"Retention: jobs are deleted {period} after their end. So far 0 jobs were deleted."
        for seconds, period in periods.items()
    }
