from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.local_servers import Servers


@pytest.fixture
def new_servers() -> Iterator[Callable[[], Servers]]:
    created: list[Servers] = []

    def new() -> Servers:
        created.append(Servers())
        return created[-1]

    yield new
    for servers in created:
        servers.close()


@pytest.fixture
def servers(new_servers: Callable[[], Servers]) -> Servers:
    return new_servers()
