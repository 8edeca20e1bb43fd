"""The variables of one parameter server, without the network.

They are a vector, float32 [N], and the optimizer's state for it. The chief sends them together with the optimizer's
settings, since its schedule depends on the chief's flags and data. A pushed gradient is applied on arrival; its
staleness is the number of updates since the values that it was computed on were pulled.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

log = logging.getLogger("trainer")

Values = NDArray[np.float32]
Leaves = list[NDArray[Any]]  # of the optimizer's state, in the order of jax.tree.leaves
Settings = Mapping[str, str | int | float]
MakeOptimizer = Callable[..., optax.GradientTransformation]

NOT_FINITE = "The gradient is not finite: try a lower learning rate."


class NotInitialized(RuntimeError):
    """There are no variables yet. The chief sends them: see ParameterServerClient.wait_until_initialized."""


class Snapshot(NamedTuple):
    """Everything that is needed to resume from a version of the variables."""

    values: Values
    leaves: Leaves
    version: int


class Staleness(NamedTuple):
    """Statistics of the staleness of a number of updates."""

    updates: int
    mean: float
    max: int


class Variables:
    """The variables of one parameter server. Thread-safe."""

    def __init__(self, make_optimizer: MakeOptimizer) -> None:
        """`make_optimizer` is called with the settings that are sent with the variables."""
        self._make_optimizer = make_optimizer
        self._lock = threading.Lock()
        self._version = -1
        self._settings: Settings = {}
        self._update: Any = None
        self._values: jax.Array = jnp.zeros(0, jnp.float32)
        self._state: Any = None
        self._last: dict[str, tuple[int, int]] = {}  # by worker: number and staleness of its last push
        self._active: dict[str, str] = {}  # workers, by task
        self._all, self._recent = _StalenessSums(), _StalenessSums()

    @property
    def version(self) -> int:
        """Updates applied so far, including those before a checkpoint; -1 if not initialized."""
        return self._version

    @property
    def settings(self) -> Settings:
        """The optimizer's settings; empty if not initialized."""
        return self._settings

    def initialize(self, values: Values, leaves: Leaves | None, version: int, settings: Settings) -> bool:
        """Set the variables [N], the optimizer's state for them (None: the initial one) and its settings.

        Later calls are ignored and return False, so that a chief that was restarted does not reset training.

        Raises:
            ValueError: the values are no vector, the state is of another optimizer or another number of elements, or
                the optimizer does not accept such settings.
        """
        if np.ndim(values) != 1 or version < 0:
            raise ValueError(f"Variables of shape {np.shape(values)} and version {version}.")
        try:
            optimizer = self._make_optimizer(**settings)
        except TypeError as error:
            raise ValueError(
                f"The chief and this parameter server run different versions of the trainer: {error}."
            ) from error
        empty = optimizer.init(jnp.asarray(values, jnp.float32))
        expected = [np.asarray(leaf) for leaf in jax.tree.leaves(empty)]
        leaves = expected if leaves is None else leaves
        if [_kind(leaf) for leaf in leaves] != [_kind(leaf) for leaf in expected]:
            raise ValueError(
                "The optimizer's state is of another optimizer or another model: "
                f"{[_kind(leaf) for leaf in leaves]} instead of {[_kind(leaf) for leaf in expected]}."
            )
        with self._lock:
            if self._version >= 0:
                return False
            self._values = jnp.array(values, jnp.float32)
            # Copies, because the update is in place.
            self._state = jax.tree.unflatten(jax.tree.structure(empty), [jnp.array(leaf) for leaf in leaves])
            self._update = _compile(optimizer)
            self._settings = dict(settings)
            self._version = version  # last: `settings` is read without the lock once a version is set
        log.info("Initialized: %d elements, version %d.", len(values), version)
        return True

    def pull(self, worker: str) -> tuple[Values, int]:
        """The values [N] (read-only) and their version.

        A worker is named TASK/START: a new start replaces the one that died.

        Raises:
            NotInitialized: there are no variables.
        """
        with self._lock:
            self._check_initialized()
            self._active[worker.partition("/")[0]] = worker
            return np.asarray(self._values), self._version

    def push(self, gradient: Values, computed_on: int, worker: str, number: int) -> int:
        """Apply a gradient [N] of the values that had the version `computed_on`; returns its staleness.

        `worker` is unique to one start of a worker's process, which numbers its gradients from 0. Each is applied
        once: a repeated number (after a lost response) returns the same staleness.

        Raises:
            NotInitialized: there are no variables.
            ValueError: the gradient has another length or is not finite, its version is in the future, or its number
                is less than the worker's last. The variables are unchanged.
        """
        finite = bool(np.isfinite(gradient).all())  # outside the lock: it takes as long as the update
        with self._lock:
            self._check_initialized()
            last_number, last_staleness = self._last.get(worker, (-1, 0))
            if number == last_number:
                return last_staleness
            if np.shape(gradient) != self._values.shape:
                raise ValueError(shape_mismatch(gradient, self._values.shape))
            if not finite:
                raise ValueError(NOT_FINITE)
            staleness = self._version - computed_on
            if staleness < 0 or number < last_number:
                raise ValueError(
                    f"Gradient {number} of {worker}, computed on version {computed_on}, comes after its gradient "
                    f"{last_number} and at version {self._version}."
                )
            updated = self._update(self._values, self._state, jnp.asarray(gradient, jnp.float32))
            self._values, self._state = jax.block_until_ready(updated)
            self._version += 1
            self._last[worker] = (number, staleness)
            self._all.add(staleness)
            self._recent.add(staleness)
            return staleness

    def leave(self, worker: str) -> None:
        """Record that this worker sends no more gradients."""
        with self._lock:
            if self._active.get(worker.partition("/")[0]) == worker:
                del self._active[worker.partition("/")[0]]

    def active(self) -> int:
        """Number of workers that have pulled and not left."""
        with self._lock:
            return len(self._active)

    def snapshot(self) -> Snapshot:
        """A consistent copy of values (read-only), optimizer's state and version.

        Raises:
            NotInitialized: there are no variables.
        """
        with self._lock:
            self._check_initialized()
            leaves = [np.array(leaf) for leaf in jax.tree.leaves(self._state)]
            return Snapshot(np.asarray(self._values), leaves, self._version)

    def staleness(self) -> Staleness:
        """Staleness of all gradients since the start of this process."""
        with self._lock:
            return self._all.result()

    def recent_staleness(self) -> Staleness:
        """Staleness of the gradients since the last call."""
        with self._lock:
            recent, self._recent = self._recent, _StalenessSums()
            return recent.result()

    def _check_initialized(self) -> None:
        if self._version < 0:
            raise NotInitialized("not initialized")


def shape_mismatch(gradient: Values, shape: tuple[int, ...]) -> str:
    return f"The gradient is of shape {np.shape(gradient)}, the variables are {shape}: another model?"


def _compile(optimizer: optax.GradientTransformation) -> Callable[..., tuple[jax.Array, Any]]:
    """(values, state, gradient) -> (values, state) after the update."""

    def update(values: jax.Array, state: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
        updates, state = optimizer.update(gradient, state, values)
        return optax.apply_updates(values, updates), state

    # The state is donated. The values are not, because `pull` returns views of them.
    return jax.jit(update, donate_argnums=1)


def _kind(leaf: NDArray[Any]) -> tuple[tuple[int, ...], str]:
    return np.shape(leaf), str(np.asarray(leaf).dtype)


class _StalenessSums:
    """The staleness of a number of updates, accumulated."""

    def __init__(self) -> None:
        self._updates = self._total = self._max = 0

    def add(self, staleness: int) -> None:
        self._updates += 1
        self._total += staleness
        self._max = max(self._max, staleness)

    def result(self) -> Staleness:
        return Staleness(self._updates, self._total / max(self._updates, 1), self._max)
