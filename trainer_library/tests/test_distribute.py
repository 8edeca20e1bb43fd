import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from support.addresses import free_addresses
from trainyard_trainer.processes import distribute, rendezvous
from trainyard_trainer.processes.cluster import ClusterSpec


def member(address: str, process: int, processes: int = 3) -> ClusterSpec:
    names = ("chief 0", *(f"worker {index}" for index in range(processes - 1)))
    return ClusterSpec(index=process, num_processes=processes, names=names, coordinator=address)


def outcome(spec: ClusterSpec, timeout: float) -> str:
    """Result of the start in one process."""
    try:
        rendezvous.meet(spec, timeout)
    except rendezvous.JoinError as error:
        return str(error)
    return "joined"


def connected(address: str) -> socket.socket:
    """A connection to the chief, when it listens."""
    host, _, port = address.partition(":")
    for _ in range(600):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, int(port)))
        time.sleep(0.1)
    raise AssertionError(f"Nobody listens at {address}.")


def test_join_where_the_port_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(rendezvous.JoinError, match=f"cannot listen at {address}: .*in use"):
            distribute.initialize(member(address, 0))


def test_job_begins_when_all_have_joined_whatever_else_connects() -> None:
    (address,) = free_addresses(1)
    with ThreadPoolExecutor() as pool:
        chief = pool.submit(outcome, member(address, 0), 60)
        with connected(address) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(1) == b""
        assert "it does not wait" in outcome(member(address, 1, processes=2), 1)  # of another job
        with connected(address) as gone:
            gone.sendall(b"join 2 3\n")  # a worker that dies before the others have come
        worker = pool.submit(outcome, member(address, 1), 60)
        assert outcome(member(address, 2), 60) == "joined"
        assert (chief.result(), worker.result()) == ("joined", "joined")


def test_missing_process_is_named_in_those_that_wait_for_it() -> None:
    (address,) = free_addresses(1)
    with ThreadPoolExecutor() as pool:
        worker = pool.submit(outcome, member(address, 1), 60)
        message = f"After 1 s the chief at {address} still waits for: worker 1."
        assert outcome(member(address, 0), 1) == f"{message} Do they run, and can they connect to this address?"
        assert worker.result() == message
    assert outcome(member(address, 1), 1).startswith(f"Could not join the chief at {address} within 1 s: [Errno")


def test_state_above_2_gib_is_broadcast_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    class LargeBuffer:
        """A buffer of 3 GiB without its memory."""

        def __init__(self) -> None:
            self.pieces: list[slice] = []

        def __len__(self) -> int:
            return 3 * 2**30

        def __getitem__(self, piece: slice) -> np.ndarray:
            self.pieces.append(piece)
            return np.zeros(1, np.uint8)

    buffer: Any = LargeBuffer()
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.experimental.multihost_utils.broadcast_one_to_all", lambda piece: piece)
    distribute.broadcast_into(buffer)
    ends = [piece.stop for piece in buffer.pieces]
    assert [piece.start for piece in buffer.pieces] == [0, *ends[:-1]]
    assert ends[-1] >= len(buffer)
    assert {piece.stop - piece.start for piece in buffer.pieces} == {distribute.BROADCAST_BYTES}
