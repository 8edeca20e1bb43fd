"""The variables of the agent's environment that programs of a job inherit, and no others: no token and no key.

A job whose programs run as the agent's own user gets what belongs to that user too; any other has a home of its own.
"""

from collections.abc import Mapping
from pathlib import Path

_ALL = (
    *("PATH", "LANG", "LANGUAGE", "TZ"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("LD_LIBRARY_PATH", "CUDA_HOME"),  # how frameworks find the machine's devices
)
_OF_THE_AGENTS_USER = ("HOME", "USER", "LOGNAME", "SHELL")
_REPLICA = ("GOOGLE_CLOUD_PROJECT",)
_REPLICA_OF_THE_AGENTS_USER = ("GOOGLE_APPLICATION_CREDENTIALS",)  # gs:// at Google, as that user
_INSTALLER = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "PKG_CONFIG_PATH")
# Where uv gets packages from. Its other settings are those of a person, or of the environment that it is started in.
_INSTALLER_OF_UV = (
    *("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX", "UV_FIND_LINKS", "UV_INSECURE_HOST", "UV_HTTP_", "UV_OFFLINE"),
    *("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE", "UV_PRERELEASE", "UV_KEYRING_PROVIDER"),
    *("UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "UV_TORCH_BACKEND", "UV_EXCLUDE_NEWER", "UV_CONFIG_FILE"),
)
_INSTALLER_OF_THE_AGENTS_USER = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")  # where pip keeps what it fetched


def of_replica(inherited: Mapping[str, str], user: int | None, home: Path) -> dict[str, str]:
    """The inherited variables of a replica's program. `user` is the one that its run has, None: the agent's."""
    own = () if user else _REPLICA_OF_THE_AGENTS_USER
    return {**_passed(inherited, (*_ALL, *_REPLICA, *own), ("LC_",)), **_user(inherited, user, home)}


def of_installer(inherited: Mapping[str, str], user: int | None, home: Path) -> dict[str, str]:
    """The same for pip and uv, which run the setup.py of packages: with their own settings."""
    own = () if user else (*_INSTALLER_OF_THE_AGENTS_USER, "UV_CACHE_DIR")
    prefixes = ("LC_", "PIP_", *_INSTALLER_OF_UV)
    return {**_passed(inherited, (*_ALL, *_INSTALLER, *own), prefixes), **_user(inherited, user, home)}


def _passed(inherited: Mapping[str, str], names: tuple[str, ...], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in inherited.items() if name in names or name.startswith(prefixes)}


def _user(inherited: Mapping[str, str], user: int | None, home: Path) -> dict[str, str]:
    if user is None:
        return _passed(inherited, _OF_THE_AGENTS_USER, ())
    # A name, because programs ask for one, and the machine knows none.
    name = f"trainyard-{user}"
    return {"HOME": str(home), "USER": name, "LOGNAME": name, "SHELL": "/bin/sh"}
