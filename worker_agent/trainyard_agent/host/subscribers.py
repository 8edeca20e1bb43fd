"""Those who are called when something has changed."""

from collections.abc import Callable


class Subscribers:
    """Functions that are called, from whatever thread sees a change."""

    def __init__(self) -> None:
        self._functions: list[Callable[[], None]] = []

    def add(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call it from now on. Returns a function that ends it."""
        self._functions.append(changed)
        return lambda: self._functions.remove(changed)

    def call(self) -> None:
        for changed in list(self._functions):
            changed()
