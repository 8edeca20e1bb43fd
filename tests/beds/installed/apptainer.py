"""A real Apptainer for the tests, out of packages of a newer Debian, and an image for it.

Nothing is installed: the packages are unpacked once, into the cache, and laid over this machine's /usr in the mount
namespace of each call, so that it finds its own C library. It takes root.
"""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from beds.installed.caches import made_once
from beds.installed.missing import needing
from beds.kubernetes.build import Apt, NoKubernetes
from beds.registry import Registry

_RELEASE = "sid"
_PACKAGES = (
    *("apptainer", "squashfs-tools", "libc6", "libseccomp2", "libsqlite3-0"),
    *("liblzo2-2", "liblz4-1", "libxxhash0", "liblzma5", "libzstd1", "zlib1g"),
)
_SESSIONS = "var/lib/apptainer/mnt/session"
_SCRIPT = """\
#!/bin/sh
exec unshare --mount -- sh -c '
mount -t overlay overlay -o lowerdir={root}/usr:/usr /usr &&
mount -t overlay overlay -o lowerdir={root}/etc:/etc /etc &&
mount -t overlay overlay -o lowerdir={root}/var/lib:/var/lib /var/lib &&
APPTAINER_NOHTTPS=1 exec /usr/bin/apptainer "$@"' apptainer "$@"
"""


class NoApptainer(Exception):
    """The message says what is missing."""


def program(directory: Path) -> Path:
    """The program, in a new directory. Raises NoApptainer."""
    if os.geteuid() != 0:
        raise NoApptainer("an Apptainer of the tests' own takes root")
    path = directory / "apptainer"
    directory.mkdir()
    path.write_text(_SCRIPT.format(root=_root()))
    path.chmod(0o755)
    done = subprocess.run([path, "version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoApptainer(f"Apptainer does not run on this machine: {done.stderr.strip()}")
    return path


def _root() -> Path:
    """The root of the unpacked packages, made once. Raises NoApptainer."""
    key = hashlib.sha256(repr((_RELEASE, _PACKAGES, os.uname().machine)).encode()).hexdigest()[:16]

    def make(scratch: Path) -> Path:
        root = scratch / "root"
        Apt(scratch / "apt", _RELEASE).packages(list(_PACKAGES), root)
        for above in (root, root / "usr/lib"):  # the path that it is built with goes through a link
            (above / _SESSIONS).mkdir(parents=True, exist_ok=True)
        settings = root / "etc/apptainer/apptainer.conf"
        # Root of this machine may not have every capability.
        text = re.sub(r"(?m)^root default capabilities = .*", "root default capabilities = no", settings.read_text())
        settings.write_text(text)
        return root

    try:
        return made_once("apptainer", key, make)
    except (OSError, NoKubernetes) as error:
        raise NoApptainer(f"Apptainer's packages cannot be fetched on this machine: {error}") from error


def needed_program(directory: Path) -> str:
    """The program. The release of its packages changes, and they may not fit together: its tests are `long`."""
    with needing(NoApptainer):
        return str(program(directory))


def put_tiny(registry: Registry) -> str:
    """Put an image into a registry whose entrypoint is a shell in /srv/app, where the file `only-here` is; its name."""
    programs = ("/bin/sh", "/bin/cat", "/bin/sleep", "/usr/bin/env", "/bin/ls")
    config = {
        "Env": ["PATH=/usr/bin:/bin", "GREETING=hello", "OWN=image"],
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["echo the default; cat only-here"],
        "WorkingDir": "/srv/app",
    }
    described, layer = image(programs, {"srv/app/only-here": b"of the image\n"}, config)
    return registry.put(described, [layer], "tiny:1")


def image(programs: Sequence[str], files: Mapping[str, bytes], config: Mapping[str, object]) -> tuple[bytes, bytes]:
    """The configuration and the layer of an image with these programs of this machine, their libraries, and files."""
    paths = set(programs)
    for path in programs:
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        paths |= set(re.findall(r"(/\S+) \(0x", listed))
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", dereference=True) as tar:
        for path in sorted(paths):
            tar.add(path, arcname=path.lstrip("/"))
        for name, content in files.items():
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    described = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    return json.dumps(described).encode(), layer.getvalue()
