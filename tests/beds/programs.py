"""Servers, agents and commands as processes of a test, in one directory, in which each has its log."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from beds.token_files import long_token, write_token
from beds.waiting import until
from support.addresses import free_ports

BIN = Path(sys.executable).parent
_END_S = 60.0


class Programs:
    """Processes with an environment of their own. `inside` comes before each command line: what a test runs its
    programs in. `command` comes before those of `run`."""

    command: tuple[str, ...] = ()

    def __init__(self, home: Path, *, inside: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.url = ""
        self._inside = tuple(inside)
        self._running: dict[str, subprocess.Popen[str]] = {}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINYARD_", "STORAGE_", "XDG_", "SSL_"))}
        own = {"HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "300"}
        self.environment = {**kept, **own, **(environment or {})}

    # What goes on in the background.

    def spawn(self, name: str, *words: str, stdin: str = "", umask: int = -1) -> None:
        """Start a program, whose log is appended to that of its predecessor of this name."""
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                [*self._inside, *words],
                env=self.environment,
                cwd=self.home,
                umask=umask,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        self._running[name] = process

    def server(self, *words: str, roles: Mapping[str, str], url: str = "") -> None:
        """Start a server at the URL, or at a free port, and wait for it. `roles` has the role of each token."""
        self.url = url or self.url or f"http://127.0.0.1:{free_ports(1)[0]}"
        address = urlsplit(self.url)
        given = [*("--data-dir", "data", "--host", str(address.hostname), "--port", str(address.port)), *words]
        for name, role in roles.items():
            given += ["--token-file", f"{role}={self.token(name)}"]
        starts = self.log_of("server").count("startup complete")
        self.spawn("server", sys.executable, "-m", "trainyard_server", *given)
        until(lambda: self.log_of("server").count("startup complete") > starts, lambda: self.log_of("server")[-5000:])

    def agent(self, *words: str, umask: int = -1) -> None:
        given = ("--server", self.url, "--token-file", str(self.token("agent")))
        self.spawn("agent", *self.agent_command(*given, *words), umask=umask)

    def agent_command(self, *words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "trainyard_agent", "--state-dir", str(self.home / "agent"), *words)

    def stop_agent(self) -> None:
        """Kill the agent, if it runs, and stop everything that it has started."""
        if "agent" in self._running:
            self.end("agent", signal.SIGKILL)
        self.done(*self.agent_command("--stop-all", "--grace", "0.1"))

    def token(self, name: str) -> Path:
        """The file with `long_token(name)`."""
        return write_token(self.home / f"{name}-token", long_token(name))

    def log_of(self, name: str) -> str:
        path = self._log(name)
        return path.read_text() if path.exists() else ""

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        process = self._running.pop(name)
        process.send_signal(how)
        process.wait(_END_S)

    @contextmanager
    def ending(self) -> Iterator[Self]:
        """End what still runs, the last first."""
        try:
            yield self
        finally:
            for name in reversed(list(self._running)):
                self.end(name)

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    # Commands that end.

    def run(self, *words: str, timeout: float = 180, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._inside, *self.command, *words],
            env=self.environment,
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def done(self, *words: str, timeout: float = 180, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command that succeeds."""
        done = self.run(*words, timeout=timeout, cwd=cwd)
        assert done.returncode == 0, f"{words} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def ok(self, *words: str, timeout: float = 180, cwd: Path | None = None) -> str:
        """The output of a command that succeeds."""
        return self.done(*words, timeout=timeout, cwd=cwd).stdout
