"""A named pipe by which processes of this machine wake a thread of the agent. What is written has no meaning."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

_BYTES = 1 << 16


def listen(path: Path, wake: Callable[[], None]) -> Callable[[], None]:
    """Call `wake`, in a thread, after something was written to the pipe at `path`, which is made where it is missing.
    Returns a function that ends the thread. Raises OSError."""
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        if not path.is_fifo():
            raise OSError(errno.EEXIST, "is not a named pipe", str(path)) from None
    pipe = os.open(path, os.O_RDWR)  # with its own writer: else it ends with the last other one
    closing = threading.Event()

    def run() -> None:
        while os.read(pipe, _BYTES) and not closing.is_set():
            wake()
        os.close(pipe)

    def close() -> None:
        closing.set()
        os.write(pipe, b".")
        thread.join()

    thread = threading.Thread(target=run, daemon=True, name=f"reader of {path.name}")
    thread.start()
    return close
