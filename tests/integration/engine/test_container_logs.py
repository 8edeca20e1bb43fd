"""A container's log, from the program's write to our numbered lines: nothing is lost, changed or doubled."""

from pathlib import Path

from beds.engines import OwnEngine
from integration.engine.runs import Host, host_on


def test_engine_that_rotates_logs_by_default_loses_no_line(own_engine: OwnEngine, tmp_path: Path) -> None:
    own_engine.restart(log_opts={"max-size": "4k", "max-file": "2"})
    with host_on(own_engine, tmp_path / "state") as host:
        assert host.run("i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done") == [str(n) for n in range(3000)]


BARS = """
import os, time
print(*range(10), sep="\\n", flush=True)
while not os.path.exists("/data/go"): time.sleep(0.05)
for n in range(100): print(*(f"{n} {k}" for k in range(10_000)), sep="\\r")
print("end")
"""


def test_log_whose_beginning_the_engine_dropped_while_no_agent_looked_is_cut(host: Host, tmp_path: Path) -> None:
    """Lines that are overwritten again and again are much to the engine, and little to us."""
    data = tmp_path / "data"
    data.mkdir()
    order = host.order("master-replica-0").model_copy(update={"log_quota_bytes": 1 << 20})
    launch = host.launch(
        f"exec python3 -c '{BARS}'", job_dir="/data", job_dir_source=str(data), log_quota_bytes=1 << 20
    )
    host.runtime.place(order)
    host.runtime.start(order.run_id, [launch])
    host.until(lambda: len(host.printed(order.run_id)) == 10)
    host.runtime.close()
    (data / "go").touch()
    (container,) = host.engine.client().containers.list(filters={"label": f"trainyard.run={order.run_id}"})
    assert container.wait()["StatusCode"] == 0

    host.new_agent()

    assert host.log(order.run_id) == [str(n) for n in range(10)]
    assert host.runtime.read_log(order.run_id, "master-replica-0", 0, 100, 1 << 20).cut
