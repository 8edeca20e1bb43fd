"""Mistyped words: the line that was meant, in the error."""

from collections.abc import Iterator

import click
import pytest

from trainyard_cli.commands import tree
from trainyard_cli.commands.shared.suggestions import LazyCommand
from trainyard_cli.main import run

AFTER_DASHES = "Arguments of the training program go after --:\n  "
TYPED = {
    # Words of commands
    "statsu": "No such command 'statsu'. Did you mean:\n  trainyard status\n",
    "job submt training x --config c": "Did you mean:\n  trainyard jobs submit training x --config c\n",
    "jobs descrbe x": "Did you mean:\n  trainyard jobs describe x\n",
    "jobs logs x": "Did you mean:\n  trainyard jobs stream-logs x\n",
    "jobs stop x": "Did you mean:\n  trainyard jobs cancel x\n",
    "logs x": "Did you mean:\n  trainyard jobs stream-logs x\n",
    "stop": "Did you mean:\n  trainyard down\n",
    "jobs top -o json": "Did you mean:\n  trainyard jobs list --watch -o json\n",
    "top": "Did you mean:\n  trainyard jobs list --watch\n",
    "help jobs descrbe": "Did you mean:\n  trainyard jobs describe --help\n",
    "list --limit 3": "Did you mean:\n  trainyard jobs list --limit 3\n",
    "jobs qqq": "ERROR: (trainyard.jobs) No such command 'qqq'.\n",
    # `training` left out
    "submit x": "Did you mean:\n  trainyard jobs submit training x\n",
    "jobs submit my_job --config c": "Did you mean:\n  trainyard jobs submit training my_job --config c\n",
    "jobs submit --config c -- --epochs 5": (
        "No such option: --config. Did you mean:\n  trainyard jobs submit training --config c -- --epochs 5\n"
    ),
    # Flags before the verb
    "jobs --quiet descrbe x": "Did you mean:\n  trainyard jobs describe --quiet x\n",
    # Flags
    "up --runtim docker": "'--runtime'",
    "jobs submit training --confg c": (
        f"No such option: --confg. Did you mean --config? {AFTER_DASHES}trainyard jobs submit training -- --confg c\n"
    ),
    "jobs submit training x --config c --epochs 5": (
        f"No such option: --epochs. {AFTER_DASHES}trainyard jobs submit training x --config c -- --epochs 5\n"
    ),
    "jobs submit training x epochs 5": "(epochs 5). Arguments of the training program go after --.\n",
    "jobs validate --layers 32 64 --config=c -- --a b": (
        f"Did you mean --labels? {AFTER_DASHES}trainyard jobs validate --config=c -- --layers 32 64 --a b\n"
    ),
    "jobs validate -v --fast --project x --lr=1 -": (
        f"{AFTER_DASHES}trainyard jobs validate --project x -- -v --fast --lr=1 -\n"
    ),
    "jobs validate --epochs=5 --config c": (
        f"No such option: --epochs. {AFTER_DASHES}trainyard jobs validate --config c -- --epochs=5\n"
    ),
}


def test_mistyped_line_is_refused_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for words, expected in TYPED.items():
        code = run(tree.trainyard, "trainyard", words.split())
        printed = capsys.readouterr()
        if code != 2 or printed.out or expected not in printed.err:
            wrong.append(f"{words}: {code}\n{printed.err}")
    assert not wrong, "\n".join(wrong)


PASTED = {
    "jobs submit training —-config c": ("—-config", "—", "2014", "--config"),
    "jobs submit training x −-config=c": ("−-config=c", "−", "2212", "--config=c"),
    "jobs submit training x --config c — --epochs 3": ("—", "—", "2014", "--"),
    "jobs list –o json": ("–o", "–", "2013", "-o"),
    "jobs exec x — ls -l": ("—", "—", "2014", "--"),
    "—quiet jobs list": ("—quiet", "—", "2014", "--quiet"),
}
"""Lines with the dashes of an article: the word, its dash, and the flag that was meant."""


def test_dash_of_an_article_is_refused_with_the_flag_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for words, (word, dash, code_point, meant) in PASTED.items():
        code = run(tree.trainyard, "trainyard", words.split())
        printed = capsys.readouterr()
        expected = f"'{word}' has '{dash}' (U+{code_point}) in place of a hyphen. Did you mean {meant}?\n"
        if code != 2 or printed.out or expected not in printed.err:
            wrong.append(f"{words}: {code}\n{printed.err}")
    assert not wrong, "\n".join(wrong)
    assert run(tree.trainyard, "trainyard", ["jobs", "list", "extra", "--", "—"]) == 2
    assert "hyphen" not in capsys.readouterr().err, "what stands behind -- is the program's"


def commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield from commands(command) if isinstance(command, click.Group) else (command,)


def test_group_shows_of_a_command_what_the_command_says_of_itself() -> None:
    places = [command for command in commands(tree.trainyard) if isinstance(command, LazyCommand)]
    wrong = [place.name for place in places if not str(place.load().help).startswith(str(place.help).rstrip("."))]
    assert len(places) > 20
    assert not wrong
