"""Packet filter rules of networks that no longer exist."""

from collections.abc import Callable, Iterator

from trainyard_agent.engines.docker.network.firewall import Firewall, NotEnforced
from trainyard_protocol.views.health import Finding


def findings(settled: Callable[[Callable[[], list[str]]], list[str]], fix: bool) -> Iterator[Finding]:
    """Nothing where there are none, or where this user may not see them: then no agent of this user made any."""
    firewall = Firewall()

    def orphans() -> list[str]:
        return sorted(firewall.survey()[1])

    try:
        bridges = settled(orphans)
    except NotEnforced:
        return
    for bridge in bridges:
        yield _finding(firewall, bridge, fix)


def _finding(firewall: Firewall, bridge: str, fix: bool) -> Finding:
    name = f"The firewall rules {bridge} (iptables, table mangle)"
    failure = ""
    if fix:
        try:
            firewall.remove(bridge)
            return Finding(check="containers", status="fixed", found=f"{name} were removed.")
        except NotEnforced as error:
            failure = f"They could not be removed: {error}."
    return Finding(
        check="containers",
        status="problem",
        found=f"{name} are orphaned: the network that they were for is gone.",
        meaning="They affect nothing, and stay until the machine restarts.",
        advice=failure or "`trainyard doctor --fix` removes them.",
        fixable=not failure,
    )
