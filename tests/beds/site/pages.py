"""Pages of the site: their fenced blocks, what each block's comment says of it, and a bash that runs them."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from beds.programs import BIN
from trainyard_cli.commands.shared.suggestions import LazyCommand
from trainyard_cli.commands.tree import trainyard

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(
    page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in ("contributing", "design", "SKILL.md")
)
"""The pages of the site. Notes for contributors and on design are not part of it."""

_FENCE = re.compile(
    r"""
    (?:^\ *<!--\ (?P<mark>[^\n]*?)\ -->\n)?
    ^(?P<indent>\ *)```(?P<language>\w*)(?:\ title="(?P<title>[^"\n]+)")?\n
    (?P<text>.*?)
    ^(?P=indent)```$
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_BETWEEN = "<<< block of line"
"""What the shell prints before each block's output."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `mark` is the comment above it: `run`, `shown by TEST` or `not run: REASON`."""

    line: int
    language: str
    mark: str
    text: str
    title: str = ""

    @property
    def runs(self) -> bool:
        return self.language == "sh" and self.mark == "run"

    @property
    def file(self) -> str | None:
        """The title, if it is a file's name: later commands of the page read this file."""
        return self.title if re.fullmatch(r"[\w./-]+\.\w+", self.title) else None


def blocks(page: Path) -> Iterator[Block]:
    """The page's blocks, from its top."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent = len(found["indent"])
        lines = "".join(line[indent:] for line in found["text"].splitlines(keepends=True))
        yield Block(
            text.count("\n", 0, found.start("text")),
            found["language"],
            found["mark"] or "",
            lines,
            found["title"] or "",
        )


def words_of(page: Path) -> int:
    """The number of words that a reader sees, those of commands and tables among them."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return len(re.findall(r"\w[\w'’./:=-]*", text))


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command of ours in a block of the language `sh`."""
    text = re.sub(r"<<'?(\w+)'?\n.*?^\1$", "", block.text, flags=re.DOTALL | re.MULTILINE)  # here documents
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.commenters = ""
        lexer.whitespace_split = True
        words: list[str] = []
        for token in [*lexer, ";"]:
            if token.startswith("#") or set(token) <= set("();<>|&"):
                yield from _ours(words)
                words = []
                if token.startswith("#"):
                    break
            else:
                words.append(token)


def _ours(words: list[str]) -> Iterator[list[str]]:
    while words and (
        re.fullmatch(r"\w+=.*", words[0]) or words[0] in ("!", "do", "exec", "if", "sudo", "then", "time", "$")
    ):
        words = words[1:]
    if words and words[0] in ("jobs", "trainyard"):
        yield words


def parse(words: list[str]) -> None:
    """Parse a command as the command line does, without running it. Raises click.UsageError."""
    path = ["jobs", *words[1:]] if words[0] == "jobs" else words[1:]
    command: click.Command = trainyard
    context = click.Context(command, info_name="trainyard", resilient_parsing=True)
    while isinstance(command, click.Group) and path and not path[0].startswith("-"):
        name = path.pop(0)
        inner = command.get_command(context, name)
        if inner is None:
            raise click.UsageError(f"{context.command_path} has no command {name!r}", context)
        command = inner.load() if isinstance(inner, LazyCommand) else inner
        context = click.Context(command, info_name=name, parent=context, resilient_parsing=True)
    context = click.Context(command, info_name=context.info_name, parent=context.parent, **command.context_settings)
    _, rest, _ = command.make_parser(context).parse_args(args=path)
    if rest and not context.allow_extra_args and not isinstance(command, click.Group):
        raise click.UsageError(f"{context.command_path} has nothing to do with {shlex.join(rest)}", context)


def run(page: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's `run` blocks in one bash, in an empty directory into which its files are written as they come.

    The shell ends at the first command that fails. The service that it has started is stopped, whatever happened.
    """
    work, home = directory / "work", directory / "home"
    work.mkdir(parents=True)
    home.mkdir()
    script = [
        "set -e",
        'eval "$(trainyard shell-init bash)"',
        f"trap 'trainyard down > {directory}/down.log 2>&1' EXIT",
    ]
    for number, block in enumerate(blocks(page)):
        if block.file:
            kept = directory / f"file-{number}"
            kept.write_text(block.text, encoding="utf-8")
            script.append(f"mkdir -p $(dirname {work}/{block.file}) && cp {kept} {work}/{block.file}")
        elif block.runs:
            script += [f"echo '{_BETWEEN} {block.line}'", block.text]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")} | {
        "HOME": str(home),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "TRAINYARD_STATE_DIR": str(directory / "state"),
        "COLUMNS": "120",
        "TEMPLATE": str(ROOT / "trainer_template"),
    }
    return subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=900,
        check=False,
    )
