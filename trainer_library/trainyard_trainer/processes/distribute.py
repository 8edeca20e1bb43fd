"""Multi-process training (jax.distributed): initialization, collectives on host data, stopping and shutdown."""

import itertools
import logging
import signal
from collections.abc import Callable
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.processes.cluster import ClusterSpec
from trainyard_trainer.processes.rendezvous import JoinError, is_loopback, meet

log = logging.getLogger("trainer")

# Seconds. JAX's defaults are 300, 100 and 300: long for a job that cannot start or has lost its chief.
START_TIMEOUT = 120
HEARTBEAT_TIMEOUT = 20
SHUTDOWN_TIMEOUT = 3600  # the chief may still be writing; a process that dies is noticed by its heartbeats

BROADCAST_BYTES = 64 * 2**20  # of one collective


def initialize(cluster: ClusterSpec) -> None:
    """Connect to the other processes; afterwards JAX sees the devices of all. No-op for a single process.

    Raises:
        JoinError: the chief cannot listen at its address, a process did not connect in time, or processes have
            different numbers of devices.
    """
    if cluster.coordinator is None:
        return
    import jax

    log.info("Process %d of %d, coordinator %s.", cluster.process_id, cluster.num_processes, cluster.coordinator)
    meet(cluster, START_TIMEOUT)
    jax.distributed.initialize(
        coordinator_address=cluster.coordinator,
        num_processes=cluster.num_processes,
        process_id=cluster.process_id,
        cluster_detection_method="deactivate",  # no auto-detection
        initialization_timeout=START_TIMEOUT,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        coordinator_bind_address=cluster.coordinator if is_loopback(cluster.coordinator) else None,
    )
    # The first collective times out after 30 s. Run it now: after loading data, which may take one process much longer,
    # it would fail.
    local = jax.local_device_count()
    ones = np.ones(local, np.float32)
    total = jax.pmap(lambda value: jax.lax.psum(value, "replica"), "replica")(ones).addressable_data(0)
    if int(total[0]) != local * cluster.num_processes:
        raise JoinError(
            f"This process has {local} devices, all {cluster.num_processes} processes have {int(total[0])}: "
            "each must have the same number."
        )


def broadcast(data: bytes) -> bytes:
    """The chief's data, in every process. All processes call this together; only the chief's argument is used."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return data
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    buffer = np.zeros(size, np.uint8)
    if jax.process_index() == 0:
        buffer[:] = np.frombuffer(data, np.uint8)
    broadcast_into(buffer)
    return buffer.tobytes()


def broadcast_into(buffer: NDArray[np.uint8]) -> None:
    """Replace the bytes by the chief's, of any number, in pieces. All processes call this together."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return
    for start in range(0, len(buffer), BROADCAST_BYTES):
        piece = buffer[start : start + BROADCAST_BYTES]
        piece[:] = np.asarray(multihost_utils.broadcast_one_to_all(piece), np.uint8)


def gather(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers [N] of each process -> [processes, N]. All processes call this together."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return numbers[np.newaxis]
    # 32 bits: the default of JAX.
    return np.asarray(multihost_utils.process_allgather(numbers.astype(np.int32)), np.int64)


def make_stop_check() -> Callable[[], bool]:
    """Install SIGTERM handling; returns a function that is true when training must stop.

    For a single process, that is the first call after the signal. With several processes, JAX handles the signal and
    makes all processes agree on a call that none has made, so that they stop together. Every process must call the
    function after every step, and after every batch of an evaluation.
    """
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() > 1:
        calls = itertools.count(1)
        return lambda: multihost_utils.reached_preemption_sync_point(next(calls))
    received = False

    def on_sigterm(_signal: int, _frame: FrameType | None) -> None:
        nonlocal received
        received = True

    signal.signal(signal.SIGTERM, on_sigterm)
    return lambda: received


def shutdown() -> None:
    """Wait for all processes, as the chief's coordinator must outlive them."""
    import jax

    if jax.process_count() > 1:
        jax.distributed.shutdown()
