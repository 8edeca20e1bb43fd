"""Looks for known vulnerabilities in everything that requirements/*.txt install.

    make audit
    make audit AUDIT_ARGS='--ignore-vuln ID'    # one that does not concern us; say why where it is set

pip-audit asks PyPI. A vulnerability fails. Where PyPI's service cannot be reached, or knows none of the packages, as
behind a mirror without it, one line says that nothing was checked, and that is no failure.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent.parent / "requirements"
UNREACHABLE = re.compile(
    r"requests\.exceptions\.\w*(?:Connection|Proxy|Timeout|SSL)\w*|Could not connect|not redirecting|50[0234] Server"
)


def main(options: Sequence[str]) -> int:
    command = ["pip-audit", "--require-hashes", "--disable-pip", "--progress-spinner=off", "--format=json"]
    command += [f"--requirement={path}" for path in sorted(DIRECTORY.glob("*.txt"))]
    answer = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(answer.stdout)["dependencies"]
    except (ValueError, KeyError):
        if UNREACHABLE.search(answer.stderr):
            print("Not audited: the service of vulnerabilities (PyPI's) cannot be reached from here.")
            return 0
        print(f"pip-audit failed with exit code {answer.returncode}:\n{answer.stderr}", file=sys.stderr)
        return 1
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        print("Not audited: what answers as PyPI here knows none of the packages, as a mirror without the service.")
        return 0
    if skipped := [package["name"] for package in packages if "skip_reason" in package]:
        print(f"Not audited, unknown to the service: {', '.join(skipped)}")
    lines = [line(package, vulnerability) for package in audited for vulnerability in package["vulns"]]
    if lines:
        print(f"{len(lines)} known vulnerabilities:\n" + "\n".join(lines), file=sys.stderr)
        print("Change the version in constraints.txt, then `make lock`.", file=sys.stderr)
        return 1
    print(f"No known vulnerability in {len(audited)} packages.")
    return 0


def line(package: dict[str, Any], vulnerability: dict[str, Any]) -> str:
    fixed = ", ".join(vulnerability["fix_versions"])
    what = f"fixed in {fixed}" if fixed else "no version has a fix"
    return f"  {package['name']} {package['version']}: {vulnerability['id']}, {what}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
