"""The parts of an engine beside its runtime: its registration, its end without an agent, the doctor."""

from pathlib import Path

import pytest

from beds.open_engines import agent_settings
from beds.run_ids import unique_run
from contract.runtimes.conftest import REAL
from contract.runtimes.runtime_labs import FOREVER, STUBBORN, Driver
from trainyard_agent.engines import registry
from trainyard_agent.engines.stopping import stop_runs
from trainyard_agent.lease.watchdog_files import runs_of
from trainyard_protocol.settings import declared
from trainyard_protocol.states import Reason

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN = unique_run("1")


def test_every_engine_has_a_lab() -> None:
    assert set(registry.ENGINES) == set(REAL)


@pytest.mark.parametrize("name", registry.ENGINES)
def test_engine_is_what_its_registration_says(name: str, tmp_path: Path) -> None:
    engine, kind = registry.engine_of(name), registry.kind_of(name)
    assert engine.name == name
    assert kind.spans_hosts or kind.directories
    others = [other for other in registry.kinds().values() if other is not kind]
    flags = {one.option.flag for one in declared(kind)}
    assert not flags & {one.option.flag for other in others for one in declared(other)}
    assert isinstance(agent_settings("--state-dir", str(tmp_path), "--doctor").of(kind), kind)


def test_what_an_agent_has_left_is_ended_and_examined_without_it(real_driver: Driver) -> None:
    real_driver.start_and_wait(RUN, {CHIEF: FOREVER, WORKER: STUBBORN})
    with real_driver.lab.left() as (name, settings):
        engine, kind = registry.engine_of(name), registry.kind_of(name)
        assert kind.spans_hosts or kind.may_have_runs(settings.state_dir)
        assert kind.spans_hosts or [run.ended for run in runs_of(settings.state_dir)] == [False]

        assert stop_runs([engine], settings, lambda _: 0.5, Reason.HOST_SHUTDOWN) == {engine: 2}

        assert all(run.ended for run in runs_of(settings.state_dir))
        assert stop_runs([engine], settings, lambda _: 0.5, Reason.HOST_SHUTDOWN) == {engine: 0}
        assert not [finding for finding in engine.examine(settings) if finding.status == "problem"]
        assert RUN not in [orphan.run_id for orphan in engine.orphans(settings)]
    real_driver.lab.reopen()
    ends = {report.exit.reason for report in real_driver.wait_for_exits(RUN).values() if report.exit}
    assert ends == {Reason.HOST_SHUTDOWN}
