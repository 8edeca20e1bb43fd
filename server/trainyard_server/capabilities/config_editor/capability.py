"""New jobs from the dashboard: a program, or a config that is checked while it is written."""

from trainyard_server.capabilities.config_editor import new_page, page, routes
from trainyard_server.capabilities.config_editor.configs import Configs
from trainyard_server.capability import Capability
from trainyard_server.dashboard.views import Link
from trainyard_server.domain.access.permissions import Role

CONFIG_EDITOR = Capability(
    "config_editor",
    services=lambda cases: (Configs(cases.backend, cases.jobs, cases.job_details),),
    links=(Link("/new", "New job", 60, Role.SUBMITTER),),
    routers=(routes.router, page.router, new_page.router),
)
