"""The agent's own image, which the pods of gangs wait with, in a pod to which a cluster has added containers."""

from typing import Any

import pytest

from trainyard_agent.engines.contract import SettingsRefused
from trainyard_agent.engines.kubernetes.engine import image_of_agent


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "agent-1"}, "spec": {"containers": list(containers)}}


def container(name: str, *words: str, args: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "image": f"image-of-{name}", "command": list(words), "args": list(args)}


PROXY = container("istio-proxy")
START = ("python3", "-m", "trainyard_agent")

PODS = {
    "alone, of any name": (pod(container("worker")), "worker"),
    "by its name": (pod(PROXY, container("agent", *START)), "agent"),
    "by its name, among those that start one": (pod(container("old", *START), container("agent", *START)), "agent"),
    "by its command": (pod(PROXY, container("worker", *START)), "worker"),
    "by its arguments": (pod(PROXY, container("worker", args=START)), "worker"),
}


def test_image_of_the_agent_is_that_of_its_own_container() -> None:
    found = {name: (body, image_of_agent(body).removeprefix("image-of-")) for name, (body, _) in PODS.items()}
    assert found == PODS


def test_pod_in_which_nobody_can_tell_the_agent_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsRefused, match=r"the containers istio-proxy, worker, and none is called agent\. .*init"):
        image_of_agent(pod(PROXY, container("worker", "/start.sh")))
