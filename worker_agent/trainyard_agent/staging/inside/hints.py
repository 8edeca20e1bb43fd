"""Sentences about failures whose cause is the difference between this machine and the program's own.

They are printed behind the traceback of a program, and become part of the job's error message. The file is copied into
the environment of a run: Python 3.8 or later.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any, Iterator, NamedTuple  # noqa: UP035 - older Pythons need it

_RUNTIMES = {"tensorflow": "2.15", "torch": "torch"}
_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "hydra": "hydra-core",
    "hypertune": "cloudml-hypertune",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "attr": "attrs",
    "umap": "umap-learn",
    "Crypto": "pycryptodome",
    "psycopg2": "psycopg2-binary",
    "google": "google-cloud-storage",
    "google.protobuf": "protobuf",
    "mpl_toolkits": "matplotlib",
    "pkg_resources": "setuptools<81",
    "distutils": "setuptools",
    "ruamel": "ruamel.yaml",
    "fitz": "pymupdf",
}
_WHY = {
    "pkg_resources": "setuptools 81 removed pkg_resources",
    "distutils": "Python 3.12 removed distutils, which setuptools has",
}
_DECLARED = "requirements.txt or pyproject.toml"
_CONDA = ("environment.yml", "environment.yaml")
_STORAGE = "google-cloud-storage, whose client finds the gs:// of this service"
_GCS = (
    f"/gcs is Cloud Storage FUSE of Vertex AI, which is not here: read and write gs:// with {_STORAGE}, or name a "
    "directory of the machine with --mount."
)
_RANKS = re.compile(
    r"(?:LOCAL_)?(?:RANK|WORLD_SIZE)|(?:NODE|GROUP)_RANK|GROUP_WORLD_SIZE|MASTER_(?:ADDR|PORT)"
    r"|PET_(?:NNODES|NODE_RANK|MASTER_ADDR|MASTER_PORT)|JAX_(?:COORDINATOR_ADDRESS|NUM_PROCESSES|PROCESS_ID)"
    r"|KERAS_DISTRIBUTION_(?:JOB_ADDRESSES|NUM_PROCESSES|PROCESS_ID)"
)
_EXPECTED = re.compile(r"environment variable (\w+) expected, but not set")  # torch.distributed
_JAX = re.compile(r"(?:Number of processes|process id of the current process|coordinator_address) (?:must|should) be ")
_MOST_ENTRIES, _MOST_CHAINED = 5000, 5


class _LeftOut(NamedTuple):
    """A path of the program's directory that was not sent, and why."""

    path: str
    reason: str


def explain(error: BaseException | None) -> str:
    """The sentence about an exception, or about one that it was raised from; "" if there is nothing to say."""
    for _ in range(_MOST_CHAINED):
        if error is None:
            break
        if text := _explained(error):
            return text
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return ""


def of_directory(error: BaseException | None, program: str | None, gcs: str = "/gcs") -> str:
    """The sentence about a program that has made itself a /gcs, as root can: nobody would find what it wrote there.
    `program` is its file; those of the error's traceback count too."""
    if not os.path.isdir(gcs) or os.path.ismount(gcs):  # noqa: PTH112
        return ""
    sources = [program or ""]
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        sources.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    writer = next((source for source in sources if _has(source, f"{gcs}/")), "")
    return f"{_GCS} What {writer} wrote below {gcs} is on the disk of this machine." if writer else ""


def _has(source: str, text: str) -> bool:
    try:
        return text.encode() in Path(source).read_bytes()
    except OSError:
        return False


def _explained(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return _of_module(error.name or "")
    if isinstance(error, OSError):
        return _of_path(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    if isinstance(error, KeyError):
        return _of_rank(error.args[0]) if error.args and isinstance(error.args[0], str) else ""
    if isinstance(error, ValueError):
        if (match := _EXPECTED.search(str(error))) is not None:
            return _of_rank(match[1])
        return _of_jax() if _JAX.search(str(error)) else ""
    if type(error).__name__ == "CalledProcessError":
        return _of_command(getattr(error, "cmd", ""))
    return ""


def _of_module(name: str) -> str:
    """Which module is missing, and what would bring it."""
    if not name:
        return ""
    manifest = _manifest()
    relative = name.replace(".", "/")
    for entry in _left_out(manifest):
        if f"/{re.sub('[.]py$', '', entry.path)}".endswith((f"/{relative}", f"/{name.partition('.')[0]}")):
            return (
                f"{name} lies at {entry.path}, which was not sent: {_sent(entry)}. If a package of that name is meant: "
                f"declare it in {_DECLARED}."
            )
    if (found := _in_tree(relative)) is not None:
        parent = found.parent.as_posix()
        return f"{name} lies at {found.as_posix()}, which Python does not look into: --env PYTHONPATH={parent} adds it."
    parts = name.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    imported = next((prefix for prefix in prefixes if prefix in _PACKAGES), "")
    package = _PACKAGES.get(imported, parts[0])
    why = _WHY.get(imported, f"no package here has the module {name}")
    text = f"{why}: declare {package} in {_DECLARED}"
    if parts[0] in _RUNTIMES:
        text += f", or submit with --runtime-version {_RUNTIMES[parts[0]]}"
    return f"{text}.{_about_conda(manifest)}"


def _about_conda(manifest: dict[str, Any]) -> str:
    """A sentence about the environment of conda beside the program, which nothing here installs whole."""
    name = next((name for directory in _tree() for name in _CONDA if (directory / name).is_file()), "")
    if not name:
        return ""
    steps = manifest.get("install", {}).get("steps", ())
    if any(step.get("what") == "conda" for step in steps):
        return f" Of {name} only the pip part was installed."
    return f" {name} was not installed."


def _of_path(filename: str | bytes) -> str:
    """A path that there is on the program's own machine, or on Google's."""
    name = os.fsdecode(filename)
    if re.match(r"/gcs(/|$)", name):
        return _GCS
    if name in ("gsutil", "gcloud"):
        return _of_command(name)
    path = PurePosixPath(name)
    for directory in _tree() if path.is_absolute() else ():
        if directory.as_posix() in (parent.as_posix() for parent in path.parents):
            path = path.relative_to(directory.as_posix())
            break
    for entry in _left_out(_manifest()):
        if PurePosixPath(entry.path) in (path, *path.parents):
            return f"{entry.path} was not sent: {_sent(entry)}, --mount reads what the machine of the job has."
    return ""


def _of_command(command: object) -> str:
    """A program of Google's SDK that is not there, or has failed."""
    first = (
        command if isinstance(command, str) else next(iter(command), "") if isinstance(command, (list, tuple)) else ""
    )
    program = PurePosixPath((str(first).split() or [""])[0]).name
    if program not in ("gsutil", "gcloud") or _finds_storage():
        return ""
    return f"{program} is for Google's own service, which this is not: use {_STORAGE}."


def _finds_storage() -> bool:
    """Whether gcloud, and gsutil by it, use the service's gs://: the launcher has told it the address."""
    return "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE" in os.environ and shutil.which("gcloud") is not None


def _of_rank(name: str) -> str:
    """A variable of launchers that is not there."""
    if not _RANKS.fullmatch(name) or name in os.environ:
        return ""
    if "RANK" in os.environ:  # a gang
        return (
            f"a replica with several accelerators has no {name}, so that launchers start a process for each: "
            "torchrun --nproc-per-node=gpu does."
        )
    if _task_type() in ("ps", "evaluator"):
        return f"parameter servers and evaluators have no {name}: the master and the workers have."
    return (
        f"a job of one replica has no {name}, as under `python`: --worker-count N makes it a gang, torchrun starts "
        f"several processes in it, and --env {name}=VALUE sets it."
    )


def _of_jax() -> str:
    if "JAX_NUM_PROCESSES" not in os.environ:
        return (
            "a job of one replica has no JAX_NUM_PROCESSES and needs no jax.distributed: --worker-count N makes a gang."
        )
    return (
        "JAX reads the number and the id of processes from no variable: jax.distributed.initialize("
        'num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])).'
    )


def _task_type() -> str:
    try:
        return str(json.loads(os.environ["TF_CONFIG"])["task"]["type"])
    except (KeyError, TypeError, ValueError):
        return ""


def _manifest() -> dict[str, Any]:
    """The manifest of the program that the command line has packed; {} of any other."""
    try:
        found = json.loads(Path(__file__).with_name("trainyard_program").joinpath("program.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _left_out(manifest: dict[str, Any]) -> Iterator[_LeftOut]:
    for entry in manifest.get("left_out", ()):
        yield _LeftOut(str(entry["name"]).rstrip("/"), str(entry["reason"]))


def _sent(entry: _LeftOut) -> str:
    return f"{entry.reason}; --include {entry.path} sends it"


def _tree() -> Iterator[Path]:
    """The current directory, and those above it as far as the program's files reach: its directory is `program`."""
    try:
        here = Path.cwd()
    except OSError:
        return
    yield here
    if "program" in here.parts:
        for parent in here.parents:
            if "program" not in parent.parts:
                break
            yield parent


def _in_tree(module: str) -> Path | None:
    """The package or file of a module among the program's files."""
    seen = 0
    root = next(reversed(list(_tree())), None)
    if root is None:
        return None
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith((".", "__")))
        seen += len(names) + len(files)
        if seen > _MOST_ENTRIES:
            return None
        for path in (Path(directory, module), Path(directory, f"{module}.py")):
            if path.is_file() or (path.is_dir() and next(path.glob("*.py"), None)):
                found = path.relative_to(root)
                return None if found.parent == Path() else found
    return None
