"""`trainyard agents add`, and the retention in `trainyard status`."""

from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from trainyard_cli.capabilities.agents.commands import brings_storage, hosts_of, reach_of
from trainyard_cli.commands.service.service import retention_text
from trainyard_protocol.answers.cluster import RetentionView


def test_file_of_machines_has_one_in_each_line_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# rack 7\n\nroot@rack-7-1\n  root@rack-7-2   # new\nroot@rack-7-1\n")
    assert hosts_of(file) == ["root@rack-7-1", "root@rack-7-2"]


@pytest.mark.parametrize("line", ["rack-7", "@rack-7", "root@", "root@a root@b", "-oProxyCommand=x@y"])
def test_line_that_names_no_machine_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"root@a\n\n{line}\n")
    with pytest.raises(click.UsageError, match=f"hosts, line 3: '{line}' is not USER@HOST"):
        hosts_of(file)


def test_proxy_of_gs_is_set_up_unless_the_agents_options_bring_another_storage() -> None:
    table = {
        "": False,
        "--cpus 0-3 --runtime docker": False,
        "--replica-env STORAGE_EMULATOR_HOST=http://10.0.0.9:1": True,
        "--replica-env GOOGLE_APPLICATION_CREDENTIALS=/etc/key.json": True,
        "--runtime slurm --one-user": True,
        "--runtime=kubernetes": True,
    }
    assert {options: brings_storage(options.split()) for options in table} == table


def test_containers_reach_through_the_proxy_what_the_agents_network_lets_them() -> None:
    table = {
        "": "public", "--network none": "none", "--network=none --one-user": "none",
        "--network egress --one-user": "public", "--network all": "all", "--one-user --cpus 0": "all",
    }  # fmt: skip
    assert {options: reach_of(options.split()) for options in table} == table


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
