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
from typing import NoReturn

from trainyard_trainer import cluster as clusters
from trainyard_trainer.arguments import Arguments, parse_arguments
from trainyard_trainer.errors import TrainerError, exit_now

log = logging.getLogger("trainer")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    arguments = parse_arguments(argv)
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until training begins: see output/profile.py
        print(json.dumps({"event": "start", "stacks": signal.SIGUSR1.name}), flush=True)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    log.setLevel(logging.INFO)
    try:
        run(arguments)
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


def run(arguments: Arguments) -> None:
    """Run the role of this process in its job."""
    cluster = clusters.cluster_from_environment()
    clusters.divide_cpus(cluster)
    # Imported late: JAX sizes its thread pools by the CPUs, and an invalid flag should fail without a slow import.
    from trainyard_trainer import compilation, distribute
    from trainyard_trainer.evaluator import evaluate_checkpoints
    from trainyard_trainer.strategy import choose_strategy, make_strategy
    from trainyard_trainer.train import train

    strategy = choose_strategy(arguments.strategy, cluster)
    compilation.use_cache(arguments.job_dir, cluster)
    if cluster.role == "evaluator":
        evaluate_checkpoints(arguments, make_strategy("auto"))
    elif cluster.role == "ps" or strategy == "parameter-server":
        from trainyard_trainer.parameter_servers import training  # needs grpc

        if cluster.role == "ps":
            training.serve(arguments, cluster, strategy)
        else:
            training.train(arguments, cluster, make_strategy("auto"))
    else:
        distribute.initialize(cluster)
        train(arguments, cluster, make_strategy(strategy, arguments.parallel, arguments.accumulate))
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
