"""Connect to all other replicas at the addresses of TF_CONFIG, and print the names of those that have connected."""

import json
import os
import socket
import sys
import threading
import time

config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]["type"], config["task"]["index"]
addresses = {(role, index): there for role, them in config["cluster"].items() for index, there in enumerate(them)}
listener = socket.create_server(("", int(addresses[me].rpartition(":")[2])))
for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "WORLD_SIZE", "RANK"):
    print(name, os.environ.get(name, ""))


def send(there: str) -> None:
    """Say our name until it has arrived. A proxy of published ports accepts what nobody listens for yet."""
    host, _, port = there.rpartition(":")
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(f"{me[0]}-{me[1]}\n".encode())
                if connection.recv(2):
                    return
        except (ConnectionRefusedError, ConnectionResetError):  # it has not begun
            pass
        time.sleep(0.1)


met: set[str] = set()


def receive() -> None:
    while len(met) < len(others):
        connection, _ = listener.accept()
        with connection:
            if name := connection.makefile().readline().strip():
                met.add(name)
                connection.sendall(b"ok")


others = [there for task, there in addresses.items() if task != me]
receiver = threading.Thread(target=receive)
receiver.start()
for there in others:
    send(there)
receiver.join()
print("met", " ".join(sorted(met)))
while "--stay" in sys.argv:
    time.sleep(1)
