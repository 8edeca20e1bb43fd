"""Findings of `trainyard doctor` and `trainyard agent doctor`."""

import shutil
import textwrap
from collections.abc import Sequence

from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo
from trainyard_protocol.answers.health import Finding

_WIDTH = 110
_STATE_WIDTH = len("PROBLEM")


def show(findings: Sequence[Finding], output: Output) -> bool:
    """Print the findings and return whether there is no problem."""
    healthy = all(finding.status != "problem" for finding in findings)
    data = {"healthy": healthy, "findings": [finding.model_dump(mode="json") for finding in findings]}
    if not formats.printed(output, data):
        echo(text(findings, min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)))
    return healthy


def text(findings: Sequence[Finding], width: int) -> str:
    """One block per finding; problems with their meaning and advice."""
    names = max((len(finding.check) for finding in findings), default=0)
    indent = " " * (names + _STATE_WIDTH + 4)
    lines: list[str] = []
    for finding in findings:
        state = finding.status.upper() if finding.status == "problem" else finding.status
        head = f"{finding.check:{names}}  {state:{_STATE_WIDTH}}  "
        lines += _wrapped(finding.found, width, head, indent)
        if finding.status == "problem":
            lines += _wrapped(finding.meaning, width, indent, indent)
            lines += _wrapped(finding.advice, width, f"{indent}-> ", f"{indent}   ")
            lines += [f"{indent}-> {finding.command}"] if finding.command else []  # whole, to be pasted
    return "\n".join([*lines, "", _summary(findings)])


def _summary(findings: Sequence[Finding]) -> str:
    problems = [finding for finding in findings if finding.status == "problem"]
    unknown = sum(finding.status == "unknown" for finding in findings)
    if not problems and unknown:
        return f"No problems were found. Not checked: {formats.count(unknown, 'item')}, above."
    if not problems:
        return "No problems."
    return f"{formats.count(len(problems), 'problem')}."


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    wrapper = textwrap.TextWrapper(width, first, rest, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)
