"""Settings that are declared once: their sources, and what is refused."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.settings import SettingsReader, declared, number, required, setting


@dataclass(frozen=True)
class _Settings:
    root: Path = required("the directory")
    lease_s: float = setting(600.0, "the lease ([page](a.md))", "--lease-seconds", read=number(float, 120))
    names: tuple[str, ...] = setting((), "a name", "--name")
    quick: bool = setting(False, "be quick")
    level: str = setting("info", "the level", choices=("info", "error"))
    internal: int = 3


_READER = SettingsReader("program", "A program.", "PROGRAM_", {_Settings: ""})


def read(arguments: list[str], **environment: str) -> _Settings:
    return _Settings(**_READER.read(arguments, environment)[_Settings])


def test_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "trainyard.toml"
    file.write_text('root = "/file"\nlease-seconds = 130\nname = ["a", "b"]\nquick = true\nlevel = "error"\n')
    assert read(["--settings", str(file)]) == _Settings(Path("/file"), 130.0, ("a", "b"), True, "error")
    environment = {
        "PROGRAM_SETTINGS": str(file),
        "PROGRAM_LEASE_SECONDS": "140",
        "PROGRAM_NAME": "c,d",
        "PROGRAM_QUICK": "no",
    }
    assert read([], **environment) == _Settings(Path("/file"), 140.0, ("c", "d"), False, "error")
    flags = ["--lease-seconds", "150", "--name", "e", "--name", "f", "--quick", "--root", "/flag"]
    assert read(flags, **environment) == _Settings(Path("/flag"), 150.0, ("e", "f"), True, "error")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("root = ", "trainyard.toml is not TOML"),
        ("roots = 1", "'roots' is not a setting. Settings: lease-seconds, level, name, quick, root."),
        ("internal = 1", "'internal' is not a setting"),
        ("root = 1\nlease-seconds = 119", "trainyard.toml: lease-seconds must be 120 or more; this is 119."),
        ("root = 1\nlease-seconds = inf", "must be 120 or more"),
        ("root = 1\nquick = 2", "trainyard.toml: quick is true or false; this is '2'."),
        ("root = 1\nlevel = 2", "trainyard.toml: level is one of info, error; this is '2'."),
        ("root = []", "trainyard.toml: root must be one value, and no list."),
        ("root = 1\nlease-seconds = [130, 140]", "lease-seconds must be one value, and no list."),
        ("root = 1\nname = {a = 1}", "trainyard.toml: name must be one value, or a list of them."),
    ],
)
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "trainyard.toml").write_text(content)
    with pytest.raises(InvalidArgument, match=says.replace("trainyard.toml", ".*trainyard.toml")):
        read(["--settings", str(tmp_path / "trainyard.toml")])


def test_value_that_cannot_be_used_is_refused_by_the_name_of_its_source(tmp_path: Path) -> None:
    for arguments, environment, says in (
        (["--root", "/", "--lease-seconds", "1"], {}, "--lease-seconds must be 120 or more; this is 1."),
        (["--root", "/"], {"PROGRAM_LEASE_SECONDS": "nan"}, "$PROGRAM_LEASE_SECONDS must be 120 or more"),
        (["--settings", str(tmp_path / "none")], {}, "none cannot be read: No such file"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            read(arguments, **environment)
        assert says in refused.value.message


@pytest.mark.parametrize(
    "arguments", [[], ["--root", "/", "--lease-seconds", "soon"], ["--root", "/", "--internal", "1"]]
)
def test_command_line_that_is_wrong_ends_the_program(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(arguments)
    assert ended.value.code == 2


def test_help_and_tables_are_made_of_the_declarations() -> None:
    assert "the lease; default: 600" in " ".join(_READER.parser().format_help().split())
    assert [one.default for one in declared(_Settings)] == ["", "600", "none", "", "info"]
