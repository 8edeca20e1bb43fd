"""Agents and their operators: names by token, draining, removal; over HTTP and by the command line."""

from typing import Any

import httpx

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, ScriptedAgent, Server
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_protocol.wire.sync import SyncRequest

SYNC = "/agent/v1/sync"


def report_of(info: AgentInfo) -> str:
    """The body of an agent's call that has no runs."""
    return SyncRequest(agent=info, runs=()).model_dump_json()


def agents(api: Server) -> dict[str, dict[str, Any]]:
    return {agent["name"]: agent for agent in api.get("/trainyard/v1/status")["agents"]}


def change(api: Server, method: str, name: str, **body: bool) -> httpx.Response:
    return api.client.request(method, f"/trainyard/v1/agents/{name}", json=body or None, headers=ADMIN)


@on_every_database
def test_removed_agent_comes_back_once_an_operator_adds_its_name_again(api: Server) -> None:
    def add(name: str) -> dict[str, str]:
        return AGENT | api.token(owner=name, for_agent=True)[1]

    def status_of_sync(headers: dict[str, str]) -> int:
        return api.status("POST", SYNC, headers, content=report_of(agent.info))

    agent = ScriptedAgent(api)
    old = add("laptop")
    assert status_of_sync(old) == 200
    change(api, "PATCH", "laptop", draining=True)
    api.clock.advance(60)
    assert change(api, "DELETE", "laptop").status_code == 200
    add("another")
    refused = api.refusal("POST", SYNC, 403, "An operator has removed", AGENT, content=report_of(agent.info))
    assert "removed the agent laptop" in refused["message"]
    assert "`trainyard agents add laptop`" in refused["message"]
    assert change(api, "DELETE", "laptop").status_code == 404
    new = add("laptop")
    assert agents(api) == {}, "it is back when it is heard"
    assert status_of_sync(old) == 401
    assert status_of_sync(new) == 200
    assert agents(api).keys() == {"laptop"}
    api.create()
    agent.turn()
    assert agent.run.job_id == "job", "it is not drained any more"


def test_machine_that_fails_runs_is_avoided_by_retries_then_drained_and_an_operator_lets_it_work_again(
    api: Server,
) -> None:
    bad = ScriptedAgent(api)

    def fail(job: str) -> None:
        api.create(job)
        bad.turn()
        bad.exit(code=None, reason=Reason.HOST_FAILED, message="no device")
        api.cancel(job)
        api.tick()
        api.clock.advance(120)
        bad.sync()

    for job in ("one", "two", "three", "four"):
        fail(job)
    assert not agents(api)["laptop"]["draining"], "it is the only one"
    other = ScriptedAgent(api, "other")
    other.sync()
    fail("five")
    view = agents(api)["laptop"]
    assert view["draining"]
    assert view["drain_reason"].startswith("3 runs failed of it within an hour: p/three (HOST_FAILED)")
    api.create("six")
    bad.turn(0, other)
    assert (bad.runs, other.run.job_id) == ({}, "six")
    change(api, "PATCH", "laptop", draining=False)
    view = agents(api)["laptop"]
    assert (view["draining"], view["drain_reason"], view["failures"]) == (False, "", [])


def test_machine_whose_gpus_have_errors_is_drained_once_for_each(api: Server) -> None:
    error = "Xid 79 (GPU has fallen off the bus) of the GPU at 0000:3b:00"
    agent = ScriptedAgent(api, device_errors=(error,))
    agent.sync()
    assert agents(api)["laptop"]["drain_reason"] == f"its GPUs have errors: {error}"
    change(api, "PATCH", "laptop", draining=False)
    agent.sync()
    assert not agents(api)["laptop"]["draining"], "an operator knows of it"
    agent.change(device_errors=(error, "2 uncorrected ECC errors of GPU-aa")).sync()
    assert agents(api)["laptop"]["drain_reason"] == "its GPUs have errors: 2 uncorrected ECC errors of GPU-aa"


def test_agents_of_one_name_get_names_of_their_own_and_an_operator_reaches_each_alone(api: Server) -> None:
    def machine(number: int) -> ScriptedAgent:
        return ScriptedAgent(api, "vm", agent_id=f"{number}bcd-of-vm")

    machines = [machine(number) for number in range(3)]
    for agent in machines * 2:
        agent.sync()
    assert [agent.response.name for agent in machines] == ["vm", "vm-2", "vm-3"]
    assert change(api, "PATCH", "1bcd", draining=True).json()["agents"][0]["name"] == "vm-2"
    assert [agent["draining"] for _, agent in sorted(agents(api).items())] == [False, True, False]
    assert change(api, "DELETE", "vm").json()["agents"][0]["agent_id"] == "0bcd-of-vm"
    for agent in machines[1:]:
        agent.sync()
    assert agents(api).keys() == {"vm-2", "vm-3"}, "a name stays"
    another = machine(4)
    assert another.sync().name == "vm"
    api.refusal("DELETE", "/trainyard/v1/agents/bcd", 404, "There is no agent bcd.")
    assert another.change(name="vm-3").sync().name == "vm-3-2"
