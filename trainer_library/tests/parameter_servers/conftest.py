from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.local_servers import Servers


@pytest.fixture
def servers() -> Iterator[Servers]:
    created = Servers()
    yield created
    created.close()
