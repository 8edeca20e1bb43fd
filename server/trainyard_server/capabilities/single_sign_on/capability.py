"""Single sign-on: people sign in to the dashboard with an account of an OpenID Connect issuer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_server.capabilities.single_sign_on import page
from trainyard_server.capabilities.single_sign_on.oidc import Attempts
from trainyard_server.capabilities.single_sign_on.options import OidcOptions
from trainyard_server.capabilities.single_sign_on.single_sign_on import SingleSignOn
from trainyard_server.capability import Capability
from trainyard_server.config.settings import Settings
from trainyard_server.services.people.principals import Credentials
from trainyard_server.use_cases import UseCases


def _services(cases: UseCases) -> Sequence[object]:
    options = cases.backend.settings.of(OidcOptions)
    if not options.issuer:
        return ()
    from trainyard_server.capabilities.single_sign_on.oidc_issuer import OidcIssuer

    issuer = OidcIssuer(options, cases.stopwatch)
    return (SingleSignOn(options, issuer, Attempts(cases.key), cases.sign_in, cases.backend.clock),)


@dataclass(frozen=True, slots=True)
class _Accounts:
    """Accounts of the issuer, whose sessions are credentials."""

    issuer: str

    def read_bearer(self, text: str, now: datetime) -> None:
        """No call has a bearer of this kind."""


def _credentials(settings: Settings, _key: bytes) -> Iterable[Credentials]:
    options = settings.of(OidcOptions)
    return (_Accounts(options.issuer_host),) if options.issuer else ()


SINGLE_SIGN_ON = Capability(
    "single_sign_on",
    services=_services,
    credentials=_credentials,
    routers=(page.router,),
    options=OidcOptions,
    heading="single sign-on\nan OpenID Connect issuer for the dashboard",
)
