"""A container that waits for the names of all replicas, before the program of any replica starts. Pure.

A pod's name is in DNS once the pod has an address. Without the container, the first look-ups of a program could fail.
"""

from collections.abc import Mapping
from typing import Any

from trainyard_agent.engines.kubernetes.pods.objects import (
    PodParts,
    addresses,
    amounts,
    container_security,
    init_container_state,
)
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

CONTAINER = "wait-for-peers"
WAITS = "waits for peers"

_PROGRAM = """\
import socket, sys, time
for name in sys.argv[1:]:
    while True:
        try:
            socket.getaddrinfo(name, None)
            break
        except OSError:
            time.sleep(0.2)
"""
_STARTING = "PodInitializing", "ContainerCreating"


def parts(order: RunOrder, launch: Launch, image: str) -> PodParts:
    """The container, of an image with python3. None for a lone replica, or without an image."""
    if not image or len(order.replicas) == 1:
        return PodParts()
    names = [address.rpartition(":")[0] for address in addresses(order).values()]
    limits = {name: amount for name, amount in amounts(launch).items() if name in ("cpu", "memory")}
    container = {
        "name": CONTAINER,
        "image": image,
        "command": ["python3", "-I", "-S", "-c", _PROGRAM, *names],
        "resources": {"limits": limits, "requests": limits},
        "securityContext": {**container_security(launch), "capabilities": {"drop": ["ALL"]}},
    }
    return PodParts(init_containers=(container,))


def waits(pod: Mapping[str, Any]) -> str:
    """The reason of its wait; "" if it does not wait now."""
    state = init_container_state(pod, CONTAINER)
    waiting = state.get("waiting") or {}
    if "running" in state:
        return WAITS
    if not waiting.get("reason") or waiting["reason"] in _STARTING:
        return ""
    return f"it cannot wait for its peers: {waiting['reason']}: {waiting.get('message') or ''}".rstrip(": ")


def failure(pod: Mapping[str, Any]) -> tuple[Reason, str] | None:
    """The reason why it failed, which is not the job's fault."""
    ended = init_container_state(pod, CONTAINER).get("terminated")
    over = pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("reason")
    if ended is None or not ended["exitCode"] or over:
        return None
    words = str(ended.get("message") or f"exit code {ended['exitCode']}").strip().rstrip(".")
    return Reason.HOST_FAILED, f"It could not wait for its peers, with the image of --init-image: {words}."
