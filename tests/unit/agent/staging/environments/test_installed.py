"""The requirements of an environment, out of the names of its directories."""

from pathlib import Path

from trainyard_agent.installer.environment import BASE_FILE, base_lines
from trainyard_agent.staging.environments.installed import requirements


def add(directory: Path, *names: str, url: str = "") -> None:
    for name in names:
        (directory / f"{name}.dist-info").mkdir(parents=True)
        if url:
            (directory / f"{name}.dist-info" / "direct_url.json").write_text(url)


def test_own_packages_win_over_the_base_and_those_of_no_index_are_left_out(tmp_path: Path) -> None:
    first, second = tmp_path / "base", tmp_path / "more's"
    own = tmp_path / "run" / "venv" / "lib" / "python3.11" / "site-packages"
    add(first, "numpy-1.26.4", "typing_extensions-4.9.0", "six-1.16.0")
    add(second, "six-1.0", "torch-2.1.0+cpu", "odd name-1", "nothing", "x-1 ; import os")
    add(own, "numpy-2.0.0", "my_trainer-0.0.0", "Typing.Extensions-4.12.0")
    add(first, "trainyard-0.1.0", url="file:///src")
    (tmp_path / "run" / "0").mkdir()
    (tmp_path / "run" / "0" / "my_trainer-0.0.0-py3-none-any.whl").touch()
    (own / BASE_FILE).write_text(base_lines([str(first), str(second), str(tmp_path / "gone")]))
    found = requirements(tmp_path / "run").splitlines()
    assert found == ["numpy==2.0.0", "six==1.16.0", "torch==2.1.0+cpu", "Typing.Extensions==4.12.0"]
    (own / BASE_FILE).write_text("/module\n")  # its framework needs a base of its own
    assert requirements(tmp_path / "run").splitlines() == ["numpy==2.0.0", "Typing.Extensions==4.12.0"]
    assert requirements(tmp_path / "missing") == ""
