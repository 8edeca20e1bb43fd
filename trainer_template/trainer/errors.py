"""Errors whose message says all: what happened, what was allowed, what to do. Any other comes with a traceback.

TrainerError              exit code 1
├── FileError             records.py: a file of examples cannot be read
├── ParameterServerError  parameter_server.py: one does not answer, or has lost its variables
├── JoinError             distribute.py: the processes did not come together
├── DivergenceError       report.py: the loss is no longer a number
└── UsageError            exit code 2: what was asked for cannot be done
    ├── ClusterError      cluster.py: TF_CONFIG, or what it says
    ├── DataError         data.py: the data is not there, or not what was asked for
    ├── ModelError        models.py: the model cannot take such data
    └── CheckpointError   state.py: job-dir has a checkpoint of another training
"""


class TrainerError(Exception):
    exit_code = 1


class UsageError(TrainerError, ValueError):
    exit_code = 2
