"""Errors that are shown without a traceback: the message states what happened, what is allowed and what to do.

TrainerError              exit code 1
├── FileError             a file of examples cannot be read
├── ParameterServerError  parameter_servers/messages.py: a server does not respond, or has lost its variables
├── JoinError             distribute.py: the processes could not connect
├── DivergenceError       output/report.py: the loss is not finite
└── TrainerUsageError     exit code 2: invalid flags, TF_CONFIG or data
    ├── ClusterError      cluster.py: TF_CONFIG is invalid
    ├── DataError         data/datasets.py: the data is missing or does not fit the flags
    ├── ModelError        models/model.py: the model does not accept such data
    └── CheckpointError   state.py: job-dir has a checkpoint of another model or optimizer
"""


class TrainerError(Exception):
    exit_code = 1


class FileError(TrainerError, ValueError):
    """A file of examples cannot be used. The message names it, the problem, and what is allowed."""


class TrainerUsageError(TrainerError, ValueError):
    exit_code = 2
