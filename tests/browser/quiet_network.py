"""Network namespace for the browser, in which interfaces never change.

Chromium aborts requests when an interface is added or removed (ERR_NETWORK_CHANGED), and the container tests that run
beside the browser tests add and remove many. Takes root.
"""

import ctypes
import os
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TOOLS = ("unshare", "nsenter", "ip")
_CLONE_NEWNET = 0x40000000  # <linux/sched.h>


def is_possible() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, _TOOLS))


class QuietNetwork:
    """`namespace` is a path as nsenter(1) takes it; None: the machine's own network."""

    def __init__(self, namespace: Path | None) -> None:
        self._namespace = namespace

    def program(self, program: str, directory: Path) -> str:
        """Path of a wrapper that runs the program in this network, with all its arguments and open files."""
        if self._namespace is None:
            return program
        wrapper = directory / Path(program).name
        wrapper.write_text(f'#!/bin/sh\nexec nsenter --net={self._namespace} {shlex.quote(program)} "$@"\n')
        wrapper.chmod(0o700)
        return str(wrapper)

    def listening(self) -> socket.socket:
        """A socket on the loopback interface of this network; any process of the machine may accept from it."""
        made: list[socket.socket] = []
        # setns changes the thread's network; the socket stays in it when the thread has ended.
        thread = threading.Thread(target=lambda: made.append(self._listening()))
        thread.start()
        thread.join()
        return made[0]

    def _listening(self) -> socket.socket:
        if self._namespace is not None:
            with self._namespace.open() as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
        return socket.create_server(("127.0.0.1", 0))


@contextmanager
def quiet_network() -> Iterator[QuietNetwork]:
    """The machine's own where no other is possible."""
    if not is_possible():
        yield QuietNetwork(None)
        return
    # What holds it waits for the end of its input: it ends with this process, however that does.
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n", "no network namespace can be made here"
        yield QuietNetwork(Path(f"/proc/{holder.pid}/ns/net"))
        holder.stdin.close()
