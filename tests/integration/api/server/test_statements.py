"""Statements and transactions of a job's life, and of calls that change nothing."""

from pathlib import Path

from beds import live_rows
from beds.statements import statements
from integration.api.api_support import Clock, ScriptedAgent, Server, server

_WRITES, _STATEMENTS = 5, 45
"""Most transactions that write, and most statements, of a job that prints a word."""


def test_job_is_few_transactions_and_reads_none_of_its_rows_again(api: Server, agent: ScriptedAgent) -> None:
    with statements(api.use_cases.backend.store) as seen:
        api.create("job")
        agent.begin()
        agent.log("hello")
        agent.exit()
    assert api.job()["state"] == "SUCCEEDED"
    transactions = [statement for statement in seen if statement == "BEGIN IMMEDIATE"]
    assert len(transactions) <= _WRITES, seen
    assert len(seen) <= _STATEMENTS, "\n".join(seen)
    read = [statement for statement in seen if statement.startswith("SELECT") and " FROM runs" in statement]
    assert read == []


def test_call_of_an_agent_that_changes_nothing_writes_nothing_and_reads_no_rows(
    api: Server, agent: ScriptedAgent
) -> None:
    agent.sync()
    with statements(api.use_cases.backend.store) as seen:
        agent.sync()
    assert seen == []
    api.create("job")
    agent.begin()
    agent.sync()
    with statements(api.use_cases.backend.store) as seen:
        agent.sync()
    assert [one for one in seen if one != "BEGIN" and "attachments" not in one] == []
    api.clock.advance(11)
    with statements(api.use_cases.backend.store) as seen:
        agent.sync()
    assert [one.split()[0] for one in seen].count("UPDATE") == 1  # its last contact, every ten seconds


def test_run_that_ends_with_the_first_call_after_a_restart_is_on_no_agent_any_more(tmp_path: Path) -> None:
    with server(tmp_path, Clock()) as before:
        before.create("job")
        agent = ScriptedAgent(before)
        agent.begin()
        agent.end_log()
    with server(tmp_path, Clock()) as after:
        agent.server = after
        agent.exit(logs=False)
        store = after.use_cases.backend.store
        assert (after.job()["state"], live_rows.differences(store)) == ("SUCCEEDED", [])
        assert store.is_idle("id-of-laptop")
