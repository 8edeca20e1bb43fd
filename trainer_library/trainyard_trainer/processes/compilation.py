"""JAX's compilation cache, which is on: a start of the same command compiles nothing again.

It is job-dir/compiled or, where job-dir is in a bucket, ~/.cache/trainer/compiled of this machine. An entry is code
that this process runs, so a directory that another user owns or may write to is not used. Within it each process has a
folder of its own, by the kind of CPU, since compiled code runs on no other kind. JAX_COMPILATION_CACHE_DIR names
another directory, which is then used as JAX does by itself.
"""

import hashlib
import logging
import os
import platform
import stat
import time
from pathlib import Path
from typing import Any

from trainyard_trainer.processes.cluster import ClusterSpec

log = logging.getLogger("trainer")

FOLDER = "compiled"
KEEP_DAYS = 30  # of an entry below ~/.cache, since it was written


def use_cache(job_dir: str, cluster: ClusterSpec) -> None:
    """Let JAX keep what it compiles, and find it at the next start. Call it before anything is compiled."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    import jax

    in_bucket = job_dir.startswith("gs://")
    try:
        root = _of_user() if in_bucket else Path(job_dir).absolute() / FOLDER
        folder = root / _kind_of_cpu() / f"{cluster.role}-{cluster.index}"
        _claim(root)
        folder.mkdir(parents=True, exist_ok=True)
        if in_bucket:
            _remove_old(root)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        log.info("Each start compiles anew, as there is no compilation cache: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if cluster.process_id > 0:
        _let_worker_write()


def _of_user() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainer" / FOLDER


def _kind_of_cpu() -> str:
    kind = platform.machine()
    cpus = Path("/proc/cpuinfo")  # of Linux
    if cpus.exists():
        kind += "".join(
            sorted({line for line in cpus.read_text().splitlines() if line.startswith(("flags", "Features"))})
        )
    return hashlib.sha256(kind.encode()).hexdigest()[:16]


def _claim(root: Path) -> None:
    """Create the directory. PermissionError if another user could write to it."""
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"{root} must be a directory of this user (uid {os.geteuid()}) that no other may write to."
        )


def _remove_old(root: Path) -> None:
    oldest = time.time() - KEEP_DAYS * 24 * 3600
    for entry in root.glob("*/*/*-cache"):
        if entry.stat().st_mtime < oldest:
            entry.unlink(missing_ok=True)


def _let_worker_write() -> None:
    """Let this process write its entries.

    JAX lets process 0 alone write, since all may share one directory. Here each has its own, and needs its own entries:
    on CPU a program has another key in each process. There is no public way to say so.
    """
    from jax._src import compiler, distributed

    write = getattr(compiler, "_cache_write", None)
    if write is None:
        log.info("This version of JAX lets only process 0 write to the compilation cache: this process compiles anew.")
        return

    def write_as_first(*arguments: Any, **keywords: Any) -> None:
        process = distributed.global_state
        number, process.process_id = process.process_id, 0
        try:
            write(*arguments, **keywords)
        finally:
            process.process_id = number

    compiler._cache_write = write_as_first
