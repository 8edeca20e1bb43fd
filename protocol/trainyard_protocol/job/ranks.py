"""Variables of launchers: what a replica of a gang finds of the ranks, addresses and ports of PyTorch, JAX and Keras.

A job of one replica has none of them, as `python train.py` has none: a program that finds RANK believes that a launcher
has started it. The master has rank 0 and the workers those from 1; parameter servers and evaluators have no rank. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a replica among the masters and workers of its gang, whose `addresses` (`host:port`) are in the
    order of their ranks. `accelerators`: those of the replica itself."""

    rank: int
    addresses: Sequence[str]
    accelerators: int = 0

    @property
    def world_size(self) -> int:
        return len(self.addresses)

    @property
    def host(self) -> str:
        """The host of rank 0. Its port is one that the process with rank 0 can bind."""
        return self.addresses[0].rpartition(":")[0]

    @property
    def port(self) -> str:
        return self.addresses[0].rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class RankVariable:
    """A variable of a gang's replicas. `value` gives it; "": it is not there. `meaning` is for people, `source` is
    where it is documented, or read."""

    name: str
    value: Callable[[RankPlace], str]
    meaning: str
    source: str

    @property
    def row(self) -> str:
        """The row of docs/explanation/what-a-program-finds.md."""
        return f"| `{self.name}` | {self.meaning} | {self.source} |"


def _rank(place: RankPlace) -> str:
    return str(place.rank)


def _world_size(place: RankPlace) -> str:
    return str(place.world_size)


def _host(place: RankPlace) -> str:
    return place.host


def _port(place: RankPlace) -> str:
    return place.port


def _if_one_process(value: str) -> Callable[[RankPlace], str]:
    return lambda place: value if place.accelerators <= 1 else ""


_TORCH = (
    "[torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization)"
)
_TORCHRUN = "[torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables)"
_PET = "torchrun: `torch/distributed/run.py`, `argparse_util.py`"
_LIGHTNING = "Lightning: `fabric/plugins/environments/lightning.py`"
_PROCESSES = "Lightning: `creates_processes_externally`; accelerate: `state.py`"
_JAX = "[jax.distributed](https://docs.jax.dev/en/latest/_autosummary/jax.distributed.initialize.html)"
_KERAS = "[keras.distribution.initialize](https://keras.io/api/distribution/)"
_ONE_PROCESS = "where the replica has at most one accelerator"

RANK_VARIABLES = (
    # DeepSpeed and DETR read the same four; nanoGPT tells by RANK whether it is distributed at all.
    RankVariable("RANK", _rank, "the replica's rank: the master has 0, the workers have 1 and up", _TORCH),
    RankVariable("WORLD_SIZE", _world_size, "number of replicas with a rank", _TORCH),
    RankVariable("MASTER_ADDR", _host, "host of rank 0", _TORCH),
    RankVariable("MASTER_PORT", _port, "port that rank 0 can bind", _TORCH),
    # Where they are absent Lightning and accelerate start a process for each accelerator.
    RankVariable("LOCAL_RANK", _if_one_process("0"), f"`0`, {_ONE_PROCESS}", _PROCESSES),
    RankVariable("LOCAL_WORLD_SIZE", _if_one_process("1"), f"`1`, {_ONE_PROCESS}", _TORCHRUN),
    RankVariable("NODE_RANK", _rank, "the rank", _LIGHTNING),
    RankVariable("GROUP_RANK", _rank, "the rank", _TORCHRUN),
    RankVariable("GROUP_WORLD_SIZE", _world_size, "number of replicas with a rank", _TORCHRUN),
    # Of at least one node, so that `torchrun --standalone` goes on alone after 30 s instead of waiting for others on
    # localhost. The rendezvous of all replicas is static, and waits for each.
    RankVariable("PET_NNODES", lambda place: f"1:{place.world_size}", "default of `--nnodes`", _PET),
    RankVariable("PET_NODE_RANK", _rank, "default of `--node-rank`", _PET),
    RankVariable("PET_MASTER_ADDR", _host, "default of `--master-addr`", _PET),
    RankVariable("PET_MASTER_PORT", _port, "default of `--master-port`", _PET),
    # JAX reads the address by itself; number and id are arguments.
    RankVariable("JAX_COORDINATOR_ADDRESS", lambda place: place.addresses[0], "address of rank 0", _JAX),
    RankVariable("JAX_NUM_PROCESSES", _world_size, "number of replicas with a rank, for `num_processes`", _JAX),
    RankVariable("JAX_PROCESS_ID", _rank, "the rank, for `process_id`", _JAX),
    RankVariable("KERAS_DISTRIBUTION_JOB_ADDRESSES", lambda place: ",".join(place.addresses), "all by rank", _KERAS),
    RankVariable("KERAS_DISTRIBUTION_NUM_PROCESSES", _world_size, "number of replicas with a rank", _KERAS),
    RankVariable("KERAS_DISTRIBUTION_PROCESS_ID", _rank, "the rank", _KERAS),
)

RANK_NAMES = frozenset(variable.name for variable in RANK_VARIABLES)


def rank_variables(place: RankPlace) -> dict[str, str]:
    """The variables of a replica at that place, in the order of the table; none of one that is alone."""
    if place.world_size == 1:
        return {}
    values = ((variable.name, variable.value(place)) for variable in RANK_VARIABLES)
    return {name: value for name, value in values if value}
