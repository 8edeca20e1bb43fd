import asyncio
import gzip
import io
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from trainyard_agent.staging import archive_check, archives
from trainyard_agent.staging.archives import inspect, is_package_name
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_protocol.states import Reason

HATCHLING = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
SETUPTOOLS = '[build-system]\nrequires = ["setuptools>=61", "wheel"]\nbuild-backend = "setuptools.build_meta"\n'
SCM = '[build-system]\nrequires = ["setuptools", "setuptools-scm"]\nbuild-backend = "setuptools.build_meta"\n'


def sdist(path: Path, files: dict[str, str]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("name", ["p-1.tar.gz", "p-1.zip"])
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"p-1/setup.py": ""}, False),
        ({"p-1/pyproject.toml": SETUPTOOLS}, False),
        ({"p-1/pyproject.toml": "[project]\nname = 'p'\n"}, False),
        ({"p-1/pyproject.toml": HATCHLING}, True),
        ({"p-1/pyproject.toml": SCM}, True),
        ({"p-1/deep/pyproject.toml": HATCHLING}, False),
        ({"p-1/pyproject.toml": "not toml"}, False),
        ({"p-1/pyproject.toml": "build-system = 3"}, False),
        ({"p-1/pyproject.toml": "[build-system]\nrequires = 3\n"}, False),
        ({}, False),
    ],
)
async def test_isolation_is_needed_where_more_than_setuptools_builds(
    tmp_path: Path, name: str, files: dict[str, str], expected: bool
) -> None:
    assert (await inspect(sdist(tmp_path / name, files))).isolated is expected


ABOUT = "p-1.dist-info"
PLAIN = {
    "p/__init__.py": "",
    "p/data/words.txt": "one",
    f"{ABOUT}/METADATA": "Name: p\nVersion: 1\n",
    f"{ABOUT}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
    f"{ABOUT}/RECORD": "",
}
NEEDY = {f"{ABOUT}/METADATA": "Name: p\nRequires-Dist: six\n"}
PYTHON = {f"{ABOUT}/METADATA": "Name: p\nRequires-Python: >=3.99\n"}


@pytest.mark.parametrize(
    ("name", "more", "unpacked", "depends"),
    [
        ("p-1-py3-none-any.whl", {}, True, False),
        ("p-1-py3-none-any.whl", NEEDY, True, True),
        ("p-1-py3-none-any.whl", {"p/broken.py": "def"}, True, False),
        ("p-1-cp311-cp311-linux_x86_64.whl", {}, False, False),
        ("q-1-py3-none-any.whl", {}, False, False),
        ("p-1.zip", {}, False, False),
        ("p-1-py3-none-any.whl", PYTHON, False, False),
        ("p-1-py3-none-any.whl", {f"{ABOUT}/entry_points.txt": "[console_scripts]\np=p:main\n"}, False, False),
        ("p-1-py3-none-any.whl", {"p-1.data/scripts/p": ""}, False, False),
        ("p-1-py3-none-any.whl", {"q-1.dist-info/METADATA": "Name: q\n"}, False, False),
        ("p-1-py3-none-any.whl", {f"{ABOUT}/WHEEL": "Root-Is-Purelib: false\n"}, False, False),
        ("p-1-py3-none-any.whl", {"p/../q.py": ""}, False, False),
        ("p-1-py3-none-any.whl", {"p/data": ""}, False, False),  # a file where another entry has a directory
    ],
)
async def test_wheel_is_unpacked_where_pip_would_do_no_more(
    tmp_path: Path, name: str, more: dict[str, str], unpacked: bool, depends: bool
) -> None:
    site_packages = tmp_path / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    package = tmp_path / name
    with zipfile.ZipFile(package, "w") as archive:
        for path, text in (PLAIN | more).items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (stat.S_IFREG | (0o755 if path.endswith(".txt") else 0o600)) << 16
            archive.writestr(entry, text)
    inspection = await inspect(package, site_packages)
    assert (inspection.unpacked, inspection.depends) == (unpacked, depends)
    if unpacked:
        assert (site_packages / "p/data/words.txt").read_text() == "one"
        assert stat.S_IMODE((site_packages / "p/data/words.txt").stat().st_mode) == 0o755
        assert stat.S_IMODE((site_packages / "p/__init__.py").stat().st_mode) == 0o644
        assert [path.stem for path in (site_packages / "p").rglob("*.pyc")] == [
            f"__init__.{sys.implementation.cache_tag}"
        ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trainer-0.0.0.tar.gz", True),
        ("a.tgz", True),
        ("a-1-py3-none-any.whl", True),
        ("a.zip", True),
        ("", False),
        ("..tar.gz", False),
        ("-r.whl", False),
        ("a/b.whl", False),
        ("a.py", False),
        ("a b.whl", False),
    ],
)
def test_package_names_are_plain_files_that_pip_installs(name: str, expected: bool) -> None:
    assert is_package_name(name) is expected


Member = tuple[str, dict[str, object]]
"""Name of an entry, and attributes of its TarInfo."""


def tar(*members: Member) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, attributes in (("p-1/setup.py", {}), *members):
            info = tarfile.TarInfo(name)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return buffer.getvalue()


def header(kind: bytes, size: int, content: bytes = b"") -> bytes:
    """A tar file of one extended header, which may promise more than it has."""
    info = tarfile.TarInfo("p-1/PaxHeader")
    info.type, info.size = kind, size
    padding = bytes(-len(content) % 512)
    return gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + content + padding + bytes(1024))


def zipped(*infos: zipfile.ZipInfo, content: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("p-1/setup.py", "")
        for info in infos:
            archive.writestr(info, content)
    return buffer.getvalue()


def zip_bomb() -> bytes:
    """Nine entries that promise 1 GiB each."""
    one = zipped(*(zipfile.ZipInfo(f"p-1/{n}") for n in range(9)), content=b"x" * 16)
    return one.replace((16).to_bytes(4, "little") + b"\5\0", (1 << 30).to_bytes(4, "little") + b"\5\0")


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Member:
    return name, {"type": kind, "linkname": target}


def setuid() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("p-1/tool")
    info.external_attr = (stat.S_IFREG | 0o4755) << 16
    return info


def plain(*members: Member) -> bytes:
    """A tar file that is not compressed."""
    return gzip.decompress(tar(("p-1/data", {"size": 3000}), *members))


def with_dictionary_of_4_gib() -> bytes:
    """A zip file of one entry, compressed by LZMA, whose reader must allocate 4 GiB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("p-1/setup.py", "x" * 100)
    content = bytearray(buffer.getvalue())
    at = content.index(b"\x05\x00\x5d") + 3  # LZMA's properties: their size, a byte, the size of the dictionary
    content[at : at + 4] = b"\xff" * 4
    return bytes(content)


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new)


def encrypted(content: bytes) -> bytes:
    """A zip file whose entries say, in both of their headers, that they are encrypted."""
    local, central = b"PK\3\4\x14\0", b"PK\1\2\x14\3\x14\0"
    return changed(changed(content, local + b"\0", local + b"\1"), central + b"\0", central + b"\1")


DIGITS = b"1" * 1_000_000
HARD, GNU = tarfile.LNKTYPE, tarfile.GNUTYPE_LONGNAME
EXCEEDED = "cannot be read in"
UNREADABLE = "its archive cannot be read: "
QUADRATIC = "quadratic pax header"
INVALID = f"{UNREADABLE}invalid header"
"""The older tarfile of Debian 12 refuses that header at once."""

HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    QUADRATIC: ("p.tar.gz", lambda: header(tarfile.XHDTYPE, len(DIGITS), DIGITS), EXCEEDED),
    "pax header of 4 GiB": (
        "p.tar.gz",
        lambda: header(tarfile.XHDTYPE, 1 << 32),
        EXCEEDED,
    ),
    "long name of 1 GiB": ("p.tar.gz", lambda: header(GNU, 1 << 30), EXCEEDED),
    "zip bomb": ("p.zip", zip_bomb, "more than 8 GiB"),
    "absolute": ("p.tar.gz", lambda: tar(("/etc/passwd", {})), "'/etc/passwd' is outside the package"),
    "parent": ("p.tar.gz", lambda: tar(("p-1/../../x", {})), "'p-1/../../x' is outside"),
    "escape in a name": ("p.tar.gz", lambda: tar(("../\x1b[31m", {})), "'../\\x1b[31m' is outside"),
    "absolute link": ("p.tar.gz", lambda: tar(link("p-1/l", "/etc")), "'p-1/l' is a link out of the package"),
    "link to a parent": ("p.tar.gz", lambda: tar(link("p-1/l", "../..")), "link out of the package"),
    "hard link": ("p.tar.gz", lambda: tar(link("p-1/l", "/etc/shadow", HARD)), "link out of the package"),
    "file through a link": ("p.tar.gz", lambda: tar(link("l", "p-1"), ("l/x", {})), "link 'l' is used as"),
    "link through a link": (
        "p.tar.gz",
        lambda: tar(link("p-1/a", "."), link("p-1/b", "a/../..")),
        "link 'p-1/a' is used as",
    ),
    "link by a detour": ("p.tar.gz", lambda: tar(link("p-1/d/../l", ".."), ("p-1/l/x", {})), "used as"),
    "pipe": ("p.tar.gz", lambda: tar(("p-1/d", {"type": tarfile.FIFOTYPE})), "is a device or a pipe"),
    "setuid": ("p.tar.gz", lambda: tar(("p-1/tool", {"mode": 0o4755})), "'p-1/tool' has the setuid"),
    "deep": ("p.tar.gz", lambda: tar(("d/" * 65 + "f", {})), "64 directories"),
    "long": ("p.tar.gz", lambda: tar(("n" * 1025, {})), "1024 characters"),
    "no tar file": ("p.tar.gz", lambda: b"garbage", f"{UNREADABLE}not a gzip file"),
    "no zip file": ("p.zip", lambda: b"garbage", f"{UNREADABLE}File is not a zip file"),
    "empty": ("p.tar.gz", lambda: b"", UNREADABLE),
    "tar file that is not compressed": ("p.tar.gz", plain, f"{UNREADABLE}not a gzip file"),
    "gzip that ends early": ("p.tar.gz", lambda: tar()[:-40], f"{UNREADABLE}Compressed file ended"),
    "gzip with an invalid block": ("p.tar.gz", lambda: tar()[:10] + b"\xff" * 50, "Error -3 while decompressing"),
    "tar file that ends early": ("p.tar.gz", lambda: gzip.compress(plain()[:3000]), f"{UNREADABLE}unexpected end"),
    "damaged tar header": (
        "p.tar.gz",
        lambda: gzip.compress(changed(plain(("p-1/x", {})), b"p-1/x", b"p-2/x")),
        "its tar file is damaged at byte 4096",
    ),
    "encrypted zip file": ("p.zip", lambda: encrypted(zipped()), "'p-1/setup.py' is encrypted"),
    "unknown compression": (
        "p.zip",
        lambda: changed(zipped(), b"\x14\0\0\0\x08\0", b"\x14\0\0\0\x63\0"),
        f"{UNREADABLE}That compression method is not supported",
    ),
    "damaged content in a wheel": (
        "p-1-py3-none-any.whl",
        lambda: changed(zipped(zipfile.ZipInfo("p-1/x"), content=b"content"), b"content", b"concent"),
        f"{UNREADABLE}Bad CRC-32 for file 'p-1/x'",
    ),
    "other name in the zip's own list": (
        "p.zip",
        lambda: zipped(zipfile.ZipInfo("p-1/x")).replace(b"p-1/x", b"p-1/y", 1),
        f"{UNREADABLE}File name in directory 'p-1/x' and header",
    ),
    "dictionary of 4 GiB in a zip": ("p.zip", with_dictionary_of_4_gib, EXCEEDED),
    "nothing wrong": (
        "p.tar.gz",
        lambda: tar(
            link("p-1/l", "setup.py"),
            link("p-1/d/l", "../setup.py"),
            ("p-1/d", {"mode": 0o2755, "type": tarfile.DIRTYPE}),
        ),
        "",
    ),
}  # fmt: skip


async def test_hostile_and_unreadable_archives_are_refused_in_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "CPU_S", 1)
    before, wrong = psutil.Process().memory_info().rss, []
    for case, (name, content, expected) in HOSTILE.items():
        package = tmp_path / name
        package.write_bytes(content())
        (refused,) = await asyncio.gather(inspect(package, tmp_path / "nowhere"), return_exceptions=True)
        staging = refused.staging if isinstance(refused, StagingFailed) else Staging("ready")
        reason = Reason.PACKAGES_FAILED if expected else Staging("ready").reason
        if case == QUADRATIC and INVALID in staging.message:
            expected = INVALID
        if expected not in staging.message or (staging.reason, bool(staging.message)) != (reason, bool(expected)):
            wrong.append((case, staging.message))
    assert wrong == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({name for name, *_ in HOSTILE.values()})
    assert psutil.Process().memory_info().rss - before < 200 * 2**20


def test_archive_with_too_many_entries_is_refused() -> None:
    entries = archive_check.Entries()
    for n in range(100_000):
        entries.add(archive_check.Entry(f"p-1/{n}", 0, 0))
    with pytest.raises(archive_check.ArchiveRefused, match="more than 100000 entries"):
        entries.add(archive_check.Entry("p-1/one-more", 0, 0))
