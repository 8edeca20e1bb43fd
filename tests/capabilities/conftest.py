"""Fixtures of the tests of capabilities: those of each level."""

from browser.conftest import chromium, dashboard, network, open_page, server_settings  # noqa: F401 - fixtures
from e2e.conftest import containers, nothing_left, own_service, second_try, service, strict_service  # noqa: F401 - fixtures
from integration.api.conftest import agent, api, clock  # noqa: F401 - fixtures
from integration.commands.conftest import client, jobs  # noqa: F401 - fixtures
from integration.conftest import no_login, shell, world  # noqa: F401 - fixtures
from unit.cli.conftest import script  # noqa: F401 - a fixture
