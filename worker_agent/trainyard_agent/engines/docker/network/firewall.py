"""Packet filter rules of bridges, by iptables.

Each bridge has a chain of its own name in the table `mangle`, which is evaluated before the engine's own rules, for
packets to this machine as well as for forwarded ones, and which an engine leaves alone when it restarts.
"""

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard_agent.engines.docker.client import EngineError
from trainyard_agent.engines.docker.network.network_policy import BRIDGE_PREFIX, Endpoint, rules

_TIMEOUT_S = 30.0
_LOCK_S = "10"  # for another program that changes the rules
_INTERFACES = Path("/sys/class/net")
_IPV6 = Path("/proc/net/if_inet6")
_TABLE = "mangle"
_CHAIN = re.compile(rf"^-N ({BRIDGE_PREFIX}\S+)$", re.MULTILINE)
_JUMP = re.compile(rf"^-A PREROUTING -i ({BRIDGE_PREFIX}\S+) -j \1$", re.MULTILINE)

Run = Callable[[Sequence[str], str], str]
"""Runs a command with this input. Returns its output; raises NotEnforced."""


class NotEnforced(EngineError):
    """A network policy cannot be enforced on this machine."""


def run_command(command: Sequence[str], text: str) -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise NotEnforced(f"there is no program {command[0]} on this machine") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotEnforced(f"{command[0]} failed: {error}") from error
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise NotEnforced(f"{command[0]} failed: {cause}")
    return done.stdout


def removal(bridge: str) -> str:
    """The shell command that removes the rules of a bridge."""
    name, program = shlex.quote(bridge), f'"$program" -w {_LOCK_S} -t {_TABLE}'
    steps = f"{program} -D PREROUTING -i {name} -j {name}; {program} -F {name}; {program} -X {name}"
    return f"for program in iptables ip6tables; do {steps}; done"


class Firewall:
    """The rules of all bridges in this process's network namespace."""

    def __init__(self, run: Run = run_command) -> None:
        self._run = run
        self._lock = threading.Lock()

    def check(self) -> None:
        """Install and remove the rules of a bridge that does not exist. Raises NotEnforced."""
        bridge = f"{BRIDGE_PREFIX}try{os.getpid()}"
        self.install(bridge, rules("egress", "", [Endpoint("192.0.2.1", 80)]))
        self.remove(bridge)

    @staticmethod
    def has_interface(bridge: str) -> bool:
        return (_INTERFACES / bridge).exists()

    def install(self, bridge: str, ipv4_rules: Sequence[str]) -> None:
        """Replace the rules of a bridge, all at once. Its IPv6 packets are dropped. Raises NotEnforced."""
        with self._lock:
            for family in self._families():
                own = ipv4_rules if family == "iptables" else ["-j DROP"]
                _, jumps = self._list(family)
                jump = [] if bridge in jumps else [f"-I PREROUTING -i {bridge} -j {bridge}"]
                self._restore(family, [f":{bridge} -", *(f"-A {bridge} {rule}" for rule in own), *jump])

    def remove(self, bridge: str) -> None:
        """Remove the rules of a bridge, if there are any. Raises NotEnforced."""
        with self._lock:
            for family in self._families():
                try:
                    self._remove(family, bridge)
                except NotEnforced:  # another agent removed some in between
                    self._remove(family, bridge)

    def survey(self) -> tuple[set[str], set[str]]:
        """The bridges whose rules are in force, and those that have rules but do not exist. Raises NotEnforced."""
        listings = [self._list(family) for family in self._families()]
        enforced = set.intersection(*(chains & jumps for chains, jumps in listings))
        bridges = set.union(*(chains | jumps for chains, jumps in listings))
        return enforced, {bridge for bridge in bridges if not self.has_interface(bridge)}

    def _remove(self, family: str, bridge: str) -> None:
        chains, jumps = self._list(family)
        jump = [f"-D PREROUTING -i {bridge} -j {bridge}"] if bridge in jumps else []
        chain = [f"-F {bridge}", f"-X {bridge}"] if bridge in chains else []
        if jump or chain:
            self._restore(family, [*jump, *chain])

    def _list(self, family: str) -> tuple[set[str], set[str]]:
        """The bridges that have a chain, and those whose packets are sent to it."""
        output = self._run([family, "-w", _LOCK_S, "-t", _TABLE, "-S"], "")
        return set(_CHAIN.findall(output)), set(_JUMP.findall(output))

    def _restore(self, family: str, lines: Sequence[str]) -> None:
        text = "\n".join([f"*{_TABLE}", *lines, "COMMIT", ""])
        self._run([f"{family}-restore", "-w", _LOCK_S, "--noflush"], text)

    @staticmethod
    def _families() -> list[str]:
        return ["iptables", "ip6tables"] if _IPV6.exists() else ["iptables"]
