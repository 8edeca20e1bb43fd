"""Stack dumps of a program in a container, from the engine's host."""

import signal

import pytest

from integration.engine.runs import CHIEF, Host
from trainyard_agent.host import procfs
from trainyard_agent.monitoring.stack_dump import StackDumper

LISTENS = """
import faulthandler, signal, time
def read_from_a_dead_disk():
    time.sleep(600)
faulthandler.register(signal.SIGUSR1)
print("hangs", flush=True)
read_from_a_dead_disk()
"""


def test_program_in_a_container_is_found_and_writes_its_stacks_when_it_is_asked(host: Host) -> None:
    run_id = host.start(f"exec python3 -c '{LISTENS}'")
    host.until(lambda: host.printed(run_id))
    pids = host.runtime.processes(run_id, CHIEF)
    if not pids:
        pytest.skip("the engine's containers are in another pid namespace than this test")
    assert any(procfs.catches(pid, signal.SIGUSR1) for pid in pids)
    stacks = StackDumper(host.runtime, py_spy="").dump(run_id, CHIEF, "SIGUSR1", len(host.printed(run_id)))
    assert "in read_from_a_dead_disk" in stacks
    assert host.running(run_id)
    host.runtime.remove(run_id)
    assert host.runtime.processes(run_id, CHIEF) == ()
