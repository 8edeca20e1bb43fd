"""The origin of a job: the commit, the files and the command that it was submitted with."""

from trainyard_server.capabilities.origins import routes
from trainyard_server.capabilities.origins.origins import Origins
from trainyard_server.capability import Capability

ORIGINS = Capability("origins", services=lambda cases: (Origins(cases.backend),), routers=(routes.router,))
