"""A bed for hands: prints the paths of kubectl and of a kubeconfig, and is there until Ctrl-C."""

import signal
import sys

from beds.kubernetes import bed as beds
from beds.kubernetes.build import NoKubernetes


def main() -> int:
    for ends in (signal.SIGINT, signal.SIGTERM):  # a shell lets its background jobs ignore the first
        signal.signal(ends, signal.default_int_handler)
    try:
        with beds.started() as bed:
            print(f"export KUBECONFIG={bed.admin}")
            print(f"alias kubectl={bed.kubectl}")
            print(f"# nodes {', '.join(bed.nodes)}; image {beds.BASE_IMAGE}; logs {bed.admin.parent}/*.log", flush=True)
            signal.pause()
    except NoKubernetes as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
