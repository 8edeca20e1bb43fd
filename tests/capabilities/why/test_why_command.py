"""`trainyard jobs why`."""

from integration.api.api_support import Server, running_agent
from unit.cli.commands.jobs.test_jobs import app, typed  # noqa: F401 - fixtures
from unit.cli.terminal import Type


def test_describe_and_why_say_which_retry_rule_matched(typed: Type, app: Server) -> None:  # noqa: F811
    agent = running_agent(app, "j", scheduling={"retry": [{"exitCodes": [33], "count": 1}]})
    agent.exit(code=33)
    app.tick()
    clause = "Exit code 33 matched retry rule 1 (exitCodes: [33])"
    assert f"\nRun 1 failed. {clause}; retry 1 of 1.\n" in typed("jobs describe j").err
    assert f"{clause}; retry 1 of 1." in typed("jobs why j").out
    app.tick(30)
    agent.sync()
    agent.start()
    assert f"\nRun 1 failed. {clause}; retry 1 of 1.\n" in typed("jobs describe j").err
    agent.exit(code=33)
    app.tick()
    printed = typed("jobs describe j").err
    assert f"status of 33.\n{clause}; its retry is used up.\n" in printed
    assert "Run 1 failed." not in printed
