"""A base image out of Debian's own packages: no image can be pulled in a test."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from beds.installed.caches import cache_directory

PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-setuptools", "python3-venv", "python3-wheel")

_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_EXCLUDED = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./var/cache/apt", "./var/lib/apt/lists")


@contextmanager
def base_tar() -> Iterator[BinaryIO]:
    """The root directory of a minimal Debian of this machine's release, as a tar; made once, then cached.

    Takes root and debootstrap the first time. Trusts the certificates that this machine trusts.
    """
    trusted = Path(os.environ.get("SSL_CERT_FILE") or f"/{_CERTIFICATES}")
    release = _release()
    made_of = f"{release} {os.uname().machine} {PACKAGES}".encode() + trusted.read_bytes()
    cache = cache_directory()
    path = cache / f"debian-{release}-{hashlib.sha256(made_of).hexdigest()[:16]}.tar"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="debian-", dir=cache) as scratch:
            fresh = Path(scratch) / "base.tar"
            _make(release, Path(scratch) / "root", trusted, fresh)
            fresh.replace(path)
    with path.open("rb") as tar:
        yield tar


def _make(release: str, root: Path, trusted: Path, tar: Path) -> None:
    packages = ",".join(PACKAGES)
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", release, str(root), mirror()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"debootstrap failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    shutil.copyfile(trusted, root / _CERTIFICATES)
    exclude = [f"--exclude={path}" for path in _EXCLUDED]
    subprocess.run(["tar", "-C", str(root), *exclude, "-cf", str(tar), "."], check=True)


def _release() -> str:
    """`bookworm`"""
    text = Path("/etc/os-release").read_text()
    match = re.search(r"^VERSION_CODENAME=(\w+)$", text, re.MULTILINE)
    assert match, "this machine's release has no code name in /etc/os-release"
    return match[1]


def mirror() -> str:
    """The first mirror in this machine's own apt sources, in either of their forms."""
    sources = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(path.read_text() for path in sources if path.is_file())
    match = re.search(r"^(?:URIs:|deb(?: \[[^\]]*\])?)\s+(https?://\S+)", text, re.MULTILINE)
    assert match, "no mirror in /etc/apt/sources.list*"
    return match[1]
