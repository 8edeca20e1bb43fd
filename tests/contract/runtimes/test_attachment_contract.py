"""Commands beside the program of a replica, and its ports, in every runtime."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import FINE, FOREVER, Driver, KubernetesLab, Program, order
from trainyard_agent.runtimes import ports
from trainyard_agent.runtimes.attaching.attachment import Attachment, NotAttachable
from trainyard_protocol.wire.attachments import CHUNK, STDERR, STDOUT, Terminal, TerminalSize

CHIEF = "master-replica-0"
SIZE = 20_000_000

SERVER = """
import os, socket
server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
print("up", flush=True)
while True:
    connection, _ = server.accept()
    with connection:
        size = int(connection.makefile("rb").readline())
        block = bytes(range(256)) * 256
        while size > 0:
            size -= connection.send(block[:size])
"""

LOOKS = ["sh", "-c", "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f 2>/dev/null; echo; done"]


def start(driver: Driver, run_id: str, program: Program, **variables: str) -> None:
    driver.runtime.place(order(run_id, CHIEF))
    launch = driver.lab.launch(CHIEF, program)
    secrets = {"SECRET": "s3cret-value"}
    driver.runtime.start(run_id, [replace(launch, environment={**launch.environment, **variables}, secrets=secrets)])
    driver.until(lambda: driver.texts(run_id, CHIEF)[:1] == ["up"])


@contextmanager
def attached(attachment: Attachment) -> Iterator[Attachment]:
    try:
        yield attachment
    finally:
        attachment.close()
        attachment.release()


def outcome(driver: Driver, run_id: str, command: Sequence[str], text: bytes = b"") -> tuple[bytes, bytes, int]:
    """The stdout, stderr and exit code of a command."""
    with attached(driver.runtime.execute(run_id, CHIEF, command, None)) as attachment:
        writing = Thread(target=write, args=(attachment, text))
        writing.start()
        outputs = {STDOUT: b"", STDERR: b""}
        while (output := attachment.read()) is not None:
            outputs[output[0]] += output[1]
        writing.join()
        return outputs[STDOUT], outputs[STDERR], attachment.exit_code()


def write(attachment: Attachment, text: bytes) -> None:
    for at in range(0, len(text), CHUNK):
        attachment.write(text[at : at + CHUNK])
    attachment.end_input()


def until(attachment: Attachment, text: bytes) -> bytes:
    """The output up to a text."""
    seen = b""
    while text not in seen:
        output = attachment.read()
        assert output is not None, seen
        seen += output[1]
    return seen


def test_command_has_what_the_program_has(real_driver: Driver) -> None:
    driver, run_id = real_driver, unique_run("a")
    start(driver, run_id, FOREVER, ODD="a 'b' $HOME")
    show = 'echo "$ODD|$SECRET|$(pwd)|$(id -u)"; echo wrong >&2; exit 7'
    out, err, code = outcome(driver, run_id, ["sh", "-c", show])
    odd, secret, directory, user = out.decode().strip().split("|")
    assert (odd, secret, code) == ("a 'b' $HOME", "s3cret-value", 7)
    assert err == b"wrong\n"
    if program := driver.runtime.processes(run_id, CHIEF):  # that the agent sees
        proc = Path(f"/proc/{program[0]}")
        assert (directory, int(user)) == (str((proc / "cwd").readlink()), proc.stat().st_uid)
    data = bytes(range(256)) * 4096
    out, err, code = outcome(driver, run_id, ["head", "-c", str(len(data))], data)
    assert (hashlib.sha256(out).hexdigest(), err, code) == (hashlib.sha256(data).hexdigest(), b"", 0)
    assert outcome(driver, run_id, ["sh", "-c", "kill -9 $$"])[2] == 128 + 9
    if not isinstance(driver.lab, KubernetesLab):  # the cluster of the tests is older than 1.30
        assert outcome(driver, run_id, ["cat"], b"to its end") == (b"to its end", b"", 0)
    driver.runtime.remove(run_id)


def test_terminal_has_a_size_and_ctrl_c(real_driver: Driver) -> None:
    driver, run_id = real_driver, unique_run("b")
    start(driver, run_id, FOREVER)
    terminal = Terminal(rows=33, columns=111, kind="xterm")
    with attached(driver.runtime.execute(run_id, CHIEF, ["sh"], terminal)) as shell:
        shell.write(b"stty size; echo kind:$TERM:\n")
        assert b"33 111" in until(shell, b"kind:xterm:")
        shell.resize(TerminalSize(rows=44, columns=99))
        deadline = time.monotonic() + 60
        seen = b""
        while b"44 99" not in seen and time.monotonic() < deadline:  # the size arrives beside what is typed
            shell.write(b"stty size; echo asked\n")
            seen = until(shell, b"asked\r\n")
        assert b"44 99" in seen
        shell.write(b"sleep 1000; echo status:$?:\n")
        time.sleep(1.0)
        shell.write(b"\x03")
        shell.write(b"echo go on; exit 5\n")
        while shell.read() is not None:
            pass
        assert shell.exit_code() == 5
    driver.runtime.remove(run_id)


LEAVES = """
trap '' HUP TERM INT
(setsid sleep 986 >/dev/null 2>&1 </dev/null &)
(nohup sleep 986 >/dev/null 2>&1 </dev/null &)
set -m
sleep 986 &
echo here
"""
"""What a shell leaves that is in no session and no process group of its own."""


def test_command_leaves_nothing_at_its_end_and_none_does_at_that_of_its_agent(real_driver: Driver) -> None:
    driver, run_id = real_driver, unique_run("g")
    start(driver, run_id, FOREVER)
    with attached(driver.runtime.execute(run_id, CHIEF, ["sh", "-c", LEAVES], None)) as command:
        assert until(command, b"here\n")
    driver.until(lambda: b"sleep 986" not in outcome(driver, run_id, LOOKS)[0])

    killed = driver.runtime.execute(run_id, CHIEF, ["sh", "-c", f"{LEAVES}; sleep 986"], None)
    assert until(killed, b"here\n")
    killed._end = lambda *_: None  # type: ignore[attr-defined] # as one whose agent is killed
    driver.lab.reopen().recover()
    driver.until(lambda: b"sleep 986" not in outcome(driver, run_id, LOOKS)[0])
    killed.close()
    killed.release()
    driver.runtime.remove(run_id)


def test_port_carries_much_data_and_a_closed_one_says_so(real_driver: Driver) -> None:
    driver, run_id = real_driver, unique_run("d")
    port, closed = ports.free_ports(2, set())
    start(driver, run_id, Program(python=SERVER), PORT=str(port))
    with attached(driver.runtime.connect(run_id, CHIEF, port)) as connection:
        connection.write(f"{SIZE}\n".encode())
        total, size = hashlib.sha256(), 0
        while (output := connection.read()) is not None:
            total.update(output[1])
            size += len(output[1])
    expected = hashlib.sha256((bytes(range(256)) * (SIZE // 256 + 1))[:SIZE])
    assert (size, total.hexdigest()) == (SIZE, expected.hexdigest())

    problem = ""
    try:
        with attached(driver.runtime.connect(run_id, CHIEF, closed)) as connection:
            while (output := connection.read()) is not None:
                assert output[0] == STDERR
                problem += output[1].decode()
            assert connection.exit_code() != 0
    except NotAttachable as error:
        problem = error.message
    assert "refused" in problem.lower()
    driver.runtime.remove(run_id)


def test_nothing_is_attached_to_what_does_not_run(driver: Driver) -> None:
    run_id = unique_run("e")
    driver.start(run_id, {CHIEF: FINE})
    driver.wait_for_exits(run_id)
    for unknown in (run_id, unique_run("f")):
        with pytest.raises(NotAttachable, match=f"{CHIEF} does not run"):
            driver.runtime.execute(unknown, CHIEF, ["true"], None)
        with pytest.raises(NotAttachable, match=f"{CHIEF} does not run"):
            driver.runtime.connect(unknown, CHIEF, 80)
