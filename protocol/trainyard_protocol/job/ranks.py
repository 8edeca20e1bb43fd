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
    """A variable of a gang's replicas. `value` gives it; "": it is not there. `meaning` is for people."""

    name: str
    value: Callable[[RankPlace], str]
    meaning: str


def _rank(place: RankPlace) -> str:
    return str(place.rank)


def _world_size(place: RankPlace) -> str:
    return str(place.world_size)


def _if_one_process(value: str) -> Callable[[RankPlace], str]:
    return lambda place: value if place.accelerators <= 1 else ""


RANK_VARIABLES = (
    # torch.distributed, env://. Source: https://docs.pytorch.org/docs/stable/distributed.html
    # DeepSpeed and DETR read the same; nanoGPT tells by RANK whether it is distributed at all.
    RankVariable("RANK", _rank, "rank of the replica: the master has 0"),
    RankVariable("WORLD_SIZE", _world_size, "number of replicas with a rank"),
    RankVariable("MASTER_ADDR", lambda place: place.host, "host of rank 0"),
    RankVariable("MASTER_PORT", lambda place: place.port, "port that rank 0 can bind"),
    # A process for each accelerator is what Lightning (LightningEnvironment.creates_processes_externally), accelerate
    # (PartialState) and torchrun start where these are absent; where they are there, this process is the only one.
    # Source: lightning/fabric/plugins/environments/lightning.py, accelerate/state.py
    RankVariable("LOCAL_RANK", _if_one_process("0"), "where the replica has at most one accelerator"),
    RankVariable("LOCAL_WORLD_SIZE", _if_one_process("1"), "where the replica has at most one accelerator"),
    # Lightning's node_rank reads NODE_RANK, or else GROUP_RANK, which is the name that torchrun gives its processes.
    # Source: lightning/fabric/plugins/environments/lightning.py,
    # https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    RankVariable("NODE_RANK", _rank, "the rank, for launchers of several processes in a replica"),
    RankVariable("GROUP_RANK", _rank, "the same"),
    RankVariable("GROUP_WORLD_SIZE", _world_size, "number of replicas with a rank"),
    # Defaults of torchrun's options. The least number of nodes is 1, so that `torchrun --standalone` finds itself alone
    # instead of waiting for others on localhost; the rendezvous of several replicas is static, and waits for all.
    # Source: torch/distributed/argparse_util.py, torch/distributed/run.py
    RankVariable("PET_NNODES", lambda place: f"1:{place.world_size}", "torchrun's --nnodes"),
    RankVariable("PET_NODE_RANK", _rank, "torchrun's --node-rank"),
    RankVariable("PET_MASTER_ADDR", lambda place: place.host, "torchrun's --master-addr"),
    RankVariable("PET_MASTER_PORT", lambda place: place.port, "torchrun's --master-port"),
    # jax.distributed.initialize reads the address by itself; number and id are arguments.
    # Source: jax/_src/distributed.py, jax/_src/clusters
    RankVariable("JAX_COORDINATOR_ADDRESS", lambda place: place.addresses[0], "address of rank 0"),
    RankVariable("JAX_NUM_PROCESSES", _world_size, "number of replicas with a rank"),
    RankVariable("JAX_PROCESS_ID", _rank, "the rank"),
    # keras.distribution.initialize. Source: keras/src/distribution/distribution_lib.py
    RankVariable("KERAS_DISTRIBUTION_JOB_ADDRESSES", lambda place: ",".join(place.addresses), "addresses by rank"),
    RankVariable("KERAS_DISTRIBUTION_NUM_PROCESSES", _world_size, "number of replicas with a rank"),
    RankVariable("KERAS_DISTRIBUTION_PROCESS_ID", _rank, "the rank"),
)

RANK_NAMES = frozenset(variable.name for variable in RANK_VARIABLES)


def rank_variables(place: RankPlace) -> dict[str, str]:
    """The variables of a replica at that place, in the order of the table; none of one that is alone."""
    if place.world_size == 1:
        return {}
    values = ((variable.name, variable.value(place)) for variable in RANK_VARIABLES)
    return {name: value for name, value in values if value}
