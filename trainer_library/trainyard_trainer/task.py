"""The training program: `python -m trainyard_trainer.task --epochs 5 --job-dir DIR`.

It writes one JSON object per line to stdout (see output/report.py) and log messages to stderr. Exit codes: 0 trained,
or stopped by SIGTERM and saved; 1 failed; 2 invalid flags, TF_CONFIG or data; 130 interrupted. SIGUSR1 dumps the stacks
of all threads to stderr, as the first line on stdout announces.
"""

import faulthandler
import json
import logging
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from trainyard_trainer.arguments import Arguments, parse_arguments
from trainyard_trainer.errors import TrainerError, exit_now
from trainyard_trainer.processes import cluster as clusters

if TYPE_CHECKING:
    from trainyard_trainer.models.task import TrainingTask

log = logging.getLogger("trainer")


def main(argv: Sequence[str] | None = None, task: "TrainingTask | None" = None) -> NoReturn:
    """Train by the flags and end the process. `task`: in place of --task or --model."""
    arguments = parse_arguments(argv)
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        print(json.dumps({"event": "start", "stacks": signal.SIGUSR1.name}), flush=True)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    log.setLevel(logging.INFO)
    try:
        run(arguments, task)
    except TrainerError as error:
        log.error("%s", error)  # noqa: TRY400 - the message is sufficient
        exit_now(error.exit_code)
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            log.error("%s", exit_.code)  # noqa: TRY400 - as Python prints the message of sys.exit
        exit_now(exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None))
    except KeyboardInterrupt:
        log.info("Interrupted.")
        exit_now(130)
    except Exception as error:
        if _is_of_a_peer(error):
            log.error("Another process of this job ended: its log has the reason. (%s)", _first_line(error))  # noqa: TRY400
        else:
            log.exception("Training failed.")
        exit_now(1)
    exit_now(0)


def run(arguments: Arguments, task: "TrainingTask | None") -> None:
    """Run the role of this process in its job. `task`: in place of --task or --model."""
    cluster = clusters.cluster_from_environment()
    clusters.divide_cpus(cluster)
    # Imported late: JAX sizes its thread pools by the CPUs, and an invalid flag should fail without a slow import.
    from trainyard_trainer.processes import compilation, distribute
    from trainyard_trainer.training.evaluator import evaluate_checkpoints
    from trainyard_trainer.training.experiment import batches_of, task_of
    from trainyard_trainer.training.strategy import choose_strategy, make_strategy
    from trainyard_trainer.training.train import train

    name = choose_strategy(arguments.strategy, cluster)
    compilation.use_cache(arguments.job_dir, cluster)
    if cluster.role == "evaluator":
        evaluate_checkpoints(arguments, make_strategy("auto"), task_of(arguments, task))
    else:
        distribute.initialize(cluster)
        task = task_of(arguments, task)
        devices = make_strategy(name, arguments.parallel, mesh=arguments.mesh, rules=task.sharding)
        arguments = batches_of(arguments, devices.replicas_in_sync)
        devices.accumulate = arguments.accumulate
        train(arguments, cluster, devices, task)
        distribute.shutdown()


def _is_of_a_peer(error: Exception) -> bool:
    """Whether a collective failed, as it does when another process ends."""
    import jax

    words = ("gloo", "nccl", "coordination", "heartbeat", "connection", "socket", "unavailable")
    return isinstance(error, jax.errors.JaxRuntimeError) and any(word in str(error).casefold() for word in words)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


if __name__ == "__main__":
    main()
