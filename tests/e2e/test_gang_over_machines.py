"""A gang over two machines without an engine, each a network namespace, and what becomes of it when one is lost."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from beds import engines
from beds.certificates import Authority
from beds.installed.missing import needing
from beds.waiting import until
from e2e.harness import REPOSITORY
from e2e.machines import Machine, machines
from e2e.test_training import check_trained

pytestmark = pytest.mark.e2e

PROGRAMS = Path(__file__).parent / "programs"
CONFIG = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
  workerType: local-1
  workerCount: 3
"""


_JOB_S = 900  # a training of four replicas on a busy machine


class Site:
    """A server, and machines with two CPUs each, whose agents have these options. They share `jobs`."""

    def __init__(self, server: Machine, boxes: Sequence[Machine], *options: str) -> None:
        self.boxes = boxes
        self.one, self.other = boxes[:2]
        self.project = "local"
        self.here = server.programs
        authority = Authority(self.here.home)
        issued = authority.issue(server.address)
        self.url = f"https://{server.address}:8470"
        self.tls = ("--tls-cert", str(issued.certificate), "--tls-key", str(issued.key))
        self.jobs = self.here.home / "jobs"
        self.jobs.mkdir()
        self.start_server()
        token = ("--token-file", str(self.here.token("operator")), "--ca-file", str(authority.ca_file))
        self.here.ok("trainyard", "login", self.url, *token)
        for machine in boxes:
            shutil.copy(authority.ca_file, machine.programs.home / "ca.pem")
            machine.programs.url = self.url
            name, root = ("--name", machine.programs.home.name), ("--job-dir-root", str(self.jobs))
            given = ("--ca-file", "ca.pem", *name, *root, "--cpus", "0,1", "--one-user")
            machine.programs.agent(*given, *options)
        until(self.all_alive)

    def start_server(self) -> None:
        shared = ("--one-user", "--lease-seconds", "120", "--shared-job-dirs", str(self.jobs))
        self.here.server(*self.tls, *shared, roles={"operator": "admin:you", "agent": "agent"}, url=self.url)

    def all_alive(self) -> bool:
        states = self.here.ok("trainyard", "agents", "list", "--format", "value(state)").split()
        return states == ["alive"] * len(self.boxes)

    def use_project(self, name: str) -> None:
        """Use another project from now on, and cancel what runs in the one before."""
        for job in self.here.ok("trainyard", "jobs", "list", "--format", "value(jobId)").split():
            self.here.run("trainyard", "jobs", "cancel", job)
            self.here.run("trainyard", "jobs", "wait", job)
        self.project = self.here.environment["TRAINYARD_PROJECT"] = name

    def submit(self, job: str, *words: str, program: Path = PROGRAMS / "ring.py", flags: Sequence[str] = ()) -> None:
        (self.here.home / "config.yaml").write_text(CONFIG)
        if program.is_file():  # alone: nothing declares what it needs, as the project around it here does
            program = Path(shutil.copy(program, self.here.home))
        given = ("--package-path", str(program), "--config", "config.yaml", *flags)
        self.here.ok("trainyard", "jobs", "submit", "training", job, *given, "--", *words)

    def lines(self, job: str) -> str:
        return self.here.ok("trainyard", "jobs", "stream-logs", job, "--no-follow")

    def end(self, job: str) -> str:
        """The end of a job, and what its page on the terminal says of it."""
        self.here.run("trainyard", "jobs", "wait", job, timeout=_JOB_S)
        return self.here.ok("trainyard", "jobs", "describe", job)


@contextmanager
def site_at(home: Path, *options: str, boxes: int = 2) -> Iterator[Site]:
    with machines(home, ["server", *(f"box-{n}" for n in range(1, boxes + 1))]) as (server, *made):
        yield from _until_ended(Site(server, made, "--runtime", "process", *options))


@contextmanager
def site_of_engines(home: Path, *options: str) -> Iterator[Site]:
    """A site whose machines have container engines of their own, in which jobs of runtime version 2.11 have Python."""
    table = {"images": {"base": {"image": engines.BASE_IMAGE}}, "versions": {"2.11": {"cpu": "base"}}}
    with ExitStack() as stack:
        server, one, other = stack.enter_context(machines(home, ["server", "box-1", "box-2"]))
        for machine in (one, other):
            with needing(engines.NoEngine):
                engine = stack.enter_context(engines.own(inside=machine.namespace))
            engine.provide_base_image()
            machine.programs.environment["DOCKER_HOST"] = engine.url
            (machine.programs.home / "runtimes.yaml").write_text(yaml.safe_dump(table))
        given = ("--runtime", "docker", "--runtimes", "runtimes.yaml")
        yield from _until_ended(Site(server, (one, other), *given, *options))


def _until_ended(site: Site) -> Iterator[Site]:
    """Stop what its agents run, also after a test that failed."""
    try:
        yield site
    finally:
        for machine in site.boxes:
            machine.programs.stop_agent()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_at(tmp_path_factory.mktemp("site")) as site:
        yield site


def test_replicas_on_two_machines_reach_each_other_at_the_addresses_of_tf_config(site: Site) -> None:
    site.submit("ring")
    described = site.end("ring")
    assert "state: SUCCEEDED" in described, site.lines("ring")
    lines = site.lines("ring")
    assert re.search(r"master-replica-0 +met worker-0 worker-1 worker-2", lines), lines
    assert lines.count("NCCL_SOCKET_IFNAME eth0") == lines.count("GLOO_SOCKET_IFNAME eth0") == 4
    assert lines.count(f"MASTER_ADDR {site.one.address}") == 4
    assert "Its replicas run on box-1 (master-replica-0 to worker-replica-0, 2 in all) and box-2" in lines


def test_machine_behind_a_firewall_is_named_and_the_job_runs_once_it_is_open(site: Site) -> None:
    """The ports of one machine are closed to the other, as on a fresh host with a firewall."""
    rule = ("INPUT", "-s", site.one.address, "-p", "tcp", "--dport", "30000:30999", "-j", "REJECT")
    _iptables(site.other, "-A", *rule)
    site.submit("blocked")
    unreached = "machine box-2 cannot be reached by box-1: give it a group of its own with --group NAME"
    until(lambda: unreached in site.here.ok("trainyard", "jobs", "why", "blocked"))
    lines = site.lines("blocked")
    tried = (
        r"on agent box-1: The machine of master-replica-0, worker-replica-0 does not reach worker-replica-\d at "
        rf"{site.other.address}:30\d\d\d: .*Let the machines of the group reach each other's --ports"
    )
    assert unreached in lines or re.search(tried, lines), lines
    assert "met " not in lines, "nothing has started"
    _iptables(site.other, "-D", *rule)
    assert "state: SUCCEEDED" in site.end("blocked")


def test_machine_behind_nat_has_no_part_of_a_gang_that_two_others_hold(tmp_path: Path) -> None:
    with site_at(tmp_path, boxes=3) as site:
        for other in site.boxes[1:]:
            from_there = ("-s", other.address, "-p", "tcp", "--dport", "30000:30999", "-j", "REJECT")
            _iptables(site.one, "-A", "INPUT", *from_there)
        site.submit("ring")
        assert "state: SUCCEEDED" in site.end("ring"), site.lines("ring")
        lines = site.lines("ring")
        assert "Its replicas run on box-2 (master-replica-0 to worker-replica-0, 2 in all) and box-3" in lines
        assert "retry 1 of" not in lines


def test_replica_that_is_killed_on_one_machine_ends_the_gang_on_both_and_it_starts_again(site: Site) -> None:
    site.submit("killed", "--stay")
    until(lambda: site.lines("killed").count(" met ") == 4, lambda: site.lines("killed"))
    first = {machine: ring_pids(machine) for machine in (site.one, site.other)}
    assert [len(pids) for pids in first.values()] == [2, 2]
    subprocess.run(["kill", "-9", first[site.other][0]], check=True)
    until(lambda: site.lines("killed").count(" met ") == 8, lambda: site.lines("killed"))
    assert not set(first[site.one]) & set(ring_pids(site.one)), "the parts on both machines are new"
    assert "A new run starts in 1 s (retry 1 of 3)" in site.lines("killed")
    site.here.ok("trainyard", "jobs", "cancel", "killed")
    assert "state: CANCELLED" in site.end("killed")
    assert [ring_pids(machine) for machine in (site.one, site.other)] == [[], []]


@pytest.mark.long
def test_digits_by_the_template_over_two_machines_have_one_set_of_parameters(site: Site) -> None:
    given = ("--module-name", "trainer.task", "--job-dir", str(site.jobs / "digits"))
    site.submit("digits", "--epochs", "5", program=REPOSITORY / "trainer_template" / "trainer", flags=given)
    assert "state: SUCCEEDED" in site.end("digits"), site.lines("digits")
    check_trained(site.lines("digits"), 4)
    assert (site.jobs / "digits" / "model").is_dir()
    assert not list((site.jobs / "digits").glob("workertemp*"))


@pytest.mark.frameworks
def test_tensorflow_and_torch_train_over_two_machines(frameworks_python: Path, tmp_path: Path) -> None:
    programs = REPOSITORY / "tests" / "programs"
    with site_at(tmp_path, "--python", str(frameworks_python)) as site:
        for name, says in (("mirrored", "4 replicas in sync"), ("torch_ddp", "4 ranks, equal: True")):
            site.submit(name, program=programs / f"{name}.py")
            assert "state: SUCCEEDED" in site.end(name), site.lines(name)
            assert says in site.lines(name)


@pytest.mark.containers
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--network", "none"), id="ports that are published"),  # the policy that keeps all else from them
        pytest.param(("--span", "host-network"), id="networks of the machines", marks=pytest.mark.long),
    ],
)
def test_containers_on_two_machines_reach_each_other(tmp_path: Path, options: Sequence[str]) -> None:
    with site_of_engines(tmp_path, *options) as site:
        site.submit("ring", flags=("--runtime-version", "2.11"))
        assert "state: SUCCEEDED" in site.end("ring"), site.lines("ring")
        assert re.search(r"master-replica-0 +met worker-0 worker-1 worker-2", site.lines("ring")), site.lines("ring")


def _iptables(machine: Machine, *words: str) -> None:
    subprocess.run(["ip", "netns", "exec", machine.namespace, "iptables", *words], check=True)


def ring_pids(machine: Machine) -> list[str]:
    """The programs of the ring on a machine, without the processes that they start."""
    pids = subprocess.run(["ip", "netns", "pids", machine.namespace], capture_output=True, text=True, check=True)
    rings = [process for pid in pids.stdout.split() if (process := _ring(int(pid))) is not None]
    return [str(process.pid) for process in rings if process.ppid() not in [other.pid for other in rings]]


def _ring(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return process if process.cmdline()[1:2] == ["ring.py"] else None
    except psutil.NoSuchProcess:
        return None
