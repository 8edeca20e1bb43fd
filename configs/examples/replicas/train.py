"""Estimate pi with several replicas: each draws points of its own, and the first one adds up what they found.

TF_CONFIG has the addresses of all replicas, and which of them this one is.
"""

import json
import os
import random
import socket
import time

POINTS = 200_000

config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
first = "chief" if "chief" in cluster else "master"
host, port = cluster[first][0].rsplit(":", 1)
others = len(cluster.get("worker", []))

random.seed(f"{task['type']} {task['index']}")
inside = sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(POINTS))
print(f"{task['type']} {task['index']}: {inside} of {POINTS} points are inside the circle", flush=True)

if task["type"] == first:
    counts = [inside]
    with socket.create_server(("", int(port))) as server:
        while len(counts) <= others:
            connection, _ = server.accept()
            with connection, connection.makefile() as lines:
                counts.append(int(lines.readline()))
    print(f"{len(counts)} replicas: pi is about {4 * sum(counts) / (POINTS * len(counts)):.4f}")
else:
    for _ in range(100):
        try:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(f"{inside}\n".encode())
            break
        except OSError:  # the first replica does not listen yet
            time.sleep(0.2)
    else:
        raise SystemExit("the first replica did not answer")
