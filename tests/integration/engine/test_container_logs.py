"""A container's log, from the program's write to our numbered lines: nothing is lost, changed or doubled."""

from pathlib import Path

import pytest

from beds.engines import OwnEngine
from integration.engine.runs import Host, host_on

AWKWARD = {
    "no newline at the end": (b"one\ntwo", ["one", "two"]),
    "empty lines": (b"\n\na\n\n", ["", "", "a", ""]),
    "progress bar": (b"10%\r20%\rdone\r\n", ["done"]),
    "no UTF-8": (b"\xff\xfe\n", ["\ufffd\ufffd"]),
    "NUL": (b"a\x00b\n", ["a\x00b"]),
    "character cut at 16 KiB": (b"a" + "é".encode() * 20_000 + b"\n", ["a" + "é" * 20_000]),
    "1 MiB and more": (b"x" * ((1 << 20) + 5) + b"\n", ["x" * (1 << 20), "xxxxx"]),
}


@pytest.mark.parametrize("what", AWKWARD)
def test_awkward_output_is_kept_as_it_is(host: Host, tmp_path: Path, what: str) -> None:
    written, expected = AWKWARD[what]
    (tmp_path / "output").write_bytes(written)
    printed = host.run("cat /data/output", job_dir="/data", job_dir_source=str(tmp_path))
    assert printed == expected


def test_streams_and_times_are_the_engines(host: Host) -> None:
    run_id = host.start("echo out; echo err >&2")
    host.log(run_id)
    lines = host.runtime.read_log(run_id, "master-replica-0", 0, 10, 1 << 20).lines
    assert {(line.stream, line.text) for line in lines} == {("stdout", "out"), ("stderr", "err")}
    started = host.report(run_id).started_at
    assert started is not None
    assert all(line.time.endswith("Z") and line.time[:10] == f"{started:%Y-%m-%d}" for line in lines)


def test_burst_of_lines_is_complete(host: Host) -> None:
    printed = host.run("exec python3 -c \"for n in range(50_000): print('line', n)\"")
    assert printed == [f"line {n}" for n in range(50_000)]


def test_log_goes_on_under_the_next_agent(host: Host) -> None:
    run_id = host.start("i=0; while [ $i -lt 60 ]; do echo $i; i=$((i+1)); sleep 0.03; done")
    for _ in range(3):
        before = len(host.printed(run_id))
        host.until(lambda n=before: len(host.printed(run_id)) > n)  # type: ignore[misc]
        host.new_agent()
    assert host.log(run_id) == [str(n) for n in range(60)]


def test_engine_that_rotates_logs_by_default_loses_no_line(own_engine: OwnEngine, tmp_path: Path) -> None:
    own_engine.restart(log_opts={"max-size": "4k", "max-file": "2"})
    with host_on(own_engine, tmp_path / "state") as host:
        assert host.run("i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done") == [
            str(n) for n in range(3000)
        ]


BARS = """
import os, time
print(*range(10), sep="\\n", flush=True)
while not os.path.exists("/data/go"): time.sleep(0.05)
for n in range(100): print(*(f"{n} {k}" for k in range(10_000)), sep="\\r")
print("end")
"""


def test_log_whose_beginning_the_engine_dropped_while_no_agent_looked_is_cut(
    host: Host, tmp_path: Path
) -> None:
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
