from pathlib import Path

import pytest

from trainyard_cli.submission import config_file
from trainyard_protocol.errors import InvalidArgument, Violation

GOOD = """\
# what to train
labels: {team: vision}
trainingInput:
  scaleTier: CUSTOM
  master_type: local-1
  workerCount: 2
  args:
  - --lr
  - 0.1
  masterConfig:
    acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}
"""


@pytest.fixture
def config(tmp_path: Path) -> config_file.ConfigFile:
    return config_file.load(written(tmp_path, GOOD))


def written(directory: Path, text: str, name: str = "config.yaml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InvalidArgument) as caught:
        config_file.load(path)
    return caught.value.message


EXPLAINED: list[tuple[Violation, str]] = [
    (Violation("worker_count", "is wrong."), "{}:6: workerCount: is wrong.\n      workerCount: 2\n{caret}"),
    (Violation("master_type", "is wrong."), "{}:5: masterType: is wrong.\n"),
    (Violation("args[1]", "is wrong."), "{}:9: args[1]: is wrong.\n"),
    (Violation("master_config.accelerator_config.count", "is wrong."),
     "{}:11: masterConfig.acceleratorConfig.count: is wrong.\n"),
    (Violation("job.labels", "is wrong."), "{}:2: labels: is wrong.\n"),
    (Violation("job.training_input", "is wrong."), "{}:3: trainingInput: is wrong.\n"),
    (Violation("python_module", "is required."), "{}:3: pythonModule: is required."),  # where it belongs
    (Violation("job.training_input", 'Did you mean "scaleTier"?', unknown="scaleTier"),
     '{}:4: "scaleTier" is not a field of trainingInput. Did you mean'),
    (Violation("region", "must be here."), "--region: must be here."),
]  # fmt: skip


def test_explain_names_the_line_of_a_violation_or_its_flag(config: config_file.ConfigFile) -> None:
    caret = " " * len("      workerCount: ") + "^"
    wrong = []
    for violation, expected in EXPLAINED:
        text = config_file.explain([violation], config, {"region": "--region"})
        if not text.startswith(expected.format(config.path, caret=caret)):
            wrong.append(text)
    assert not wrong, "\n".join(wrong)
    both = [Violation("args[0]", "b"), Violation("job.labels", "a")]
    lines = [line for line in config_file.explain(both, config, {}).splitlines() if "config.yaml:" in line]
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["a", "b"], "the order of the file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", ':2: "a" is given twice; the first is in line 1.'),
        ("a:\n  b: 1\n  b: 2\n", ':3: "b" is given twice; the first is in line 2.'),
        ("a:\n\tb: 1\n", ":2: has a tab where YAML needs spaces"),
        ("a: [1, 2\n", ":2: is not YAML"),
        ("a: 'x\n", "is not YAML"),
        ("", ": is empty"),
        ("  \n", ": is empty"),
        ("# nothing\n", ": holds nothing but comments"),
        ("- a\n- b\n", ":1: must hold a mapping with trainingInput; this is a list."),
        ("just words\n", ":1: must hold a mapping with trainingInput; this is a single value."),
        ("a: 1\n---\nb: 2\n", ": starts a second document"),
        ("a: &x [*x]\n", ":1: refers to itself."),
        ("? [1]\n: 2\n", ":1: a key must be a plain name."),
        ("a: !!python/object:os.system {}\n", ":1: is of the type 'python/object:os.system' to YAML"),
        ("b: 1\na: 2026-01-01\n", ":2: is a date to YAML"),
        ("1: 2\n", ":1: a key must be text; put it in quotes."),
        ("a: !!set {x}\n", ":1: is of the type 'set' to YAML"),
        ("a: !!int x\n", ":1: 'x' cannot be read as a number"),
        ("a: .inf\n", ":1: '.inf' cannot be read as a number"),
        ("a: \x01\n", ":1: holds the character U+0001"),
        ("a: 2026-13-45\n", "put the value in quotes"),
        ("a: " + "[" * 5000, "nested too deeply"),
    ],
)
def test_load_of_an_invalid_config_reports_position_and_reason(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(written(tmp_path, text))


def test_load_in_every_encoding_of_yaml_is_the_same_config(tmp_path: Path) -> None:
    text = "trainingInput:\r\n  args: [grün, 日本]\r\n"
    path = tmp_path / "config.yaml"
    wrong = {}
    for encoding in ("utf-8", "utf-8-sig", *(f"utf-{n}{end}" for n in (16, 32) for end in ("", "-le", "-be"))):
        path.write_bytes(text.encode(encoding))
        read = config_file.load(path)
        if read.data != {"trainingInput": {"args": ["grün", "日本"]}} or read.lines[1] != "  args: [grün, 日本]":
            wrong[encoding] = read
    assert not wrong


def test_load_of_what_is_no_config_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml").endswith("none.yaml: cannot be read: No such file or directory.")
    assert refusal(tmp_path).endswith("cannot be read: Is a directory.")
    path = tmp_path / "c.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    assert refusal(path) == (
        f"{path}:2: is not UTF-8 text. The byte 0xE9 is 'é' in WINDOWS-1252. If that is its encoding, "
        f"convert the file:  iconv -f WINDOWS-1252 -t utf-8 {path} > {path}.utf8"
    )
    path.write_bytes(b"\x1f\x8b\x08\0\0\xff")
    assert refusal(path) == f"{path}:1: is not UTF-8 text. Is this a text file?"
    assert ":2: is not JSON: " in refusal(written(tmp_path, '{"a": 1\n"b": 2}\n', "c.json"))
    assert '"a" is given twice' in refusal(written(tmp_path, '{"a": 1, "a": 2}', "c.json"))
