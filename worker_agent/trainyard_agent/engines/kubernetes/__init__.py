"""Runtime of pods in a Kubernetes cluster."""
