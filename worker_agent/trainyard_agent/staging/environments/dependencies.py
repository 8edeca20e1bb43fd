"""The packages of a run's own environment that lack dependencies: a program of its interpreter.

Its arguments are the directory of the packages and that of pip's own libraries. Prints JSON: `lacking`, a requirement
by version of each package whose dependencies are not all there, as pip sees them; and `packages`, the name, version and
dependencies of each.
"""

import json
import resource
import sys
from collections.abc import Collection
from importlib import metadata

_MAX_MEMORY, _MAX_CPU_S = 1 << 30, 60


def main(own: str, libraries: str) -> None:
    for limit, value in ((resource.RLIMIT_AS, _MAX_MEMORY), (resource.RLIMIT_CPU, _MAX_CPU_S)):
        resource.setrlimit(limit, (value, value))
    dists = list(metadata.distributions(path=[own]))
    lacking = [f"{dist.metadata['Name']}=={dist.version}" for dist in dists if not _is_complete(dist, libraries)]
    packages = sorted([dist.metadata["Name"], dist.version, *(dist.requires or ())] for dist in dists)
    print(json.dumps({"lacking": lacking, "packages": packages}))


def _is_complete(package: metadata.Distribution, libraries: str) -> bool:
    if all("extra ==" in need for need in package.requires or ()):
        return True
    sys.path.append(libraries)
    try:
        return _has_all(package, (), set())
    except Exception:  # noqa: BLE001 - metadata of anybody: pip says what is wrong with it
        return False
    finally:
        sys.path.remove(libraries)


def _has_all(package: metadata.Distribution, extras: Collection[str], visited: set[tuple[str, str]]) -> bool:
    """Whether each dependency is installed in a version that is allowed, and so are those of each."""
    from packaging.requirements import Requirement

    for need in map(Requirement, package.requires or ()):
        if need.marker and not any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        try:
            there = metadata.distribution(need.name)
        except metadata.PackageNotFoundError:
            return False
        if need.url or not need.specifier.contains(there.version, prereleases=True):
            return False
        key = (need.name.lower(), ",".join(sorted(need.extras)))
        if key not in visited:
            visited.add(key)
            if not _has_all(there, need.extras, visited):
                return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
