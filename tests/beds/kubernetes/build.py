"""Kubernetes' programs for the bed: out of Debian's packages, made once, then cached.

Debian ships kubectl as a package and the rest as source, whole for the last time in bookworm. That source is built with
Debian's own Go; etcd, containerd, runc, the network plugins and the pause program are taken out of their packages.
Nothing is installed: packages are unpacked beside each other, so that the system stays as it is and the versions are
the same on every machine. Debian's three patches change kubectl alone and are left out.

`make test` runs this file first: the first time it needs 5 to 20 minutes, 190 MB of downloads and 2.5 GB of disk; it
leaves 350 MB. apt gets lists of its own from the mirror that this machine uses, and checks all it fetches with
Debian's keys.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from beds import debian
from beds.installed.caches import made_once

VERSION, RELEASE = "1.20.2", "bookworm"
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
UNPACKED = {
    "catatonit": ("usr/bin/catatonit",),  # static: the pause program, and process 1 of a node
    "containerd": ("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"),
    "containernetworking-plugins": ("usr/lib/cni/bridge", "usr/lib/cni/host-local", "usr/lib/cni/loopback"),
    "etcd-server": ("usr/bin/etcd",),
    "kubernetes-client": ("usr/bin/kubectl",),  # for hands
    "runc": ("usr/sbin/runc",),
}
_GO = "golang-1.19"
_REFLECT = "golang-github-modern-go-reflect2-dev"  # that of the source does not run with this Go
_TOOLCHAIN = (f"{_GO}-go", f"{_GO}-src", _REFLECT)
# Without the code for clouds and for Docker's engine, which is half of it.
_TAGS = "providerless,dockerless"
_VENDORED = "k8s.io/kubernetes/vendor/k8s.io"
_SET = {
    f"{_VENDORED}/component-base/version.gitVersion": f"v{VERSION}",
    f"{_VENDORED}/component-base/version.gitMajor": VERSION.split(".")[0],
    f"{_VENDORED}/component-base/version.gitMinor": VERSION.split(".")[1],
    f"{_VENDORED}/client-go/pkg/version.gitVersion": f"v{VERSION}",
}
_SCHEMAS = "k8s.io/kubernetes/pkg/generated/openapi"
_REVISION = 1  # raise it when the steps below change what comes out
_RECIPE = (VERSION, RELEASE, SERVERS, UNPACKED, _TOOLCHAIN, _TAGS, _SET, _SCHEMAS, _REVISION)

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TOOLS = ("apt-get", "dpkg", "nice", "setpriv", "tar")
_GENTLY = ("setpriv", "--pdeathsig", "KILL", "nice")  # beside others, and not longer than whoever wants it
_TIMEOUT_S = 3600


class NoKubernetes(Exception):
    """The message says what is missing."""


class Programs:
    """Paths of the programs in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __getitem__(self, name: str) -> str:
        return str(self.directory / "bin" / name)


def programs() -> Programs:
    """All programs, made if they are not there yet. Raises NoKubernetes."""
    key = hashlib.sha256(json.dumps([_RECIPE, os.uname().machine]).encode()).hexdigest()[:16]

    def make(scratch: Path) -> Path:
        print(f"Building Kubernetes {VERSION} for the tests, once: 5 to 20 minutes", flush=True)
        _make(scratch, scratch / "made")
        return scratch / "made"

    try:
        directory = made_once("kubernetes", f"{VERSION}-{key}", make)
    except (OSError, AssertionError) as error:
        raise NoKubernetes(f"Kubernetes cannot be built on this machine: {error}") from error
    return _complete(directory)


def _complete(directory: Path) -> Programs:
    needed = [*SERVERS, *(Path(p).name for names in UNPACKED.values() for p in names if "/cni/" not in p)]
    missing = [name for name in needed if not (directory / "bin" / name).exists()]
    if missing:
        raise NoKubernetes(f"{directory} has no {', '.join(missing)} in bin/; remove it, so that it is made")
    return Programs(directory)


def _make(scratch: Path, made: Path) -> None:
    absent = [tool for tool in _TOOLS if not shutil.which(tool)]
    if absent or not _KEYRING.exists():
        needs = ", ".join([*absent, *([] if _KEYRING.exists() else [str(_KEYRING)])])
        raise NoKubernetes(f"Kubernetes is built of Debian's packages, which needs {needs}")
    for folder in (made / "bin", made / "cni"):
        folder.mkdir(parents=True)
    apt = Apt(scratch / "apt")
    versions = apt.packages([*UNPACKED, *_TOOLCHAIN], scratch / "root")
    for names in UNPACKED.values():
        for name in names:
            shutil.copy(scratch / "root" / name, made / ("cni" if "/cni/" in name else "bin"))
    source = scratch / "go" / "src" / "k8s.io" / "kubernetes"
    versions["kubernetes (source)"] = apt.source("kubernetes", source)
    _compile(scratch, source, made / "bin")
    lines = [f"{name} {version}\n" for name, version in sorted(versions.items())]
    (made / "versions.txt").write_text("".join(lines))


class Apt:
    """apt with lists of its own: of one release, with its sources."""

    def __init__(self, root: Path, release: str = RELEASE) -> None:
        for folder in ("lists/partial", "cache/archives/partial", "files"):
            (root / folder).mkdir(parents=True)
        where = f"[signed-by={_KEYRING}] {debian.mirror()} {release} main\n"
        (root / "sources.list").write_text(f"deb {where}deb-src {where}")
        settings = {
            "Dir::Etc::SourceList": root / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": root / "lists",
            "Dir::Cache": root / "cache",
            "APT::Update::Error-Mode": "any",
            "APT::Sandbox::User": "root",  # another user may not enter the cache directory
        }
        self._command = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
        self._files = root / "files"
        _run([*self._command, "update"])

    def packages(self, names: list[str], root: Path) -> dict[str, str]:
        """Unpack them into `root`; their versions."""
        _run([*self._command, "download", *names], cwd=self._files)
        versions = {}
        for package in sorted(self._files.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(root)])
            name, version, _ = package.name.split("_")
            versions[name] = version.replace("%3a", ":")
        return versions

    def source(self, name: str, into: Path) -> str:
        """The source as its authors released it; the version of Debian's package."""
        _run([*self._command, "source", "--download-only", name], cwd=self._files)
        (description,) = self._files.glob(f"{name}_*.dsc")
        (archive,) = self._files.glob(f"{name}_*.orig.tar.*")
        version = description.name.removeprefix(f"{name}_").removesuffix(".dsc")
        assert VERSION in version, f"{RELEASE} has {name} {version}, and this is the recipe of {VERSION}"
        into.mkdir(parents=True)
        _run(["tar", "-C", str(into), "--strip-components=1", "-xf", str(archive)])
        return version


def _compile(scratch: Path, source: Path, into: Path) -> None:
    """`go build`, without the project's own make, which wants git and rsync. Only the API's schemas are not in the
    source: its own generator writes them first."""
    root = scratch / "root" / "usr"
    vendored = source / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(vendored)
    shutil.copytree(root / "share/gocode/src/github.com/modern-go/reflect2", vendored)
    environment = {
        "PATH": f"{root}/lib/go-1.19/bin:{os.environ['PATH']}",
        "HOME": str(scratch),
        "GOROOT": f"{root}/lib/go-1.19",
        "GOPATH": str(scratch / "go"),
        "GOCACHE": str(scratch / "go-cache"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
    }
    generator = scratch / "openapi-gen"
    _go(source, environment, "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    output = scratch / "generated"
    command = [
        *(str(generator), "--logtostderr", "--input-dirs", ",".join(_with_schemas(source))),
        *("--output-package", _SCHEMAS, "--output-file-base", "zz_generated.openapi"),
        *("--output-base", str(output), "--report-filename", str(scratch / "violations")),
        *("--go-header-file", "hack/boilerplate/boilerplate.generatego.txt"),
    ]
    _run([*_GENTLY, *command], cwd=source, environment=environment)
    shutil.copy(output / _SCHEMAS / "zz_generated.openapi.go", source / "pkg/generated/openapi")
    flags = "-s -w " + " ".join(f"-X {name}={value}" for name, value in _SET.items())
    servers = [f"./cmd/{name}" for name in SERVERS]
    _go(source, environment, "-tags", _TAGS, "-ldflags", flags, "-o", f"{into}/", *servers)


def _with_schemas(source: Path) -> list[str]:
    """Go packages whose types have schemas."""
    mark = re.compile(rb"\+k8s:openapi-gen=")
    found = set()
    for top in ("pkg", "staging/src", "cmd", "vendor/k8s.io/kube-openapi"):
        for file in (source / top).rglob("*.go"):
            if not file.name.endswith("_test.go") and mark.search(file.read_bytes()):
                found.add(file.parent.relative_to(source).as_posix())
    return sorted(
        re.sub(r"^(pkg|cmd)/", r"k8s.io/kubernetes/\1/", re.sub(r"^(staging/src|vendor)/", "", name)) for name in found
    )


def _go(source: Path, environment: Mapping[str, str], *arguments: str) -> None:
    _run([*_GENTLY, "go", "build", *arguments], cwd=source, environment=environment)


def _run(command: list[str], cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoKubernetes(f"`{' '.join(command)[:100]}` did not end within {_TIMEOUT_S} s.") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-1000:]
        raise NoKubernetes(f"`{' '.join(command)[-100:]}` fails on this machine:\n{words}")


def main() -> None:
    if os.geteuid() != 0:
        print("This is not root, who alone can start a cluster of the tests' own: Kubernetes is not built.")
        return
    try:
        print(f"Kubernetes for the tests: {programs().directory}")
    except NoKubernetes as error:  # the tests that need them fail in CI, and are skipped elsewhere
        print(error)


if __name__ == "__main__":
    main()
