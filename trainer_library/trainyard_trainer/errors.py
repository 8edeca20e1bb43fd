"""Errors that are shown without a traceback: the message states what happened, what is allowed and what to do.

TrainerError              exit code 1
├── StorageError          storage.py: a disk or a bucket refused a request, or a bucket does not respond
├── JoinError             rendezvous.py: the processes could not connect
├── DivergenceError       output/report.py: the loss is not finite
├── NotFiniteError        output/saving.py: the state is not finite
└── TrainerUsageError     exit code 2: invalid flags, TF_CONFIG or data
    ├── ClusterError      cluster.py: TF_CONFIG is invalid
    ├── FileError         a file of examples is not where the flags say, or cannot be read
    ├── DataError         data/datasets.py: the data is missing or does not fit the flags
    ├── ModelError        models/model.py: the model does not accept such data
    ├── CheckpointError   job-dir has checkpoints of another training, or that nothing describes
    ├── TaskError         the task of a user cannot be used, or not with these flags
    └── JobDirLockedError output/lease.py: another trainer writes to job-dir

A process ends by `exit_now`.
"""

import contextlib
import logging
import os
import sys
from typing import NoReturn


class TrainerError(Exception):
    exit_code = 1


class TrainerUsageError(TrainerError, ValueError):
    exit_code = 2


class FileError(TrainerUsageError):
    """A file of examples cannot be used. The message names it, the problem, and what is allowed."""


class CheckpointError(TrainerUsageError):
    """The checkpoints in --job-dir are of another training."""


class TaskError(TrainerUsageError):
    """A task cannot be used, or not with these flags."""


def exit_now(code: int) -> NoReturn:
    """Flush and exit without cleanup.

    `sys.exit` would wait in JAX's shutdown barrier for processes that wait in a collective for this one, for a minute
    and more. An immediate exit closes the connections, so that the others fail within a second.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader of the pipe is gone
            stream.flush()
    os._exit(code)
