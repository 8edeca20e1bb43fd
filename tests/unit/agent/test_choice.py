"""The runtime of a run on a machine with processes and containers, whose stager prepares it."""

from dataclasses import replace

from beds.open_engines import process_and_docker
from trainyard_agent.engines.docker.client import EngineInfo
from trainyard_agent.engines.docker.probe import EngineState
from trainyard_agent.engines.fake import FOREVER, FakeHost, FakeRuntime
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.opening import choose
from trainyard_agent.runtimes.runtime_set import Choice, Choices
from trainyard_agent.staging.base import ReadyAtOnce, Staging
from trainyard_agent.staging.stager_set import StagerSet
from trainyard_protocol.job.runtimes import RuntimeImage, Runtimes, RuntimeVersion
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.sync import RunOrder
from unit.agent.stub_server import run_order

TABLE = Runtimes(
    images={
        "jax": RuntimeImage(image="jax:1", dockerfile="/jax.Dockerfile"),
        "torch": RuntimeImage(image="torch:2"),
        "built": RuntimeImage(image="built:3", dockerfile="/built.Dockerfile"),
    },
    versions={"*": RuntimeVersion(cpu="jax"), "2.11": RuntimeVersion(cpu="torch"), "3.0": RuntimeVersion(cpu="built")},
)
EVERY_IMAGE = frozenset({"jax:1", "torch:2", "built:3"})
HOST = FakeHost(ManualClock(), lambda _: FOREVER)
ENGINE = EngineInfo("engine", "20.10", cpus=1, memory_bytes=1, live_restore=False)


class Machine:
    """A machine with both engines, of which `admitted` start runs."""

    def __init__(
        self,
        admitted: tuple[RuntimeName, ...] = ("process", "docker"),
        table: Runtimes = TABLE,
        engine: EngineState | None = None,
        closed: str = "",
    ) -> None:
        state = engine or EngineState(ENGINE, EVERY_IMAGE)
        runtimes = {name: FakeRuntime(HOST, name) for name in ("process", "docker")}
        self._opened = process_and_docker(runtimes, lambda: state, {}, table, closed)
        self._admitted = {name: self._opened[name] for name in admitted}

    def choice(self, order: RunOrder) -> Choice:
        gpus = any(replica.has_gpus for replica in order.replicas)
        return choose(order.training_input, gpus, self._admitted, self._opened)


MACHINE = Machine()
PROCESSES = Machine(("process",))
CONTAINERS = Machine(("docker",))
MANY_USERS = Machine(("docker",), closed="it may not")
NO_ENGINE = Machine(engine=EngineState())
NOT_BUILT = Machine(engine=EngineState(ENGINE))
BY_OPERATOR = Machine(table=replace(TABLE, package_jobs="container"))
PACKAGE = Choice("process", "it is a package job")
MISSING = "the image of its runtimeVersion 3.0, built:3, was not built on this machine"


def test_package_job_moves_to_containers_only_where_somebody_asked_for_it() -> None:
    in_torch = Choice("docker", "its runtimeVersion 2.11 has the image torch:2")
    table = [
        (MACHINE, "", PACKAGE),  # though the image of every version was built
        (MACHINE, "1.15", PACKAGE),
        (MACHINE, "*", PACKAGE),
        (MACHINE, "2.11", in_torch),
        (MACHINE, "3.0", Choice("docker", "its runtimeVersion 3.0 has the image built:3")),
        (NOT_BUILT, "2.11", in_torch),  # it is pulled
        (NOT_BUILT, "3.0", Choice("process", MISSING)),
        (NO_ENGINE, "2.11", Choice("process")),
        (BY_OPERATOR, "", Choice("docker", "the runtimes file has `packageJobs: container`")),
        (CONTAINERS, "", Choice("docker")),
        (PROCESSES, "3.0", Choice("process")),
        (MANY_USERS, "", Choice("docker", "it may not")),
    ]
    found = [machine.choice(run_order("1", runtimeVersion=version)) for machine, version, _ in table]
    assert found == [expected for *_, expected in table]


def test_job_with_an_image_is_always_for_containers() -> None:
    order = run_order("1", pythonModule="", masterConfig={"imageUri": "gcr.io/p/i"})
    for machine in (MACHINE, NO_ENGINE, CONTAINERS, BY_OPERATOR):
        assert machine.choice(order) == Choice("docker", "the job brings its image")
    assert PROCESSES.choice(order).runtime == "none"


RUN = "1" * 32


async def test_run_is_prepared_once_by_the_stager_that_was_chosen_first() -> None:
    choice = [Choice("process", "it is a package job")]
    choices = Choices(lambda _: choice[0])
    processes, containers = ReadyAtOnce("venv"), ReadyAtOnce()
    stagers = StagerSet({"process": processes, "docker": containers}, choices)

    stagers.begin(run_order(RUN))
    choice[0] = Choice("docker", "its image was built meanwhile")
    stagers.begin(run_order(RUN))

    ready = Staging("ready", python="venv", runtime="process", runtime_reason="it is a package job")
    assert stagers.status() == {RUN: ready}
    assert containers.status() == {}
    assert choices.of(run_order(RUN)) == Choice("process", "it is a package job")

    await stagers.discard(RUN)
    stagers.begin(run_order(RUN))
    assert stagers.status()[RUN].runtime == "docker"
