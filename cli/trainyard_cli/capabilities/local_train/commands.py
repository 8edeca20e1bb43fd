"""`trainyard local train`: a trainer on this machine without the service, as `gcloud ai-platform local train` ran it.

Alone it runs `python -m MODULE ARGS --job-dir DIR` in the package's parent directory. Distributed it runs a chief,
workers, parameter servers and evaluators with a TF_CONFIG on ports of this machine that follow each other; the chief's
exit code is the command's, and the others are ended with it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags
from trainyard_cli.commands.shared.options import WithUserArgs
from trainyard_cli.output.text.safe import echo
from trainyard_protocol.errors import InvalidArgument, Violation

PRIMARY = "chief"
LAST_PORT = 65_535

_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class LocalGang:
    """The replicas beside the chief, and the first port."""

    workers: int = 2
    parameter_servers: int = 2
    evaluators: int = 0
    start_port: int = 27182

    def cluster(self) -> Mapping[str, Sequence[str]]:
        """The addresses by task type, as TF_CONFIG has them: without evaluators. Raises InvalidArgument."""
        count = 1 + self.parameter_servers + self.workers
        if self.start_port + count - 1 > LAST_PORT:
            raise InvalidArgument(
                Violation(
                    "start_port", f"{count} replicas need ports from {self.start_port} up; the last is {LAST_PORT}."
                )
            )
        ports = iter(range(self.start_port, self.start_port + count))
        counts = {PRIMARY: 1, "ps": self.parameter_servers, "worker": self.workers}
        return {kind: [f"localhost:{next(ports)}" for _ in range(number)] for kind, number in counts.items() if number}

    def tasks(self) -> Iterator[tuple[str, int]]:
        """The tasks in the order of their start: the chief last."""
        counts = (("ps", self.parameter_servers), ("worker", self.workers), ("evaluator", self.evaluators))
        for kind, number in (*counts, (PRIMARY, 1)):
            for index in range(number):
                yield kind, index


@click.command(cls=WithUserArgs)
@click.option("--module-name", required=True, metavar="MODULE", help="The module to run, such as trainer.task.")
@click.option(
    "--package-path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The package of the module.  [default: what Python finds from this directory]",
)
@click.option("--job-dir", default="", help="Passed to the program as --job-dir.")
@click.option("--distributed", is_flag=True, help="Run several replicas, with a TF_CONFIG for each.")
@click.option("--worker-count", type=click.IntRange(0, 100), default=2, help="[default: 2]")
@click.option("--parameter-server-count", type=click.IntRange(0, 100), default=2, help="[default: 2]")
@click.option("--evaluator-count", type=click.IntRange(0, 100), default=0, help="[default: 0]")
@click.option("--start-port", type=click.IntRange(1, 65_535), default=27182, help="The chief's port.  [default: 27182]")
@gcloud_wide_flags
def train_locally(
    module_name: str, package_path: Path | None, job_dir: str, distributed: bool, **parameters: Any
) -> int:
    """Run a training program, alone or as a chief with workers and other replicas.

    Exits with the exit code of the program, or of the chief.
    """
    gang = LocalGang(
        workers=parameters["worker_count"],
        parameter_servers=parameters["parameter_server_count"],
        evaluators=parameters["evaluator_count"],
        start_port=parameters["start_port"],
    )
    return _train(module_name, package_path, job_dir, parameters["user_args"], gang if distributed else None)


def _train(module: str, package: Path | None, job_dir: str, user_args: Sequence[str], gang: LocalGang | None) -> int:
    """Run the module until it ends, and return its exit code, 128 + n for signal n. Raises InvalidArgument."""
    directory = _parent_of(module, package)
    arguments = [*user_args, *(("--job-dir", job_dir) if job_dir else ())]
    if gang is None:
        config = _tf_config(module, arguments, {}, {})
        with _running(module, directory, arguments, config, "") as process:
            return _exit_code(process)
    cluster, started = gang.cluster(), list["subprocess.Popen[str]"]()
    with ExitStack() as replicas:
        for kind, index in gang.tasks():
            config = _tf_config(module, arguments, cluster, {"type": kind, "index": index})
            running = _running(module, directory, arguments, config, f"{kind}-{index}")
            process = replicas.enter_context(running)
            started.append(process)
        code = _exit_code(process)
        for child in started:
            if child.poll() is None:
                child.terminate()  # all at once: each may take its time to finish
        return code


def _parent_of(module: str, package: Path | None) -> Path:
    """The directory from which the module can be imported. Raises InvalidArgument."""
    name = module.partition(".")[0]
    if package is None:
        return Path.cwd()
    if not (package / "__init__.py").is_file():
        raise InvalidArgument(f"--package-path {package} is not a Python package: it has no __init__.py.")
    if package.resolve().name != name:
        raise InvalidArgument(
            f"--module-name {module} is not in the package {package}; it would be {package.resolve().name}.MODULE."
        )
    return package.resolve().parent


def _tf_config(
    module: str, arguments: Sequence[str], cluster: Mapping[str, Sequence[str]], task: Mapping[str, object]
) -> str:
    job = {"job_name": module, "args": list(arguments)}
    return json.dumps({"job": job, "task": task, "cluster": cluster, "environment": "cloud"})


@contextmanager
def _running(
    module: str, directory: Path, arguments: Sequence[str], tf_config: str, label: str
) -> Iterator["subprocess.Popen[str]"]:
    """The process of a replica, ended with the block. `label`: in front of each of its lines; "": none."""
    path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH", ""))))
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=directory,
        env={**os.environ, "TF_CONFIG": tf_config, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE if label else None,
        stderr=subprocess.STDOUT if label else None,
        text=True,
        errors="replace",
    )
    reader = threading.Thread(target=_print_lines, args=(process.stdout, label)) if process.stdout else None
    if reader is not None:
        reader.start()
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if reader is not None:
            reader.join(_GRACE_S)


def _print_lines(lines: IO[str], label: str) -> None:
    with lines:
        for line in lines:
            echo(f"{label}: {line.rstrip()}")


def _exit_code(process: "subprocess.Popen[str]") -> int:
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        code = process.wait()
    return code if code >= 0 else 128 - code
