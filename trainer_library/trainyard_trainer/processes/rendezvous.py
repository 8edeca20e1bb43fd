"""The start of a job of several processes: the chief waits for the others at the coordinator's address.

jax.distributed.initialize aborts the process with a C++ stack if one of them is missing. So they first meet on the same
port without JAX: a worker connects and sends its process id, the chief answers `go` when all have connected.
"""

import contextlib
import logging
import socket
import time

from trainyard_trainer.errors import TrainerError
from trainyard_trainer.processes.cluster import ClusterSpec

log = logging.getLogger("trainer")

POLL = 0.2  # seconds between two attempts to connect
GREETING = 5.0  # seconds for the first line of a connection
REMINDER = 15.0  # seconds between two log messages of a wait
GO = "go"


class JoinError(TrainerError):
    """The processes of the job could not connect."""


def meet(cluster: ClusterSpec, timeout: float) -> None:
    """Wait for all processes of the job.

    Raises:
        JoinError: the chief cannot listen at its address, or a process did not connect in time.
    """
    if cluster.is_chief:
        _wait_for_workers(cluster, timeout)
    else:
        _wait_for_chief(cluster, timeout)


def is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost:", "[::1]:"))


def _wait_for_workers(cluster: ClusterSpec, timeout: float) -> None:
    workers: dict[int, socket.socket] = {}
    deadline, reminder = time.monotonic() + timeout, time.monotonic() + REMINDER
    with contextlib.ExitStack() as closing:
        server = closing.enter_context(_listen(str(cluster.coordinator)))
        server.settimeout(POLL)
        while True:
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                process = _greeting(closing.enter_context(connection), cluster)
                if process is not None:
                    workers[process] = connection  # of two with one id, the newer: a worker that was restarted
            missing = [
                process
                for process in range(1, cluster.num_processes)
                if process not in workers or _is_closed(workers[process])
            ]
            if not missing:
                break
            names = ", ".join(cluster.names[process] for process in missing)
            if time.monotonic() > deadline:
                refusal = f"After {timeout:.0f} s the chief at {cluster.coordinator} still waits for: {names}."
                for connection in workers.values():
                    _send(connection, refusal)
                raise JoinError(f"{refusal} Do they run, and can they connect to this address?")
            if time.monotonic() > reminder:
                log.info("Waiting for %s to connect to %s.", names, cluster.coordinator)
                reminder += REMINDER
        for connection in workers.values():
            _send(connection, GO)


def _wait_for_chief(cluster: ClusterSpec, timeout: float) -> None:
    host, _, port = str(cluster.coordinator).rpartition(":")
    deadline = time.monotonic() + timeout
    problem = ""
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), GREETING) as connection:
                _send(connection, f"join {cluster.process_id} {cluster.num_processes}")
                answer = _line(connection, deadline - time.monotonic() + GREETING)
        except (OSError, ValueError) as error:
            problem = str(error)
        else:
            if answer == GO:
                return
            if answer.startswith("After "):
                raise JoinError(answer)
            # E.g. the chief of an earlier start, which trains without this process and will end.
            problem = "it does not wait for processes"
        time.sleep(POLL)
    raise JoinError(
        f"Could not join the chief at {cluster.coordinator} within {timeout:.0f} s: {problem}. Does it run, and can "
        "this process connect to it?"
    )


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        if is_loopback(address):
            family = socket.AF_INET6 if host == "[::1]" else socket.AF_INET
            return socket.create_server((host.strip("[]"), int(port)), family=family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", int(port)), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", int(port)))
    except (OSError, ValueError) as error:
        raise JoinError(f"The chief cannot listen at {address}: {error}") from error


def _greeting(connection: socket.socket, cluster: ClusterSpec) -> int | None:
    """The process id of a worker of this job; None for any other connection."""
    try:
        word, process, processes = _line(connection, GREETING).split(" ")
        if (word, int(processes)) == ("join", cluster.num_processes):
            return int(process)
    except (OSError, ValueError):
        pass
    connection.close()
    return None


def _line(connection: socket.socket, timeout: float) -> str:
    connection.settimeout(timeout)
    with connection.makefile("rb") as stream:
        return stream.readline(500).decode(errors="replace").rstrip("\n")


def _send(connection: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # the other process is gone: JAX will report it
        connection.sendall(f"{line}\n".encode())


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other process has ended."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)
