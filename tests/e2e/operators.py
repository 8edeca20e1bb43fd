"""Programs of an operator: server, agents and commands, with a home of their own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.harness import BIN


class Operator:
    """Programs with a home of their own."""

    def __init__(self, home: Path) -> None:
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TRAINYARD_", "STORAGE_", "XDG_", "SSL_"))
        }
        self.home = home
        self.environment = {
            **kept,
            "HOME": str(home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "300",
        }

    @contextmanager
    def running(self, name: str, *words: str) -> Iterator[Path]:
        log = self.home / f"{name}.log"
        with log.open("w") as out:
            process = subprocess.Popen(words, env=self.environment, cwd=self.home, stdout=out, stderr=out)
        try:
            yield log
        finally:
            process.terminate()
            process.wait(timeout=60)

    def ok(self, *words: str) -> str:
        done = subprocess.run(
            words,
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr
