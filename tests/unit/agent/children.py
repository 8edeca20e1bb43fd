"""Processes that the code under test has started in this process."""

from contextlib import suppress

import psutil


def children_with(word: str) -> list[psutil.Process]:
    """The descendants of this process that have the word in an argument of their command."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if any(word in argument for argument in process.cmdline()):
                found.append(process)
    return found
