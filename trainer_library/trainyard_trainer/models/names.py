"""Names of the arrays of a tree, such as Dense_0/kernel: what flags, rules and exported models call a parameter."""

from typing import Any

import jax

PyTree = Any


def leaf_name(path: Any) -> str:
    """The name of a leaf, by its path as `jax.tree_util` has it."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def names(tree: PyTree) -> PyTree:
    """The tree of the leaves' names."""
    return jax.tree_util.tree_map_with_path(lambda path, _leaf: leaf_name(path), tree)


def by_name(tree: PyTree) -> dict[str, Any]:
    """The leaves by their names."""
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
