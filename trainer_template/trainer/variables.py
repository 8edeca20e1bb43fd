"""Variables that many change at once: what one parameter server holds. No network in here.

They are a vector, float32 [N], and the optimizer's state for it. The chief brings them, and with them what the
optimizer is to be made with, as its schedule depends on what only the chief knows. Whoever pulled the values pushes a
gradient of them when it has one. Each is applied as it comes, to values that others may have changed since it was
computed: by how many updates is its staleness.
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
    """There are no variables yet. The chief brings them: see Client.wait_until_initialized."""


class Snapshot(NamedTuple):
    """Variables at one moment: all that it takes to go on from there."""

    values: Values
    leaves: Leaves
    version: int


class Staleness(NamedTuple):
    """Of so many updates: by how many others the variables were ahead of those that the gradients were of."""

    updates: int
    mean: float
    max: int
    by_worker: dict[str, float]  # means


class Variables:
    """What one parameter server holds. Thread-safe; knows of no network."""

    def __init__(self, make_optimizer: MakeOptimizer) -> None:
        """`make_optimizer` gets, by keyword, the settings that come with the variables."""
        self._make_optimizer = make_optimizer
        self._lock = threading.Lock()
        self._version = -1
        self._settings: Settings = {}
        self._update: Any = None
        self._values: jax.Array = jnp.zeros(0, jnp.float32)
        self._state: Any = None
        self._last: dict[str, tuple[int, int]] = {}  # by worker: number and staleness of its last push
        self._active: dict[str, str] = {}  # workers, by task
        self._all, self._recent = _Tally(), _Tally()

    @property
    def version(self) -> int:
        """Updates applied so far, those before a checkpoint included; -1 before there are variables."""
        return self._version

    @property
    def settings(self) -> Settings:
        """Of the optimizer; empty before there are variables."""
        return self._settings

    def initialize(self, values: Values, leaves: Leaves | None, version: int, settings: Settings) -> bool:
        """Bring the variables [N], the optimizer's state for them (None: that before any update) and its settings.

        The first call wins; every later one is ignored and returns False, so that a chief that comes back after a
        crash does not undo what has been learned.

        Raises:
            ValueError: this is no vector, the state is of another optimizer or another number of elements, or there
                is no optimizer with such settings.
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
            # Copies, each with memory of its own to be written over.
            self._state = jax.tree.unflatten(jax.tree.structure(empty), [jnp.array(leaf) for leaf in leaves])
            self._update = _compile(optimizer)
            self._settings = dict(settings)
            self._version = version  # the last: who sees it asks for the settings without the lock
        log.info("Initialized: %d elements, version %d.", len(values), version)
        return True

    def pull(self, worker: str) -> tuple[Values, int]:
        """The values [N], not to be written to, and their version.

        A worker is named TASK/START: a new start takes the place of one that died.

        Raises:
            NotInitialized: there are none.
        """
        with self._lock:
            self._check_initialized()
            self._active[worker.partition("/")[0]] = worker
            return np.asarray(self._values), self._version

    def push(self, gradient: Values, computed_on: int, worker: str, number: int) -> int:
        """Apply a gradient [N] of the values that had the version `computed_on`; returns its staleness.

        `worker` is unique to one start of a worker's process, which numbers its gradients from 0. Each is applied
        once: the same number again (the answer had been lost) gets the same answer.

        Raises:
            NotInitialized: there are no variables.
            ValueError: the gradient has another length or is not finite, its version is still to come, or its number
                is less than the worker's last. Nothing has been changed.
        """
        finite = bool(np.isfinite(gradient).all())  # before the lock: it takes as long as the update
        with self._lock:
            self._check_initialized()
            last_number, last_staleness = self._last.get(worker, (-1, 0))
            if number == last_number:
                return last_staleness
            if np.shape(gradient) != self._values.shape:
                raise ValueError(other_shape(gradient, self._values.shape))
            if not finite:
                raise ValueError(NOT_FINITE)
            staleness = self._version - computed_on
            if staleness < 0 or number < last_number:
                raise ValueError(
                    f"Gradient {number} of {worker}, computed on version {computed_on}, comes after its gradient "
                    f"{last_number} and at version {self._version}."
                )
            changed = self._update(self._values, self._state, jnp.asarray(gradient, jnp.float32))
            self._values, self._state = jax.block_until_ready(changed)
            self._version += 1
            self._last[worker] = (number, staleness)
            self._all.add(worker, staleness)
            self._recent.add(worker, staleness)
            return staleness

    def leave(self, worker: str) -> None:
        """This worker will push no more."""
        with self._lock:
            if self._active.get(worker.partition("/")[0]) == worker:
                del self._active[worker.partition("/")[0]]

    def active(self) -> int:
        """How many workers have pulled and not left."""
        with self._lock:
            return len(self._active)

    def snapshot(self) -> Snapshot:
        """Values (not to be written to), optimizer's state and version of one moment.

        Raises:
            NotInitialized: there are none.
        """
        with self._lock:
            self._check_initialized()
            leaves = [np.array(leaf) for leaf in jax.tree.leaves(self._state)]
            return Snapshot(np.asarray(self._values), leaves, self._version)

    def staleness(self) -> Staleness:
        """Of all gradients since the start of this process."""
        with self._lock:
            return self._all.result()

    def recent_staleness(self) -> Staleness:
        """Of the gradients since this was last asked."""
        with self._lock:
            recent, self._recent = self._recent, _Tally()
            return recent.result()

    def _check_initialized(self) -> None:
        if self._version < 0:
            raise NotInitialized("not initialized")


def other_shape(gradient: Values, shape: tuple[int, ...]) -> str:
    return f"The gradient is of shape {np.shape(gradient)}, the variables are {shape}: another model?"


def _compile(optimizer: optax.GradientTransformation) -> Callable[..., tuple[jax.Array, Any]]:
    """(values, state, gradient) -> (values, state) after the update."""

    def update(values: jax.Array, state: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
        updates, state = optimizer.update(gradient, state, values)
        return optax.apply_updates(values, updates), state

    # The state's memory is written over. Not that of the values: pull hands out views of them and copies nothing.
    return jax.jit(update, donate_argnums=1)


def _kind(leaf: NDArray[Any]) -> tuple[tuple[int, ...], str]:
    return np.shape(leaf), str(np.asarray(leaf).dtype)


class _Tally:
    """Stalenesses, added up."""

    def __init__(self) -> None:
        self._max = 0
        self._by_worker: dict[str, tuple[int, int]] = {}  # updates, and the sum of their stalenesses

    def add(self, worker: str, staleness: int) -> None:
        updates, total = self._by_worker.get(worker, (0, 0))
        self._by_worker[worker] = (updates + 1, total + staleness)
        self._max = max(self._max, staleness)

    def result(self) -> Staleness:
        updates = sum(updates for updates, _ in self._by_worker.values())
        total = sum(total for _, total in self._by_worker.values())
        means = {worker: total / updates for worker, (updates, total) in self._by_worker.items()}
        return Staleness(updates, total / max(updates, 1), self._max, means)
