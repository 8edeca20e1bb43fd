"""A program whose children make and restore backups, and are killed: a line of its input is a call with the seconds
after which its child is killed, 0 for never; a line of its output is how a child has ended."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trainyard_cli.capabilities.backups.archive import receive
from trainyard_cli.capabilities.backups.restoring import restore
from trainyard_server.app import create_app
from trainyard_server.capabilities.backups.backups import Backups
from trainyard_server.capabilities.backups.options import BackupOptions
from trainyard_server.config.settings import Settings


def back_up(data_dir: str, storage: str, archive: str) -> None:
    settings = Settings(Path(data_dir), options=(BackupOptions(storage_dir=Path(storage)),), durable=False)
    with create_app(settings, lambda: datetime.now(UTC)).state.use_cases.of(Backups).open() as opened:
        receive(opened.blocks, Path(archive), lambda _: None)


def bring_back(archive: str, root: str) -> None:
    restore(Path(archive), Path(root))


CALLS: dict[str, Callable[..., None]] = {"backup": back_up, "restore": bring_back}


def run(name: str, seconds: str, *arguments: str) -> None:
    """Never returns. The timer ends the process without a word to Python, as SIGKILL does."""
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
        CALLS[name](*arguments)
        code = 0
    except Exception:  # noqa: BLE001 - whatever it is, the test is to fail
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(*line.split())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
