"""Kinds of the objects of a task, for messages, and how a function or a module can be called."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from flax import linen as nn

from trainyard_trainer.errors import TaskError

_LIBRARIES = {
    "flax.linen": "a module of flax.linen",
    "flax.nnx": "a module of flax.nnx",
    "equinox": "a module of Equinox",
    "optax": "an object of optax",
    "torch": "an object of PyTorch",
    "keras": "an object of Keras",
    "tensorflow": "an object of TensorFlow",
}


def kind(value: Any) -> str:
    """The kind of a value for a message, such as "a module of flax.linen (Network)"."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return "an array"
    library, name = library_of(value), type(value).__name__
    return f"{library} ({name})" if library else f"a {name}"


def library_of(value: Any) -> str:
    """The text of _LIBRARIES for an object of a class of one, or of a class derived from it; else nothing."""
    bases = [f"{base.__module__}." for base in type(value).__mro__]
    found = (text for module, text in _LIBRARIES.items() if any(base.startswith(f"{module}.") for base in bases))
    return next(found, "")


def accepts(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C
        return True
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        return False
    return True


def check_linen(module: Any) -> None:
    """Raises TaskError unless a module of flax.linen can be called with (inputs, train)."""
    if not isinstance(module, nn.Module):
        example = f"linen({module.__name__}())" if isinstance(module, type) else "linen(Network())"
        raise TaskError(
            f"linen(...) is for an object of a module of flax.linen, such as {example}, and got {kind(module)}. Any "
            "other network is NetworkFunctions(init, apply)."
        )
    first = module.layers[0] if isinstance(module, nn.Sequential) and module.layers else module
    if isinstance(first, nn.Module) and not accepts(type(first).__call__, (None, None), {"train": False}):
        raise TaskError(
            f"{type(module).__name__}.__call__ has no argument `train`. linen(...) calls it with (inputs, train=True) "
            "in training and train=False in evaluation, for dropout and BatchNorm: write def __call__(self, inputs, "
            "train)."
        )
