"""The arguments of a job that runs again."""

import click
import pytest

from trainyard_cli.submission.flags import SetArgument
from trainyard_cli.submission.from_job import changed


@pytest.mark.parametrize(
    ("args", "changes", "after"),
    [
        ("--lr 0.1 --epochs 5", "lr=0.2", "--lr 0.2 --epochs 5"),
        ("--lr=0.1 --epochs=5", "lr=0.2", "--lr=0.2 --epochs=5"),
        ("--lr=0.1", "--lr=0.2", "--lr=0.2"),
        ("--shift -1.5", "shift=-2", "--shift -2"),
        ("--batch-size 8", "batch_size=16", "--batch-size 16"),
        ("-e 3 --name e", "-e=4", "-e 4 --name e"),
        ("lr=0.1 model=cnn", "model=mlp", "lr=0.1 model=mlp"),
        ("lr=0.1 model=cnn", "seed=7", "lr=0.1 model=cnn seed=7"),
        ("--lr 0.1", "seed=7", "--lr 0.1 --seed=7"),
        ("", "seed=7", "--seed=7"),
        ("--verbose --lr 0.1", "verbose=2", "--verbose=2 --lr 0.1"),
        ("--lr 0.1 --lr 0.2", "lr=0.3", "--lr 0.3 --lr 0.3"),
        ("train --data train", "train=x", "train --data train --train=x"),
        ("--text a=b", "text=c=d", "--text c=d"),
    ],
)
def test_value_of_an_argument_is_changed_as_it_is_written(args: str, changes: str, after: str) -> None:
    given = [SetArgument().convert(change, None, None) for change in changes.split()]
    assert changed(args.split(), given) == after.split()


@pytest.mark.parametrize("text", ["lr", "=1", "--=1"])
def test_change_without_a_name_and_a_value_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="must look like NAME=VALUE"):
        SetArgument().convert(text, None, None)
