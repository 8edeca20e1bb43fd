"""Commands in replicas at this terminal, and ports of replicas on this machine."""
