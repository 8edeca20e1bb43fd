"""Multi-process training (jax.distributed): initialization, collectives on host data, stopping and shutdown."""

import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from trainer.cluster import ClusterSpec
from trainer.errors import TrainerError

log = logging.getLogger("trainer")

# Seconds. JAX's defaults are 300, 100 and 300: long for a job that cannot start or has lost its chief.
START_TIMEOUT = 120
HEARTBEAT_TIMEOUT = 20
SHUTDOWN_TIMEOUT = 60


class JoinError(TrainerError):
    """The processes of the job could not connect."""


def initialize(cluster: ClusterSpec) -> None:
    """Connect to the other processes; afterwards JAX sees the devices of all. No-op for a single process.

    Raises:
        JoinError: the chief cannot listen at its address, a process did not connect in time, or processes have
            different numbers of devices.
    """
    if cluster.coordinator is None:
        return
    import jax

    log.info(
        "Process %d of %d, coordinator %s.",
        cluster.process_id,
        cluster.num_processes,
        cluster.coordinator,
    )
    loopback = cluster.coordinator.startswith(("127.", "localhost:", "[::1]:"))
    if cluster.is_chief:
        _check_port_is_free(cluster.coordinator, loopback)
    jax.distributed.initialize(
        coordinator_address=cluster.coordinator,
        num_processes=cluster.num_processes,
        process_id=cluster.process_id,
        cluster_detection_method="deactivate",  # no auto-detection
        initialization_timeout=START_TIMEOUT,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        coordinator_bind_address=cluster.coordinator if loopback else None,
    )
    # The first collective times out after 30 s. Run it now: after loading data, which may take one process much longer,
    # it would fail.
    local = jax.local_device_count()
    ones = np.ones(local, np.float32)
    total = jax.pmap(lambda one: jax.lax.psum(one, "replica"), "replica")(ones).addressable_data(0)
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
    own = np.frombuffer(data, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(own), np.uint8).tobytes()


def gather(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers [N] of each process -> [processes, N]. All processes call this together."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return numbers[np.newaxis]
    # 32 bits: the default of JAX.
    return np.asarray(multihost_utils.process_allgather(numbers.astype(np.int32)), np.int64)


def make_stop_check() -> Callable[[int], bool]:
    """Install SIGTERM handling; returns a function of the step that is true when training must stop.

    For a single process, that is the first step after the signal. With several processes, JAX handles the signal and
    makes all processes agree on a step that none has passed, so that they stop together. Every process must call the
    function after every step.
    """
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() > 1:
        return multihost_utils.reached_preemption_sync_point
    received = False

    def on_sigterm(_signal: int, _frame: FrameType | None) -> None:
        nonlocal received
        received = True

    signal.signal(signal.SIGTERM, on_sigterm)
    return lambda _step: received


def shutdown() -> None:
    """Wait for all processes, as the chief's coordinator must outlive them."""
    import jax

    if jax.process_count() > 1:
        jax.distributed.shutdown()


def _check_port_is_free(coordinator: str, loopback: bool) -> None:
    """JAX would crash with a segmentation fault if the port is in use."""
    host, _, port = coordinator.rpartition(":")
    try:
        socket.create_server((host.strip("[]") if loopback else "", int(port))).close()
    except (OSError, ValueError) as error:
        raise JoinError(f"The chief cannot listen at {coordinator}: {error}") from error
