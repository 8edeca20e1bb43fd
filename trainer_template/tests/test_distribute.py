import socket

import numpy as np
import pytest

from trainer import distribute
from trainer.cluster import Cluster


def test_join_where_the_port_is_taken_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(distribute.JoinError, match=f"cannot listen at {address}: .*in use"):
            distribute.join(Cluster(num_processes=2, coordinator=address))


def test_alone_there_is_nobody_to_meet_or_to_agree_with() -> None:
    distribute.join(Cluster())
    assert distribute.broadcast(b"mine") == b"mine"
    np.testing.assert_array_equal(distribute.gather(np.array([3, 4])), [[3, 4]])
    distribute.part()
