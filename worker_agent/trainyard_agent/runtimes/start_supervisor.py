"""Script that starts a supervisor: `python -I -S start_supervisor.py REPLICA_DIR LOCK [SECRETS]`.

Python compiles a script at each start, and a module once. So it is short, and the supervisor a module.
"""

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/trainyard_agent/")[0])  # there are no site-packages

    from trainyard_agent.runtimes.supervisor import main

    main(sys.argv[1], *map(int, sys.argv[2:]))
