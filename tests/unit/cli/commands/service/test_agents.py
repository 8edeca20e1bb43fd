"""`trainyard agents add`: the machines of a file, and what an agent's options say of its jobs' gs://."""

from pathlib import Path

import click
import pytest

from trainyard_cli.commands.service.agents import brings_storage, hosts_of, reach_of


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
        "": "public",
        "--network none": "none",
        "--network=none --one-user": "none",
        "--network egress --one-user": "public",
        "--network all": "all",
        "--one-user --cpus 0": "all",
    }
    assert {options: reach_of(options.split()) for options in table} == table
