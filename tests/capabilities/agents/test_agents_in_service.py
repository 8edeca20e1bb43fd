"""Agents that are added, drained and removed by the command line."""

import io
import json

import pytest

from integration.api.agents.test_agents import SYNC, agents, change, report_of
from integration.api.api_support import AGENT, ALICE, ScriptedAgent, Server, running_agent
from integration.shells import OPERATOR, Shell
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run
from trainyard_protocol.wire.agents import AGENT_KEY, Disk


def test_draining_agent_finishes_what_it_has_and_gets_nothing_new(api: Server) -> None:
    agent = running_agent(api, "first")
    drained = change(api, "PATCH", "laptop", draining=True)
    assert drained.json() == {"agents": [{"agent_id": "id-of-laptop", "name": "laptop", "runs": 1}]}
    api.create("second")
    agent.turn()
    assert agent.run.job_id == "first"
    assert agents(api)["laptop"]["draining"]
    why = api.get("/trainyard/v1/projects/p/jobs/second/why")
    assert why["agents"][0]["lacks"] == "draining: an operator lets it start nothing new"
    assert "trainyard agents drain laptop --undo" in why["changes"][0]["message"]
    assert api.refusal("DELETE", "/trainyard/v1/agents/laptop", 400)["message"] == (
        "The agent laptop has runs that have not ended: first of p. Run `trainyard agents drain laptop` and wait for "
        "them, or cancel them."
    )
    agent.exit()
    assert agent.runs == {}
    change(api, "PATCH", "id-of-laptop", draining=False)
    agent.sync()
    assert agent.run.job_id == "second"


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
    names = [api.done("GET", "/agent/v1/server", who)["agent"] for who in (headers, AGENT)]
    assert names == ["rack-7", ""], "the latter is the token of all"
    info = ScriptedAgent(api, "some-host", host="some-host").info
    api.done("POST", SYNC, headers, content=report_of(info))
    assert shell("agents drain rack-7")[2] == "rack-7 starts no new run, and has none.\n"
    row = shell("agents list")[1].splitlines()[1].split()
    assert row[:5] == ["rack-7", info.agent_id[:12], "some-host", "draining", "fake"]
    full = Disk(path="/data", free_bytes=10**7, problem="has less than 250 MB left, 10.0 MB are free")
    api.done("POST", SYNC, headers, content=report_of(info.model_copy(update={"disks": (full,)})))
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
    assert api.status("POST", SYNC, headers, content=report_of(info)) == 401
    assert "No agent has joined yet" in shell("agents list")[2]
    shell(f"login {shell.url} --token-file -", ALICE["Authorization"].split()[1])
    code, _, printed = shell("agents add mine")
    assert (code, "Only an operator" in printed) == (1, True)


def test_token_that_two_machines_have_goes_with_the_last(shell: Shell) -> None:
    api = shell.api
    shell(f"login {shell.url} --token-file -", OPERATOR)
    token = shell.out("agents add vm").strip()

    def status_of_sync(agent_id: str, key: str) -> int:
        headers = {"Authorization": f"Bearer {token}", AGENT_KEY: key * 64}
        return api.status("POST", SYNC, headers, content=report_of(ScriptedAgent(api, "any", agent_id=agent_id).info))

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
        ScriptedAgent(api, f"vm{number}", agent_id=f"abcd{number}").sync()
    with api.use_cases.backend.store.write() as writer:  # as an older release has left them
        for row in writer.agents():
            writer._change_agent(row, info={**row.info, "name": "vm"})
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
