"""The agent of another machine, installed over the system's `ssh`: its keys, hosts and agents are the user's own.

The programs below run there in a POSIX shell. What is secret or long (the token, the CA, packages) goes over standard
input, so it is in no list of processes and no shell's history.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard_cli.local.joined_agent import STORAGE_UNIT, UNIT
from trainyard_cli.settings import Server
from trainyard_protocol.errors import FailedPrecondition, Unavailable

if TYPE_CHECKING:
    from trainyard_storage.tensorflow import Reach

_CONNECT_S = 15
STORAGE_PORT = 8479
"""The port of the proxy of gs:// on loopback."""

_SSH_FAILED = 255
"""The exit status of ssh itself."""

_PLACES = """
if [ "$(id -u)" = 0 ]; then
    home=/opt/trainyard-agent state=/var/lib/trainyard-agent unit=/etc/systemd/system user=
    storage=/var/lib/trainyard-storage
else
    home=$HOME/.local/share/trainyard-agent state=${XDG_STATE_HOME:-$HOME/.local/state}/trainyard/joined
    storage=${XDG_STATE_HOME:-$HOME/.local/state}/trainyard/storage-proxy
    unit=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user user=--user
fi
agent_id() { sed -n 's/.*"agent_id": *"\\([^"]*\\)".*/\\1/p' "$state/agent.json" 2>/dev/null; }
"""
_PROBE = (
    _PLACES
    + """
fits='import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))'
for python in python3.14 python3.13 python3.12 python3.11 python3 ""; do
    [ -n "$python" ] && "$python" -c "$fits" 2>/dev/null && break
done
joined=$(cat "$state/server" 2>/dev/null)
agent=$(agent_id)
for value in "$(id -un)" "$(uname -n)" "$home" "$python" "$joined" "$agent"; do printf '%s\\n' "$value"; done
"""
)
_INSTALL = (
    _PLACES
    + """
set -e
umask 022
python=$1; shift
[ -x "$home/venv/bin/python" ] || "$python" -m venv "$home/venv"
"$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "$@"
"""
)
_COPY = _PLACES + 'mkdir -p "$home" && cat > "$home/$1" && chmod 644 "$home/$1"'
_JOIN = (
    _PLACES
    + """
set -e
url=$1 ca=$2 token=$3 gs=$4; shift 4
start() {
    systemctl $user daemon-reload
    systemctl $user enable --quiet "$1"
    systemctl $user restart "$1"
}
if [ -n "$gs" ]; then
    "$home/venv/bin/trainyard" agent storage "$url" ${ca:+--ca-file "$home/ca.pem"} --state-dir "$storage" \\
        --containers --reach "$gs" --install >/dev/null
    start STORAGE
    set -- --replica-env "STORAGE_EMULATOR_HOST=http://127.0.0.1:PORT/{job}" \\
        --replica-env "STORAGE_EMULATOR_ROOTS=$storage/roots.pem" --tracking-url storage "$@"
fi
set -- "$url" ${ca:+--ca-file "$home/ca.pem"} ${token:+--token-file -} --install "$@"
"$home/venv/bin/trainyard" agent join "$@" >/dev/null
start UNIT
[ -z "$user" ] || loginctl enable-linger
""".replace("UNIT", UNIT)
    .replace("STORAGE\n", f"{STORAGE_UNIT}\n")
    .replace("PORT", str(STORAGE_PORT))
)
_ID = _PLACES + "agent_id || true"
_END = (
    _PLACES
    + """
[ "$(systemctl $user show --property NRestarts --value UNIT)" = 0 ] ||
    journalctl $user --unit UNIT --lines 1 --output cat --no-pager _TRANSPORT=stdout
""".replace("UNIT", UNIT)
)
_UNDO = (
    _PLACES
    + """
set -e
for name in UNIT STORAGE; do
    if [ -e "$unit/$name.service" ]; then
        systemctl $user disable --quiet --now $name
        rm "$unit/$name.service"
        systemctl $user daemon-reload
    fi
done
if [ -d "$state" ]; then "$home/venv/bin/python" -m trainyard_agent --state-dir "$state" --stop-all; fi
rm -rf "$state" "$storage" "$home"
""".replace("UNIT", UNIT).replace("STORAGE", STORAGE_UNIT)
)


@dataclass(frozen=True, slots=True)
class Found:
    """A machine as it was found. `home` is the directory of the installation. `python`: a command for 3.11 or later,
    which can make environments, or "". `joined`: the server of the agent there, and its `agent_id`; "" without one."""

    user: str
    name: str
    home: str
    python: str
    joined: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """The agent of a machine that `ssh` knows as `host`. Each call raises Unavailable where ssh does not get there, and
    FailedPrecondition with the machine's words where something fails there."""

    host: str

    def find(self) -> Found:
        lines = self._run(_PROBE).splitlines()
        if len(lines) != 6:
            raise FailedPrecondition(f"{self.host} does not answer as a POSIX shell does: {lines[:1]}.")
        return Found(*lines)

    def install(self, found: Found, wheels: Sequence[Path] = ()) -> None:
        """Install this release of the agent, or update the one that is there: from the package index of the machine, or
        from these wheels and what they need from the index."""
        if not found.python:
            raise FailedPrecondition(
                f"{self.host} has no Python 3.11 or later that can make environments: install it first (on Debian: "
                "apt install python3-venv)."
            )
        requirements = [f"trainyard[agent]=={metadata.version('trainyard')}"]
        for wheel in wheels:
            try:
                self._run(_COPY, wheel.name, given=wheel.read_bytes())
            except OSError as error:
                raise FailedPrecondition(f"The wheel {wheel} cannot be read: {error.strerror}.") from error
        if wheels:
            extras = {wheel: "[agent]" if wheel.name.startswith("trainyard-") else "" for wheel in wheels}
            requirements = [f"{found.home}/{wheel.name}{extra}" for wheel, extra in extras.items()]
        self._run(_INSTALL, found.python, *requirements)

    def join(self, server: Server, token: str, options: Sequence[str], *, storage_reach: "Reach | None") -> None:
        """Let it join the server, as a systemd unit. Without a token it has one of a join before. With
        `storage_reach` its jobs get the server's gs://, by a proxy that is a unit too; containers reach those other
        sites through it."""
        ca_file = ""
        if server.ca_file is not None:
            ca_file = "yes"
            self._run(_COPY, "ca.pem", given=server.ca_file.read_bytes())
        given = f"{token}\n".encode()
        has = ("yes" if token else "", storage_reach or "")
        self._run(_JOIN, server.url, ca_file, *has, *options, given=given)

    def agent_id(self) -> str:
        """The id that the agent there has given itself; "" before it has begun."""
        return self._run(_ID).strip()

    def last_words(self) -> str:
        """The last line of an agent that has ended, and is started again and again; "" for one that goes on."""
        return self._run(_END).strip()

    def remove(self) -> None:
        """Stop the agent and what it runs, and remove it with its state."""
        self._run(_UNDO)

    def _run(self, script: str, *arguments: str, given: bytes = b"") -> str:
        """The output of the script there."""
        remote = shlex.join(["sh", "-c", script, "sh", *arguments])
        command = ["ssh", "-T", "-o", f"ConnectTimeout={_CONNECT_S}", "--", self.host, remote]
        try:
            done = subprocess.run(command, input=given, capture_output=True, check=False, env=os.environ)
        except FileNotFoundError as error:
            raise FailedPrecondition("There is no `ssh` on this machine: install the OpenSSH client.") from error
        words = done.stderr.decode(errors="replace").strip()
        if done.returncode == _SSH_FAILED:
            raise Unavailable(f"ssh cannot connect to {self.host}: {words.rpartition(chr(10))[2] or 'no message.'}")
        if done.returncode:
            raise FailedPrecondition(f"On {self.host}: {words or f'exit status {done.returncode}'}")
        return done.stdout.decode(errors="replace")
