"""docs/SKILL.md, for AI agents: its tools are those of `trainyard mcp`, its commands those of the command line."""

import re
import shlex
from pathlib import Path

import yaml

from beds.site import pages
from trainyard_cli.settings import Target

_, FRONT, BODY = (pages.DOCS / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
ROWS = re.findall(r"^\| `(\w+)` \| `(jobs [a-z -]+)` \| \S.* \|$", BODY, re.MULTILINE)


def test_skill_has_front_matter_and_few_words() -> None:
    matter = yaml.safe_load(FRONT)
    assert matter["name"] == "trainyard"
    assert len(matter["description"]) <= 1024  # as the format allows
    assert len(BODY.split()) <= 600


def test_skill_has_a_row_for_each_tool() -> None:
    from trainyard_cli.capabilities.mcp.server import tools
    from trainyard_cli.capabilities.mcp.user import McpUser

    assert [tool for tool, _ in ROWS] == [tool.name for tool in tools(McpUser(Target(Path())))]


def test_commands_of_the_skill_have_the_flags_that_the_command_line_has() -> None:
    commands = re.findall(r"`((?:jobs|trainyard) [^`]+)`", BODY)
    assert {command for _, command in ROWS} < set(commands)
    for command in commands:
        pages.parse(shlex.split(command))
