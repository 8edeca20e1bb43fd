"""Which files are the program: in checkouts of git and elsewhere, with links, caches, environments and secrets."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainyard_cli.submission.files import ProgramListing, list_files
from trainyard_cli.submission.files import listing as files

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo\n-----END RSA PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG\n-----END CERTIFICATE-----\n"
CACHE_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# a cache\n"
VENV = {"pyvenv.cfg": "home = /usr/bin\n", "bin/python": "", "lib/site.py": ""}


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def run(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    return subprocess.check_output(["git", *identity, *words], cwd=directory, text=True, stderr=subprocess.STDOUT)


def write(root: Path, contents: Mapping[str, str]) -> None:
    """Write files, and links where the content begins with `->`."""
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> ").replace("ROOT", str(root)))
        else:
            path.write_text(text)


def shown(listing: ProgramListing) -> tuple[set[str], dict[str, str]]:
    """The names that are sent, links with `-> TARGET`, and what is left out."""
    sent = {f"{name} -> {file.link}" if file.link else name for name, file in listing.files.items()}
    return sent, {entry.name: entry.reason for entry in listing.left_out}


@dataclass(frozen=True)
class Case:
    """A tree, with the names that are tracked (None: outside of git), and what is sent of it."""

    contents: Mapping[str, str]
    sent: set[str]
    left_out: Mapping[str, str]
    tracked: tuple[str, ...] | None = None
    empty: tuple[str, ...] = ()


def venv(name: str) -> dict[str, str]:
    return {f"{name}/{inner}": text for inner, text in VENV.items()}


CASES: Mapping[str, Case] = {
    "names that environments and builds often have are no reason": Case(
        {"env/a.py": "", "venv/b.py": "", "build/c.py": "", "dist/d.py": "", ".hidden/e": "", ".config": ""},
        {"env/a.py", "venv/b.py", "build/c.py", "dist/d.py", ".hidden/e", ".config"},
        {},
    ),
    "environments are found by what they have": Case(
        {"a.py": "", **venv("env"), **venv("deep/.x"), "conda/conda-meta/history": "", "conda/bin/python": ""},
        {"a.py"},
        {"env": files.ENVIRONMENT, "deep/.x": files.ENVIRONMENT, "conda": files.ENVIRONMENT},
        empty=(),
    ),
    "an environment in the directory of the program itself": Case(
        {"a.py": "", "pyvenv.cfg": "", "bin/activate": "", "bin/python": "", "lib/python3.11/x.py": "", "share/x": ""},
        {"a.py", "share/x"},
        {"pyvenv.cfg": files.ENVIRONMENT, "bin": files.ENVIRONMENT, "lib": files.ENVIRONMENT},
    ),
    "caches": Case(
        {"a.py": "", "a.pyc": "", "__pycache__/a": "", "p/.mypy_cache/x": "", "node_modules/x": "", ".hg/x": ""}
        | {"marked/CACHEDIR.TAG": CACHE_TAG, "marked/x": "", "not/CACHEDIR.TAG": "no signature", ".DS_Store": ""},
        {"a.py", "not/CACHEDIR.TAG"},
        dict.fromkeys(("a.pyc", "__pycache__", "p/.mypy_cache", "node_modules", "marked", ".DS_Store"), files.CACHE)
        | {".hg": files.HISTORY},
    ),
    "git decides, at each depth": Case(
        {".gitignore": "data\n*.ckpt\n!keep.ckpt\n", "a.py": "", "new.py": "", "data/x": "", "keep.ckpt": ""}
        | {
            "sub/.gitignore": "own\n!b.ckpt\n",
            "sub/own": "",
            "sub/b.ckpt": "",
            "sub/c.ckpt": "",
            "out/logs/x.ckpt": "",
        },
        {".gitignore", "a.py", "new.py", "keep.ckpt", "sub/.gitignore", "sub/b.ckpt"},
        dict.fromkeys(("data", "sub/own", "sub/c.ckpt", "out"), files.IGNORED),
        tracked=("a.py", ".gitignore"),
    ),
    "tracked files are sent whatever they are": Case(
        {".gitignore": "build\n", "build/t.py": "", "build/u.py": "", ".env": "A=1", "node_modules/t": "", "k.pem": KEY}
        | {"node_modules/u": "", **venv("env"), ".env.local": "A=1", "u.pem": KEY},
        {".gitignore", "build/t.py", ".env", "node_modules/t", "k.pem", "env/bin/python"},
        {
            "build/u.py": files.IGNORED,
            "node_modules/u": files.CACHE,
            ".env.local": "looks like a secret: environment file",
        }
        | {
            "env/pyvenv.cfg": files.ENVIRONMENT,
            "env/lib": files.ENVIRONMENT,
            "u.pem": "looks like a secret: private key",
        },
        tracked=("build/t.py", ".env", "node_modules/t", "k.pem", "env/bin/python", ".gitignore"),
    ),
    "untracked environments and caches of a checkout": Case(
        {"a.py": "", **venv("env"), "__pycache__/a.pyc": "", "c/CACHEDIR.TAG": CACHE_TAG, "c/x": ""},
        {"a.py"},
        {"env": files.ENVIRONMENT, "__pycache__": files.CACHE, "c": files.CACHE},
        tracked=("a.py",),
    ),
    "links within stay links": Case(
        {"d/f": "", "to-file": "-> d/f", "to-dir": "-> d", "d/up": "-> ..", "self": "-> .", "a": "-> b", "b": "-> a"}
        | {"absolute": "-> ROOT/d/f", "d/deep/absolute": "-> ROOT/d", "dangling": "-> nowhere", "./dot": "-> ./d/./f"}
        | {"by-name": "-> ../root/d", "through": "-> to-dir/f"},
        {"d/f", "to-file -> d/f", "to-dir -> d", "d/up -> ..", "self -> .", "a -> b", "b -> a", "absolute -> d/f"}
        | {"d/deep/absolute -> ..", "dangling -> nowhere", "dot -> d/f", "by-name -> d", "through -> to-dir/f"},
        {},
    ),
    "links that lead nowhere": Case(
        {"gone": "-> /nowhere/x", "above": "-> ../nowhere", "home": "-> ../../home", "all": "-> /"},
        set(),
        {"gone": "a link to /nowhere/x, which is not there", "above": "a link to ../nowhere, which is not there"}
        | {
            "home": "a link to HOME, which has more than one program",
            "all": "a link to /, which has more than one program",
        },
    ),
    "links that leave are followed once": Case(
        {
            "../out/f": "",
            "../out/in/g": "",
            "../out/loop": "-> .",
            "../out/in/up": "-> ../f",
            "../out/on": "-> ../other",
        }
        | {
            "../other/h": "",
            "../out/.env": "A=1",
            "data": "-> ../out",
            "d/one": "-> ../../out/f",
            "secret": "-> ../out/.env",
        }
        | {f"../out/v/{name}": text for name, text in VENV.items()}
        | {"v": "-> ../out/v", "via": "-> data/f"},
        {"data/f", "data/in/g", "data/loop -> .", "data/in/up -> ../f", "d/one", "via -> data/f"},
        {"data/on": "a link to ../other, out of what another link leads to", "v": files.ENVIRONMENT}
        | {"data/.env": "looks like a secret: environment file", "data/v": files.ENVIRONMENT}
        | {"secret": "looks like a secret: environment file"},
    ),
    "a tracked link to a secret elsewhere": Case(
        {"../out/id": KEY, "a": "-> ../out/id"}, set(), {"a": "looks like a secret: private key"}, tracked=("a",)
    ),
}


def test_files_of_a_tree_are_those_of_the_rules(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    problems = []
    for number, (title, case) in enumerate(CASES.items()):
        root = tmp_path / str(number) / "root"
        root.mkdir(parents=True)
        write(root, case.contents)
        if case.tracked is not None:
            run(root, "init", "-q")
            run(root, "add", "-f", *case.tracked)
        listing = list_files(root)
        expected = {name: why.replace("HOME", str(tmp_path / "home")) for name, why in case.left_out.items()}
        for found, wanted in zip((*shown(listing), listing.empty), (case.sent, expected, case.empty), strict=True):
            if found != wanted:
                problems.append(f"{title}: {found} is not {wanted}")
        assert listing.in_git == (case.tracked is not None)
    assert not problems, "\n".join(problems)
