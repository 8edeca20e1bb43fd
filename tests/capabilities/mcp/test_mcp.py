"""The tools of `trainyard mcp` against a server whose agent plays a trainer, called with the client of MCP's makers."""

from typing import TYPE_CHECKING, Any

from beds.services.ai_agent import call, ended
from trainyard import Client
from trainyard_cli.settings import chosen_target

if TYPE_CHECKING:
    import mcp


PROGRAM = "trainingInput:\n  pythonModule: trainer.task\n"


def own_agent() -> "mcp.Client":
    """An AI agent of the user whose token is in the environment."""
    import mcp  # takes seconds, which each worker would pay that collects this module

    from trainyard_cli.capabilities.mcp.server import mcp_server
    from trainyard_cli.capabilities.mcp.user import McpUser

    return mcp.Client(mcp_server(McpUser(chosen_target({}))))


async def test_agent_submits_finds_the_cause_of_a_failure_and_compares(client: Client) -> None:
    async with own_agent() as agent:
        await submits_finds_the_cause_and_compares(agent)


async def submits_finds_the_cause_and_compares(agent: "mcp.Client") -> None:
    given = {"config": PROGRAM, "package_path": "trainer", "flags": ["--labels", "team=a"]}
    text, good = await call(agent, "submit", job="good", args=["--lr", 0.1], **given)
    assert text.startswith("Submitted the job good: it is QUEUED.\nThe job is valid.\nIt would start now")
    assert "Note: Sends 2 files (0 B) of " in text
    assert "Note: Runs python -m trainer.task." in text
    assert "It has no package" not in text
    (master,) = good["dry_run"]["replicas"]
    assert (master["task_type"], master["count"], good["dry_run"]["starts_now"]) == ("master", 1, True)
    _, again = await call(agent, "submit", job="good", args=["--lr", 0.1], **given)
    assert (good["is_new"], again["is_new"]) == (True, False)
    text, _ = await call(agent, "submit", job="good", args=["--lr", 0.2], **given)
    assert text.startswith("ERROR: The job good exists (")
    assert "args: the job has --lr 0.1; this submission has --lr 0.2" in text
    done = await ended(agent, "good")
    assert (done["state"], done["step"], done["labels"]) == ("SUCCEEDED", 200, {"team": "a"})

    await call(agent, "submit", job="bad", args=["--lr", "high"], **given)
    failure = (await ended(agent, "bad"))["failure"]
    assert (failure["replica"], failure["exit_code"]) == ("master-replica-0", 3)
    text, log = await call(agent, "logs", job="bad")
    assert "ERROR: the learning rate is no number" in text
    assert log["lines"][-1]["text"] == "ERROR: the learning rate is no number"
    text, why = await call(agent, "why", job="bad")
    assert (why["state"], why["failure"]["exit_code"]) == ("FAILED", 3)
    text, described = await call(agent, "describe", job="bad")
    assert ": ENDED. Replicas: master-replica-0 EXITED." in text
    assert "- --lr\n  - high\n" in described["config"]

    text, compared = await call(agent, "compare", jobs=["good", "bad"])
    fields = {row["field"]: row["values"] for row in compared["differences"]}
    assert (compared["states"], fields["lr"]) == (["SUCCEEDED", "FAILED"], ["0.1", "high"])
    _, metrics = await call(agent, "metrics", job="good")
    (loss,) = metrics["metrics"]
    assert (loss["name"], loss["last"], loss["minimum"], loss["points"]) == ("loss", 0.75, 0.5, 3)
    _, listed = await call(agent, "list", limit=1)
    assert ([row["job"] for row in listed["jobs"]], listed["more"]) == (["bad"], True)
    text, cancelled = await call(agent, "cancel", job="bad")
    assert (text, cancelled["had_ended"]) == ("The job bad had ended before: it is FAILED.", True)

    await call(agent, "submit", job="endless", args=["--lr", 0], **given)
    _, waited = await call(agent, "wait", job="endless", timeout_s=0)
    assert not waited["ended"]
    _, cancelled = await call(agent, "cancel", job="endless")
    assert cancelled == {"job": "endless", "state": "CANCELLING", "had_ended": False}


async def test_job_that_waits_is_explained_before_and_after_it_is_submitted(client: Client) -> None:
    config = "trainingInput:\n  scaleTier: CUSTOM\n  masterType: n1-standard-96\n  pythonModule: trainer.task\n"
    change = "masterType n1-standard-16 (16 vCPU, 60 GB) instead of n1-standard-96"
    async with own_agent() as agent:
        _, checked = await call(agent, "dry_run", config=config, package_path="trainer")
        assert (checked["ok"], checked["starts_now"]) == (True, False)
        assert checked["outlook"].startswith("It would wait: ")
        await call(agent, "submit", config=config, package_path="trainer", job="large")
        text, why = await call(agent, "why", job="large")
    assert (why["state"], why["changes"]) == ("QUEUED", [change])
    assert f"It would start now with any one of:\n  - {change}" in text


WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("describe", {"jobb": "a"}, "describe has no argument jobb. It has job, project."),
    ("describe", {}, "describe: job: Field required."),
    ("describe", {"job": "../a"}, "'../a' is not a job name: "),
    ("describe", {"job": "a", "project": "a/b"}, "project: 'a/b' is not a project id: "),
    ("describe", {"job": "nothing"}, "The job projects/local/jobs/nothing was not found."),
    ("logs", {"job": "a", "limit": 999}, "logs: limit: Input should be less than or equal to 200."),
    ("logs", {"job": "a", "severity": "BAD"}, "severity must be one of DEBUG, "),
    ("logs", {"job": "a", "before": 3, "after": 1}, "Give either before or after."),
    ("compare", {"jobs": ["a", "b"]}, "None of these jobs exists: local/a, local/b."),
    ("submit", {}, "Nothing was submitted. Not accepted:\n- No job was given: "),
    ("submit", {"config": PROGRAM, "flags": ["--no"]}, "Nothing was submitted. Not accepted:\n- flags: No such opti"),
    ("submit", {"config": PROGRAM, "flags": ["--build", "."]}, "Nothing was submitted. Not accepted:\n- --build: "),
    ("submit", {"config": "a", "config_path": "a"}, "Nothing was submitted. Not accepted:\n- Give either config or "),
    ("delete", {}, "There is no tool 'delete'. The tools are submit, dry_run, list, "),
)


async def test_wrong_arguments_are_an_error_that_says_what_is_allowed(client: Client) -> None:
    async with own_agent() as agent:
        answers = [(await call(agent, tool, **arguments))[0] for tool, arguments, _ in WRONG]
    wrong = [
        (row, answer) for row, answer in zip(WRONG, answers, strict=True) if not answer.startswith(f"ERROR: {row[2]}")
    ]
    assert wrong == []
