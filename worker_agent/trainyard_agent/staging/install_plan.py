"""The plan of `installer/container.py`, and the installer, in the directory that its container has at SOURCE."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trainyard_agent.host.files import write_json
from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.runtimes.installing import PACKAGES, SOURCE
from trainyard_agent.staging import installer_archive, program_module, uv_program
from trainyard_agent.staging.inside.files import files
from trainyard_agent.staging.install_secrets import NO_SECRETS, InstallSecrets

_INSTALLER = "installer.pyz"
COMMAND = ("python3", f"{SOURCE}/{_INSTALLER}", f"{SOURCE}/plan.json")

_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX")
_PASSED_ON = (
    *INDEX_VARIABLES,
    *("PIP_TRUSTED_HOST", "PIP_NO_INDEX", "PIP_DEFAULT_TIMEOUT", "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT"),
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def write(
    source: Path,
    inside: Mapping[Path, str],
    isolated: Sequence[Path],
    secrets: InstallSecrets = NO_SECRETS,
    uv: str = "",
    more: Mapping[str, object] = MappingProxyType({}),
    patience_s: float = PATIENCE_S,
) -> dict[str, str]:
    """Write the plan, and what it needs besides the packages, into `source`. Returns the installer's environment.
    `inside`: the path of each package in the container, in the order of their installation; `uv`: that of a program
    uv there; `more`: further parts of the plan; `patience_s`: how long an index that is away is waited for."""
    plan: dict[str, object] = {
        "environment": PACKAGES,
        "startup": files(),
        "installation": {
            "own": True,
            "dependencies": True,
            "packages": [{"path": path, "with_base": package not in isolated} for package, path in inside.items()],
            "hidden": sorted(secrets.referred),
            "concealed": sorted(secrets.settings),
            "uv": uv,
            "patience_s": patience_s,
        },
        **more,
    }
    if program_module.copy_to(source) is not None:
        plan["module"] = f"{SOURCE}/{program_module.NAME}"
    write_json(source / "plan.json", plan)
    installer_archive.write(source / _INSTALLER)
    return {**pip_environment(os.environ, source), **secrets.settings, **secrets.referred}


def copy_uv(source: Path) -> str:
    """Copy the agent's uv beside the plan, and return its path in the container; "" if there is none. It is the user's
    who installs, so it is no link to the agent's."""
    program = uv_program.find()
    if not program:
        return ""
    shutil.copyfile(program, source / uv_program.NAME)
    (source / uv_program.NAME).chmod(0o755)
    return f"{SOURCE}/{uv_program.NAME}"


def pip_environment(inherited: Mapping[str, str], source: Path) -> dict[str, str]:
    """The environment of pip and uv in the container: the user's index and proxies, and the user's certificates, copied
    to `source`. No other variables of the agent."""
    passed = {name: inherited[name] for name in (*_PASSED_ON, *PROXIES) if name in inherited}
    bundle = next((inherited[name] for name in _CA_VARIABLES if inherited.get(name)), "")
    if bundle and Path(bundle).is_file():
        shutil.copyfile(bundle, source / "certificates.pem")
        passed["PIP_CERT"] = f"{SOURCE}/certificates.pem"
    return {**passed, "HOME": "/tmp", "PYTHONUNBUFFERED": "1"}  # noqa: S108 - inside the container
