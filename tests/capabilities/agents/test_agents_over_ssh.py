"""`trainyard agents add USER@HOST` over a real sshd: a machine without anything of ours runs a job, is updated, and is
as before once it is removed.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.certificates import Authority
from e2e.machines import OURS, Machine, let_in, machines
from e2e.test_wheel import wheel  # noqa: F401 - a fixture

pytestmark = pytest.mark.e2e


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """A server with HTTPS, and a machine with an sshd that lets its operator in."""
    with machines(tmp_path, ["server", "box"]) as (server, box):
        here = server.programs
        let_in(here, box)
        authority = Authority(here.home)
        issued, url = authority.issue(server.address), f"https://{server.address}:8470"
        tls = ("--tls-cert", str(issued.certificate), "--tls-key", str(issued.key))
        here.server(*tls, roles={"operator": "admin:you"}, url=url)
        token = ("--token-file", str(here.token("operator")), "--ca-file", str(authority.ca_file))
        here.ok("trainyard", "login", url, *token)
        yield server, box


def test_machine_gets_an_agent_runs_a_job_is_updated_and_is_as_before_when_it_is_removed(
    pair: tuple[Machine, Machine],
    wheel: Path,  # noqa: F811
) -> None:
    server, box = pair
    here, host = server.programs, f"root@{box.address}"
    add = ("trainyard", "agents", "add", host, "--name", "box", "--wheel", str(wheel))
    options = ("--runtime", "process", "--one-user", "--cpus", "0")
    added = here.done(*add, *options)
    assert f"{host}: installing the agent as root..." in added.stderr
    assert "box is alive: 1 vCPU, " in added.stderr
    assert "; process." in added.stderr
    assert not added.stdout, "the token is shown to nobody"
    (here.home / "hello.py").write_text('print("hello from the box")\n')
    done = here.done("trainyard", "jobs", "submit", "training", "j", "--package-path", "hello.py", "--stream-logs")
    assert "hello from the box" in done.stderr + done.stdout

    failed = here.run(*add, "--one-user", "--runtimes", "/missing.yaml")
    assert failed.returncode == 1
    assert f"The agent on {host} cannot continue: trainyard_agent: /missing.yaml: cannot be read: " in failed.stderr, (
        failed.stderr
    )
    assert f"Its log: `ssh {host} journalctl -u trainyard-agent`." in failed.stderr

    (here.home / "hosts").write_text(f"# the machines of the test\n\n{host}  # twice\n{host}\n")
    (again := list(add)).remove(host)
    updated = here.done(*again, "--hosts", "hosts", *options)
    assert updated.stderr.count("box is alive: 1 vCPU, ") == 1
    assert f"{host}: updating the agent as root..." in updated.stderr
    assert here.ok("trainyard", "agents", "list", "--format", "value(name,state)").split() == ["box", "alive"]

    removed = here.done("trainyard", "agents", "remove", host)
    assert f"{host}: the agent is stopped and removed." in removed.stderr
    assert here.ok("trainyard", "agents", "list", "--format", "value(name)").split() == []
    left = [path for place in OURS for path in (box.programs.home / place.strip("/")).iterdir()]
    assert left == []
    (here.home / "hosts").write_text("root@box\n\nbox\n")
    refused = here.run("trainyard", "agents", "add", "--hosts", "hosts")
    assert (refused.returncode, "hosts, line 3: 'box' is not USER@HOST." in refused.stderr) == (2, True), refused.stderr
    gone = here.run("trainyard", "agents", "remove", host)
    assert (gone.returncode, f"There is no agent of root on {host}." in gone.stderr) == (1, True)
