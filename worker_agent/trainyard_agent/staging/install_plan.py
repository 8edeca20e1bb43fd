"""The plan of `runtimes/install_script.py`, in the directory that its container has at SOURCE."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard_agent.host.files import write_json
from trainyard_agent.runtimes import install_script
from trainyard_agent.runtimes.installing import PACKAGES, SOURCE
from trainyard_agent.staging import program_module
from trainyard_agent.staging.inside.files import files

COMMAND = ("python3", f"{SOURCE}/install.py", f"{SOURCE}/plan.json")

_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
_PASSED_ON = (*INDEX_VARIABLES, "PIP_TRUSTED_HOST", "PIP_NO_INDEX", "PIP_DEFAULT_TIMEOUT")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


def write(source: Path, inside: Mapping[Path, str], isolated: Sequence[Path], **more: object) -> dict[str, str]:
    """Write the plan, and what it needs besides the packages, into `source`. Returns pip's environment. `inside`: the
    path of each package in the container, in the order of their installation."""
    plan: dict[str, object] = {
        "environment": PACKAGES,
        "with_base": [path for package, path in inside.items() if package not in isolated],
        "isolated": [inside[package] for package in isolated],
        "startup": files(),
        **more,
    }
    if program_module.copy_to(source) is not None:
        plan["module"] = f"{SOURCE}/{program_module.NAME}"
    write_json(source / "plan.json", plan)
    shutil.copyfile(install_script.__file__, source / "install.py")
    return pip_environment(os.environ, source)


def pip_environment(inherited: Mapping[str, str], source: Path) -> dict[str, str]:
    """pip's environment in the container: the user's index and proxies, and the user's certificates, copied to
    `source`. No other variables of the agent."""
    passed = {name: inherited[name] for name in (*_PASSED_ON, *PROXIES) if name in inherited}
    bundle = next((inherited[name] for name in _CA_VARIABLES if inherited.get(name)), "")
    if bundle and Path(bundle).is_file():
        shutil.copyfile(bundle, source / "certificates.pem")
        passed["PIP_CERT"] = f"{SOURCE}/certificates.pem"
    return {**passed, "HOME": "/tmp", "PYTHONUNBUFFERED": "1"}  # noqa: S108 - inside the container
