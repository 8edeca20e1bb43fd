"""Limits of a job's config, checked before it is validated: validation and its messages cost much more. Pure."""

MAX_BYTES = 2**20
"""Bytes of the text of a config, and of the body of a request that has one."""

MAX_VALUES = 10_000
"""Values of a document: scalars, lists and mappings, each place counted."""

MAX_KEYS = 500
"""Keys of one mapping."""

MAX_DEPTH = 32
"""Lists and mappings around a value. A job needs 6."""


def excess(data: object) -> str:
    """The limit that a document exceeds, as the end of a sentence; "" within all of them.

    It visits each place once, without recursion, and not more than MAX_VALUES of them.
    """
    visited, level = 0, [data]
    for _ in range(MAX_DEPTH + 1):
        inner: list[object] = []
        visited += len(level)
        for value in level:
            if isinstance(value, dict):
                if len(value) > MAX_KEYS:
                    return f"has a mapping with {len(value)} keys; {MAX_KEYS} are allowed."
                inner += value.values()
            elif isinstance(value, list | tuple):
                inner += value
            if visited + len(inner) > MAX_VALUES:
                return f"has more than {MAX_VALUES} values."
        if not inner:
            return ""
        level = inner
    return f"is nested too deeply; {MAX_DEPTH} levels are allowed."
