import socket

import numpy as np
import pytest

from trainer import distribute
from trainer.cluster import ClusterSpec


def test_join_where_the_port_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(distribute.JoinError, match=f"cannot listen at {address}: .*in use"):
            distribute.initialize(ClusterSpec(num_processes=2, coordinator=address))


def test_single_process_needs_no_communication() -> None:
    distribute.initialize(ClusterSpec())
    assert distribute.broadcast(b"mine") == b"mine"
    np.testing.assert_array_equal(distribute.gather(np.array([3, 4])), [[3, 4]])
    distribute.shutdown()
