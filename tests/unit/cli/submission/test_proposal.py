from pathlib import Path

import pytest

from trainyard_cli.submission.proposal import EXAMPLE, proposed_line

SUBMIT = "jobs submit training"


def test_proposed_line_names_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ("trainer/__init__.py", "trainer/task.py")
    table = [  # files, line
        ((), f"{SUBMIT} --help"),
        (("trainer/notes.txt",), f"{SUBMIT} --help"),
        (package, f"{SUBMIT} --package-path trainer --stream-logs"),
        (("train.py", "other.py"), f"{SUBMIT} --package-path train.py --stream-logs"),
        ((*package, "config.yaml"), f"{SUBMIT} --config config.yaml --stream-logs"),
        (("config.json",), f"{SUBMIT} --config config.json --stream-logs"),
    ]
    wrong = []
    for number, (files, line) in enumerate(table):
        for name in files:
            path = tmp_path / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (tmp_path / str(number)).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / str(number))
        if (proposed := proposed_line(tmp_path / "nothing")) != line:
            wrong.append((files, proposed))
    assert not wrong


def test_proposed_line_is_otherwise_the_shipped_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert proposed_line() == f"{SUBMIT} --config {EXAMPLE} --stream-logs"
    assert EXAMPLE.is_file()
    monkeypatch.chdir(EXAMPLE.parents[1])
    assert proposed_line() == f"{SUBMIT} --config trainer_template/config.yaml --stream-logs"
