"""Requirement files, as uv is given them."""

from pathlib import Path

from trainyard_agent.installer import declared
from trainyard_agent.installer.indexes import Indexes
from trainyard_agent.installer.output import Refused
from trainyard_agent.installer.requirement_files import RequirementReader
from trainyard_agent.installer.tree import SourceTree


def test_requirement_files_are_read_as_pip_reads_them(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "libs" / "lib").mkdir(parents=True)
    (root / "libs" / "a.whl").touch()
    (root / "more").mkdir()
    (root / "more" / "r.txt").write_text("six\n")
    lines = {
        "six  # comment": "six",
        "six #comment\\": "six",
        "# comment\\": "",
        "six==1 \\\n  --hash=sha256:aa \\\n  --hash=sha256:bb": "six==1 --hash=sha256:aa --hash=sha256:bb",
        "six==1 --global-option=x": "six==1",
        "six[a,b]>=1 ; python_version > '3'": "six[a,b]>=1 ; python_version > '3'",
        "x @ https://${TOKEN}@h.example/x.whl": "x @ https://${TOKEN}@h.example/x.whl",
        "git+https://h.example/x.git@v1#egg=x": "git+https://h.example/x.git@v1#egg=x",
        "./libs/lib": f"{root}/libs/lib",
        "libs/a.whl": f"{root}/libs/a.whl",
        "-e ./libs/lib[x]": f"-e {root}/libs/lib[x]",
        "--editable=./libs/lib ; python_version > '3'": f"-e {root}/libs/lib ; python_version > '3'",
        "-e git+https://h.example/x.git#egg=x": "-e git+https://h.example/x.git#egg=x",
        "lib @ file:libs/lib": f"lib @ file://{root}/libs/lib",
        "lib @ ./libs/lib": f"lib @ file://{root}/libs/lib",
        "-r more/r.txt": f"-r {root}/more/.trainyard-1.txt",
        "-rmore/r.txt": f"-r {root}/more/.trainyard-1.txt",
        "--no-binary :all:": "--no-binary :all:",
        "-i https://i.example --pre --prefer-binary": "",
    }
    wrong = {}
    for line, expected in lines.items():
        (root / "requirements.txt").write_text(f"{line}\n")
        read = RequirementReader(SourceTree(root), Indexes(), {"TOKEN": "secret"}).read(root / "requirements.txt")
        if (given := read.path.read_text()) != (f"{expected}\n" if expected else ""):
            wrong[line] = given
    assert not wrong


def test_lines_that_lead_out_of_the_files_or_are_no_requirement_are_refused_with_their_numbers(tmp_path: Path) -> None:
    out, root = tmp_path / "out", tmp_path / "program"
    (out / "lib").mkdir(parents=True)
    (out / "r.txt").write_text("somewhere\n")
    root.mkdir()
    outside = "{} is outside the uploaded files"
    lines = {
        "-r ../out/r.txt": outside.format("../out/r.txt"),
        f"-c {out}/r.txt": outside.format(f"{out}/r.txt"),
        f"-e {out}/lib": outside.format(f"{out}/lib"),
        f"--find-links={out}/lib": outside.format(f"{out}/lib"),
        f"x @ file://{out}/lib": outside.format(f"{out}/lib"),
        f"x @ git+file://{out}/lib": outside.format(f"{out}/lib"),
        "../out/lib[extra] ; python_version > '3'": outside.format("../out/lib"),
        "-e ./lib": "./lib is not among the files that were uploaded",
        "--target x": "--target is not an option of requ",
    }
    wrong = {}
    for line, words in lines.items():
        (root / "requirements.txt").write_text(f"six\n{line}\n")
        try:
            RequirementReader(SourceTree(root), Indexes(), {}).read(root / "requirements.txt")
            wrong[line] = "it is read"
        except Refused as refused:
            if f"requirements.txt, line 2: {words}" not in str(refused):
                wrong[line] = str(refused)
    assert not wrong


def test_options_of_requirement_files_are_settings_of_the_installation(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    text = """
--index-url https://${USER_OF_INDEX}:${TOKEN}@i.example/simple
--extra-index-url=https://e.example
-f ./wheels
--trusted-host e.example
--require-hashes
"""
    (tmp_path / "requirements.txt").write_text(text)
    site = Indexes(default="https://site.example", extra=["https://s.example"])
    environment = {"USER_OF_INDEX": "u", "TOKEN": "secret"}
    read = RequirementReader(SourceTree(tmp_path), site, environment).read(tmp_path / "requirements.txt")
    assert read.indexes == Indexes(
        default="https://u:secret@i.example/simple",
        extra=["https://s.example", "https://e.example"],
        links=[str((tmp_path / "wheels").resolve())],
        trusted=["e.example"],
    )
    assert (read.hashes, read.variables) == (True, {"USER_OF_INDEX", "TOKEN"})
    assert "secret" not in read.indexes.shown()
    assert site.default == "https://site.example"


def test_environment_file_of_conda_has_a_part_for_pip() -> None:
    text = """
name: x
channels: [conda-forge]
dependencies:
  - python=3.10   # comment
  - pip
  - pip:
    - "numpy<2"
    - -r requirements.txt
  - cudatoolkit=11.8
prefix: /home/me
"""
    assert declared.conda(text) == (["numpy<2", "-r requirements.txt"], ["python=3.10", "cudatoolkit=11.8"])
    assert declared.conda("dependencies:\n- a\n- pip:\n  - b\n") == (["b"], ["a"])
    quoted = "dependencies:\n- pip:\n  - a ; python_version < '3'\n  - 'b<2'\n"
    assert declared.conda(quoted) == (["a ; python_version < '3'", "b<2"], [])
    assert declared.conda("name: x\n") == ([], [])
