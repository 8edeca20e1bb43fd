"""Agents and their operators: names by token, draining, removal; over HTTP and by the command line."""

import io
import json
from typing import Any

import httpx
import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, ALICE, ScriptedAgent, Server, running_agent
from integration.shells import OPERATOR, Shell
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run
from trainyard_protocol.states import Reason
from trainyard_protocol.views.people import TokenRequest
from trainyard_protocol.wire.agents import AGENT_KEY, Disk
from trainyard_protocol.wire.sync import SyncRequest


def agents(api: Server) -> dict[str, dict[str, Any]]:
    return {agent["name"]: agent for agent in api.get("/trainyard/v1/status")["agents"]}


def change(api: Server, method: str, name: str, **body: bool) -> httpx.Response:
    return api.client.request(method, f"/trainyard/v1/agents/{name}", json=body or None, headers=ADMIN)


@on_every_database
def test_draining_agent_finishes_what_it_has_and_gets_nothing_new(api: Server) -> None:
    agent = running_agent(api, "first")
    drained = change(api, "PATCH", "laptop", draining=True)
    assert drained.json() == {"agents": [{"agent_id": "id-of-laptop", "name": "laptop", "runs": 1}]}
    api.create("second")
    api.tick()
    agent.sync()
    assert agent.run.job_id == "first"
    assert agents(api)["laptop"]["draining"]
    why = api.get("/trainyard/v1/projects/p/jobs/second/why")
    assert why["agents"][0]["lacks"] == "draining: an operator lets it start nothing new"
    assert "trainyard agents drain laptop --undo" in why["changes"][0]["message"]
    refused = change(api, "DELETE", "laptop")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "The agent laptop has runs that have not ended: first of p. Run `trainyard agents drain laptop` and wait for "
        "them, or cancel them."
    )
    agent.exit()
    assert agent.runs == {}
    change(api, "PATCH", "id-of-laptop", draining=False)
    agent.sync()
    assert agent.run.job_id == "second"


@on_every_database
def test_removed_agent_comes_back_once_an_operator_adds_its_name_again(api: Server) -> None:
    def add(name: str) -> dict[str, str]:
        request = TokenRequest(owner=name, for_agent=True).model_dump(mode="json")
        answer = api.client.post("/trainyard/v1/tokens", json=request, headers=ADMIN)
        assert answer.status_code == 200, answer.text
        return {**AGENT, "Authorization": f"Bearer {answer.json()['secret']}"}

    def status_of_sync(headers: dict[str, str]) -> int:
        body = SyncRequest(agent=agent.info, runs=()).model_dump_json()
        return api.client.post("/agent/v1/sync", content=body, headers=headers).status_code

    agent = ScriptedAgent(api)
    old = add("laptop")
    assert status_of_sync(old) == 200
    change(api, "PATCH", "laptop", draining=True)
    api.clock.advance(60)
    assert change(api, "DELETE", "laptop").status_code == 200
    add("another")
    body = SyncRequest(agent=agent.info, runs=()).model_dump_json()
    refused = api.client.post("/agent/v1/sync", content=body, headers=AGENT)
    assert refused.status_code == 403
    message = refused.json()["error"]["message"]
    assert "An operator has removed the agent laptop" in message
    assert "`trainyard agents add laptop`" in message
    assert change(api, "DELETE", "laptop").status_code == 404
    new = add("laptop")
    assert agents(api) == {}, "it is back when it is heard"
    assert status_of_sync(old) == 401
    assert status_of_sync(new) == 200
    assert agents(api).keys() == {"laptop"}
    api.create()
    api.tick()
    agent.sync()
    assert agent.run.job_id == "job", "it is not drained any more"


def test_token_of_an_agent_names_it_and_ends_with_it(shell: Shell) -> None:
    api = shell.api
    shell(f"login {shell.url} --token-file -", OPERATOR)
    code, token, printed = shell("agents add rack-7 --expires 90d")
    assert code == 0
    assert f"\n  trainyard agent join {shell.url}\n" in printed
    assert f"{shell.url} is this machine only" in printed
    made = json.loads(shell("agents add rack-7 -o json")[1])
    assert (made["token"]["owner"], made["command"]) == ("rack-7", f"trainyard agent join {shell.url}")
    headers = {"Authorization": f"Bearer {token.strip()}", AGENT_KEY: "7" * 64}
    about = api.client.get("/agent/v1/server", headers=headers).json()
    assert about["agent"] == "rack-7"
    assert api.client.get("/agent/v1/server", headers=AGENT).json()["agent"] == "", "the token of all"
    info = ScriptedAgent(api, "some-host").info.model_copy(update={"host": "some-host"})
    body = SyncRequest(agent=info, runs=()).model_dump_json()
    assert api.client.post("/agent/v1/sync", content=body, headers=headers).status_code == 200
    assert shell("agents drain rack-7")[2] == "rack-7 starts no new run, and has none.\n"
    row = shell("agents list")[1].splitlines()[1].split()
    assert row[:5] == ["rack-7", info.agent_id[:12], "some-host", "draining", "fake"]
    full = Disk(path="/data", free_bytes=10**7, problem="has less than 250 MB left, 10.0 MB are free")
    reported = SyncRequest(agent=info.model_copy(update={"disks": (full,)}), runs=()).model_dump_json()
    assert api.client.post("/agent/v1/sync", content=reported, headers=headers).status_code == 200
    shell("agents drain rack-7 --undo")
    nothing = "rack-7 starts nothing: /data has less than 250 MB left, 10.0 MB are free."
    listed = shell("agents list")
    assert " no room " in listed[1]
    assert " 10.0 MB " in listed[1]
    assert nothing in listed[2]
    assert nothing in shell("status")[1]
    assert "The agent rack-7 has no room: /data has less than" in " ".join(shell("doctor")[1].split())
    assert "There is no agent rack-8. Agents: rack-7." in shell("agents remove rack-8")[2]
    assert shell("agents remove rack-7")[0] == 0
    assert api.client.post("/agent/v1/sync", content=body, headers=headers).status_code == 401
    assert "No agent has joined yet" in shell("agents list")[2]
    shell(f"login {shell.url} --token-file -", ALICE["Authorization"].split()[1])
    code, _, printed = shell("agents add mine")
    assert (code, "Only an operator" in printed) == (1, True)


@on_every_database
def test_machine_that_fails_runs_is_avoided_by_retries_then_drained_and_an_operator_lets_it_work_again(
    api: Server,
) -> None:
    bad = ScriptedAgent(api)

    def fail(job: str) -> None:
        api.create(job)
        api.tick()
        bad.sync()
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
    api.tick()
    bad.sync()
    other.sync()
    assert (bad.runs, other.run.job_id) == ({}, "six")
    change(api, "PATCH", "laptop", draining=False)
    view = agents(api)["laptop"]
    assert (view["draining"], view["drain_reason"], view["failures"]) == (False, "", [])


@on_every_database
def test_machine_whose_gpus_have_errors_is_drained_once_for_each(api: Server) -> None:
    agent = ScriptedAgent(api)
    agent.sync()
    error = "Xid 79 (GPU has fallen off the bus) of the GPU at 0000:3b:00"
    agent.info = agent.info.model_copy(update={"device_errors": (error,)})
    agent.sync()
    assert agents(api)["laptop"]["drain_reason"] == f"its GPUs have errors: {error}"
    change(api, "PATCH", "laptop", draining=False)
    agent.sync()
    assert not agents(api)["laptop"]["draining"], "an operator knows of it"
    agent.info = agent.info.model_copy(update={"device_errors": (error, "2 uncorrected ECC errors of GPU-aa")})
    agent.sync()
    assert agents(api)["laptop"]["drain_reason"] == "its GPUs have errors: 2 uncorrected ECC errors of GPU-aa"


@on_every_database
def test_job_whose_machine_is_lost_goes_on_with_fewer_workers_and_returns_to_all_with_the_next_run(api: Server) -> None:
    small, large = ScriptedAgent(api, "small", cpus=2), ScriptedAgent(api, "large", cpus=4)
    small.sync()
    large.sync()
    api.create(workerType="local-1", workerCount="3", scheduling={"minWorkers": 1})
    api.tick()
    large.sync()
    assert len(large.run.replicas) == 4
    large.start()
    change(api, "PATCH", "large", draining=True)

    def fail(agent: ScriptedAgent) -> None:
        run, tasks = agent.run, [replica.task for replica in agent.run.replicas]
        for task in tasks:
            agent.exit(task, code=None, reason=Reason.HOST_FAILED, run=run)
        api.tick()
        api.tick(600)
        large.sync()
        small.sync()

    fail(large)
    assert [replica.task for replica in small.run.replicas] == ["master-replica-0", "worker-replica-0"]
    assert any("Starting with 1 of 3 workers" in event for event in api.events())
    small.start()
    change(api, "PATCH", "large", draining=False)
    fail(small)
    assert (small.runs, len(large.run.replicas)) == ({}, 4)


@on_every_database
def test_agents_of_one_name_get_names_of_their_own_and_an_operator_reaches_each_alone(api: Server) -> None:
    def machine(number: int) -> ScriptedAgent:
        agent = ScriptedAgent(api, "vm")
        agent.info = agent.info.model_copy(update={"agent_id": f"{number}bcd-of-vm"})
        return agent

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
    refused = change(api, "DELETE", "bcd")
    assert (refused.status_code, "There is no agent bcd." in refused.text) == (404, True)
    another.info = another.info.model_copy(update={"name": "vm-3"})
    assert another.sync().name == "vm-3-2"


def test_token_that_two_machines_have_goes_with_the_last(shell: Shell) -> None:
    api = shell.api
    shell(f"login {shell.url} --token-file -", OPERATOR)
    token = shell.out("agents add vm").strip()

    def status_of_sync(agent_id: str, key: str) -> int:
        headers = {"Authorization": f"Bearer {token}", AGENT_KEY: key * 64}
        info = ScriptedAgent(api, "any").info.model_copy(update={"agent_id": agent_id})
        body = SyncRequest(agent=info, runs=()).model_dump_json()
        return api.client.post("/agent/v1/sync", content=body, headers=headers).status_code

    assert [status_of_sync("first", "1"), status_of_sync("second", "2")] == [200, 200]
    api.clock.advance(60)
    shell.out("agents remove vm")
    assert [status_of_sync("first", "1"), status_of_sync("second", "2")] == [403, 200]
    shell.out("agents remove vm-2")
    assert status_of_sync("second", "2") == 401


def test_name_of_two_agents_is_asked_about_and_refused_where_nobody_can_answer(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    api = shell.api
    shell(f"login {shell.url} --token-file -", OPERATOR)
    for number in range(2):
        agent = ScriptedAgent(api, "vm")
        agent.info = agent.info.model_copy(update={"agent_id": f"abcd{number}", "name": f"vm{number}"})
        agent.sync()
    with api.use_cases.backend.store.write() as writer:  # as an older release has left them
        for row in writer.agents():
            row.info = {**row.info, "name": "vm"}
    for named in ("vm", "abcd"):
        code, _, printed = shell(f"agents remove {named}")
        assert (code, f"There are 2 agents {named}: name one by its id. abcd0 (vm, last" in printed) == (1, True), (
            printed
        )
    monkeypatch.setattr("sys.stdin", Terminal("2\n"))
    assert run(trainyard, "trainyard", ["agents", "remove", "vm"]) == 0
    printed = capsys.readouterr().err
    assert "Removed vm (abcd1)." in printed
    assert [line.split()[:3] for line in printed.splitlines()[1:3]] == [["1", "vm", "abcd0"], ["2", "vm", "abcd1"]]
    assert [agent["agent_id"] for agent in agents(api).values()] == ["abcd0"]
