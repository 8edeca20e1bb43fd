"""The gRPC messages between workers and parameter servers.

A message is a dict with NumPy arrays, encoded as msgpack; nothing that is received is ever executed.
"""

from collections.abc import Mapping
from typing import Any

import flax.serialization
from numpy.typing import NDArray

from trainyard_trainer.errors import TrainerError
from trainyard_trainer.parameter_servers.variables import Leaves

SERVICE = "trainer.ParameterServer"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]

Message = dict[str, Any]


class ParameterServerError(TrainerError):
    """A parameter server does not respond, or has lost its variables."""


def pack(message: Message) -> bytes:
    data: bytes = flax.serialization.msgpack_serialize(message)
    return data


def unpack(data: bytes) -> Message:
    message: Message = flax.serialization.msgpack_restore(data)
    return message


def leaves_to_dict(leaves: Leaves) -> dict[str, NDArray[Any]]:
    """A dict, because flax splits arrays that are too large for msgpack in dicts, but not in lists."""
    return {str(number): leaf for number, leaf in enumerate(leaves)}


def leaves_from_dict(leaves: Mapping[str, NDArray[Any]]) -> Leaves:
    return [leaves[str(number)] for number in range(len(leaves))]
