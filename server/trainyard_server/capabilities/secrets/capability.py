"""Secrets of projects, which programs get as variables or files."""

from collections.abc import Sequence

from trainyard_server.capabilities.secrets import routes
from trainyard_server.capabilities.secrets.checks import check_secrets
from trainyard_server.capabilities.secrets.cipher import SecretCipher
from trainyard_server.capabilities.secrets.secrets import Secrets
from trainyard_server.capability import Capability
from trainyard_server.use_cases import UseCases


def _services(cases: UseCases) -> Sequence[object]:
    cipher = SecretCipher(cases.backend.settings.secrets_key)
    service = Secrets(cases.backend, cipher)
    service.check_key()
    return (service,)


SECRETS = Capability(
    "secrets",
    services=_services,
    check=check_secrets,
    stored={"secrets": lambda cases: cases.of(Secrets).examine()},
    routers=(routes.router,),
)
