"""The generated files for AI agents: the skill and the list of pages."""

import re
import runpy
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
GENERATED: dict[str, str] = {
    path.name: text for path, text in runpy.run_path(str(ROOT / "scripts" / "agent_files.py"))["files"]().items()
}
MOST_WORDS = 600


def test_skill_has_front_matter_every_tool_and_few_words() -> None:
    _, front, body = GENERATED["SKILL.md"].split("---\n", 2)
    matter = yaml.safe_load(front)
    assert matter["name"] == "trainyard"
    assert len(matter["description"]) <= 1024  # as the format allows
    assert len(body.split()) <= MOST_WORDS
    for row in ("| `logs` | `jobs stream-logs` | Read a job's log |", "| `compare` | `jobs diff` |"):
        assert row in body


def test_list_of_pages_links_to_each_page_once() -> None:
    text = GENERATED["llms.txt"]
    assert re.match(r"# Trainyard\n\n> \S.*\n\n## ", text)
    links = re.findall(r"^- \[.+?\]\((.+?)\)", text, re.MULTILINE)
    assert len(links) == len(set(links)) > 10
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []
    assert not [link for link in links if link.startswith(("design/", "contributing/", "SKILL"))]
