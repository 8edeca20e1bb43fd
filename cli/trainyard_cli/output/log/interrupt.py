"""Ctrl-C that cancels a job."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from trainyard_cli.client import Client
from trainyard_protocol.errors import TrainyardError


class CancelOnInterrupt:
    """While it is entered, the first Ctrl-C cancels the job and the log goes on; the second one interrupts.

    A thread cancels: what the first Ctrl-C interrupts is not disturbed. A program that ignores Ctrl-C, such as one that
    a script has put in the background, still does."""

    def __init__(self, job: str, connect: Callable[[], Client], notify: Callable[[str], None]) -> None:
        self._job = job
        self._connect = connect
        self._notify = notify
        self._before: Any = None
        self.cancelled = False

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=self._cancel, name="cancel", daemon=True).start()

    def _cancel(self) -> None:
        self._notify(f"Cancelling job [{self._job}]. A second Ctrl-C stops waiting for its end.")
        try:
            with self._connect() as client:
                client.cancel_job(self._job)
        except TrainyardError as error:
            self._notify(f"Job [{self._job}] was not cancelled: {error.message}")
        else:
            self.cancelled = True
