"""Many processes as one trainer: meeting, agreeing, stopping and parting (jax.distributed)."""

import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from trainer.cluster import Cluster
from trainer.errors import TrainerError

log = logging.getLogger("trainer")

# Seconds. JAX's own are 300, 100 and 300: long to look at a job that cannot start, or whose chief is lost.
START_TIMEOUT = 120
HEARTBEAT_TIMEOUT = 20
SHUTDOWN_TIMEOUT = 60


class JoinError(TrainerError):
    """The processes of the job did not come together."""


def join(cluster: Cluster) -> None:
    """Meet the other processes; afterwards JAX sees the devices of all of them. A lone process has nobody to meet.

    Raises:
        JoinError: the chief cannot listen where the others expect it, the others did not come in time, or they bring
            another number of devices.
    """
    if cluster.coordinator is None:
        return
    import jax

    log.info(
        "Process %d of %d; meeting at %s.", cluster.process_id, cluster.num_processes, cluster.coordinator
    )
    loopback = cluster.coordinator.startswith(("127.", "localhost:", "[::1]:"))
    if cluster.is_chief:
        _check_port_is_free(cluster.coordinator, loopback)
    jax.distributed.initialize(
        coordinator_address=cluster.coordinator,
        num_processes=cluster.num_processes,
        process_id=cluster.process_id,
        cluster_detection_method="deactivate",  # everything is said above
        initialization_timeout=START_TIMEOUT,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        coordinator_bind_address=cluster.coordinator if loopback else None,
    )
    # The first collective waits for the others for 30 s and no longer. Here all have just met; after loading data,
    # which may take one of them much longer, it would fail.
    local = jax.local_device_count()
    ones = np.ones(local, np.float32)
    total = jax.pmap(lambda one: jax.lax.psum(one, "replica"), "replica")(ones).addressable_data(0)
    if int(total[0]) != local * cluster.num_processes:
        raise JoinError(
            f"This process has {local} devices, all {cluster.num_processes} processes have {int(total[0])}: "
            "each must have the same number."
        )


def broadcast(data: bytes) -> bytes:
    """The chief's data, in every process. All processes call this together; what the others pass is ignored."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return data
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    mine = np.frombuffer(data, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine), np.uint8).tobytes()


def gather(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every process's numbers [N] -> those of all [processes, N]. All processes call this together."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return numbers[np.newaxis]
    # As 32 bits: JAX has no others, unless asked for.
    return np.asarray(multihost_utils.process_allgather(numbers.astype(np.int32)), np.int64)


def stop_watch() -> Callable[[int], bool]:
    """From now on SIGTERM asks training to stop: returns a function that is called after each step and says when.

    Alone, that is the first step after the signal. Among several processes JAX keeps the signal from Python and lets
    them agree on a step which none of them has passed, whichever was signalled: the function is true in all of them at
    that step, so that none waits for another that has stopped. It must be called with every step, in every process.
    """
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() > 1:
        return multihost_utils.reached_preemption_sync_point
    received = False

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal received
        received = True

    signal.signal(signal.SIGTERM, remember)
    return lambda _step: received


def part() -> None:
    """Wait until every process has come to its end, so that none loses the chief while it still needs it."""
    import jax

    if jax.process_count() > 1:
        jax.distributed.shutdown()


def _check_port_is_free(coordinator: str, loopback: bool) -> None:
    """Asked before JAX does, which ends in a segmentation fault where the port is taken."""
    host, _, port = coordinator.rpartition(":")
    try:
        socket.create_server((host.strip("[]") if loopback else "", int(port))).close()
    except (OSError, ValueError) as error:
        raise JoinError(f"The chief cannot listen at {coordinator}: {error}") from error
