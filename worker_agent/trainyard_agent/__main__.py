import sys

from trainyard_agent.main import main

if __name__ == "__main__":
    sys.exit(main())
