import shlex
import subprocess

import pytest

from trainyard_protocol.job.config import text as config_text
from trainyard_server.capabilities.config_editor import clone as cloning


@pytest.mark.parametrize(
    ("like", "taken", "free"),
    [
        ("train", {"train"}, "train_2"),
        ("train", {"train", "train_2"}, "train_3"),
        ("train_2", {"train", "train_2"}, "train_3"),
        ("resnet50_lr0_1", {"resnet50_lr0_1"}, "resnet50_lr0_1_2"),
        ("lr_0_01_1", {"lr_0_01", "lr_0_01_1"}, "lr_0_01_1_2"),  # clones begin at 2
        ("sweep_3", {"sweep_3"}, "sweep_3_2"),
        ("train_20261120_142501", {"train_20261120_142501"}, "train_20261120_142501_2"),
        ("train_", {"train_"}, "train_2"),
        ("a" * 128, {"a" * 128}, "a" * 126 + "_2"),
    ],
)
def test_next_id_continues_the_name(like: str, taken: set[str], free: str) -> None:
    assert cloning.next_id(like, taken.__contains__) == free


@pytest.mark.parametrize("argument", ["it's $(touch here) `x`", "CONFIG", "a\nCONFIG\nb", "\\"])
def test_clone_command_gives_a_shell_the_same_config(argument: str) -> None:
    sent = {"pythonModule": "t", "args": [argument, "--last"]}
    commands = cloning.commands("p", "a", "a_2", sent, {}, ["master-replica-0"])
    (clone,) = [one.command for one in commands if one.name == "clone"]
    script = f'trainyard() {{ printf "%s\\n" "$*"; cat; }}\n{clone}\n'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    command, _, text = done.stdout.partition("\n")
    assert shlex.split(command) == ["jobs", "submit", "training", "a_2", "--project", "p", "--config", "-"]
    assert config_text.read(text).data["trainingInput"] == sent
