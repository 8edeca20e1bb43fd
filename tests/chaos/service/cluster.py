"""A cluster of Kubernetes for histories: the fake API server, and in place of scheduler and kubelets threads whose pods
are processes of this machine.

What takes seconds in a real cluster takes a fraction of one here; what is late, coarse or in whole seconds there is so
here. Requests fail as the weather says, and an agent can be killed at any of them.
"""

import datetime
import os
import random
import signal
import ssl
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from beds.fake_cluster import NAMESPACE, FakeCluster, Fault, handler, status
from beds.kubernetes.certificates import Authority
from trainyard_agent.engines.kubernetes.pods import objects

Object = dict[str, Any]
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODE = "node-1"
_MARK = "TRAINYARD_TEST_POD"
_TICK_S = 0.02
_NAMES = 5  # in the command of the container that waits for peers, after python3, its flags and its program
_MINIMUM_GRACE_S = 0.2
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class ClusterWeather:
    """Shares of requests that are refused with 500 or 429, or done and not answered, and of watches that end with 410.
    `down`: nothing answers."""

    refused: float = 0.0
    busy: float = 0.0
    lost: float = 0.0
    expired: float = 0.0
    down: bool = False


CALM_CLUSTER = ClusterWeather()
CLUSTER_FAULTS = ("down", "refused", "busy", "unanswered", "trapped")


class Trap:
    """Springs at one of the next requests, which waits until it is released, and is then done or not."""

    def __init__(self, call: int, done: bool) -> None:
        self.calls, self.done = call, done
        self.sprung, self.released = threading.Event(), threading.Event()


class ChaosCluster(FakeCluster):
    def __init__(self, url: str, seed: int) -> None:
        super().__init__(url)
        self.random = random.Random(f"cluster {seed}")
        self.kubeconfig = Path()
        self.counts: dict[str, int] = {}
        self._weather = ClusterWeather()
        self._traps: list[Trap] = []
        self._pods: dict[str, Pod] = {}
        self.is_kubelet_away = self.is_full = False
        self.zone: datetime.tzinfo = datetime.UTC
        """Of the nodes' clocks, in which the lines of logs are stamped."""

    def change(self, weather: ClusterWeather) -> None:
        with self.changed:
            self._weather = weather
            if weather.down:
                self.cut_streams()

    def cut_streams(self) -> None:
        """Every watch and every log that is followed breaks off."""
        with self.changed:
            self.restores += 1
            self.changed.notify_all()

    def set_trap(self, trap: Trap) -> None:
        with self.changed:
            self._traps.append(trap)

    def remove_trap(self, trap: Trap) -> None:
        with self.changed:
            self._traps = [one for one in self._traps if one is not trap]
        trap.released.set()

    def do_pause_kubelet(self, for_s: float) -> None:
        """It reports nothing, and the logs that it sends break off. Its containers run on."""
        self.is_kubelet_away = True
        self.cut_streams()
        time.sleep(for_s)
        self.is_kubelet_away = False

    def do_fill_cluster(self, for_s: float) -> None:
        """No node has room for a pod that comes, or waits, meanwhile."""
        self.is_full = True
        time.sleep(for_s)
        self.is_full = False

    def preempt(self, path: str) -> None:
        """Preempt as the scheduler does it."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        self.patch(path, {"status": {"conditions": [condition]}})
        self.delete(path)

    def claim_fault(self, method: str, path: str) -> Fault | None:
        with self.changed:
            sprung = [trap for trap in self._traps if trap.calls <= 0]
            for trap in self._traps:
                trap.calls -= 1
            self._traps = [trap for trap in self._traps if trap not in sprung]
            fault = self._drawn(method)
        for trap in sprung:
            trap.sprung.set()
            trap.released.wait(_PATIENCE_S)
            fault = self._counted("trapped", Fault(lost=trap.done, dropped=not trap.done))
        return fault

    def _drawn(self, method: str) -> Fault | None:
        weather = self._weather
        if weather.down:
            return self._counted("down", Fault(dropped=True))
        if self.random.random() < weather.refused:
            return self._counted("refused", Fault(500, "as the history says"))
        if self.random.random() < weather.busy:
            return self._counted("busy", Fault(429, headers={"Retry-After": "0"}))
        if method != "WATCH" and self.random.random() < weather.lost:
            return self._counted("unanswered", Fault(lost=True))
        if method == "WATCH" and self.random.random() < weather.expired:
            return self._counted("expired", Fault(410, "too old resource version"))
        return None

    def _counted(self, what: str, fault: Fault) -> Fault:
        self.counts[what] = self.counts.get(what, 0) + 1
        return fault

    # Objects, as a real one changes them.

    def create(self, path: str, body: Object) -> tuple[int, Object]:
        with self.changed:
            if "stringData" in body:
                values = {name: b64encode(text.encode()).decode() for name, text in body["stringData"].items()}
                body = {**body, "data": values}
            owners = [owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()]
            code, made = super().create(path, body)
            if code == 201 and path == PODS:
                pod = Pod(self, made)
                self._pods[made["metadata"]["uid"]] = pod
                pod.start()
            if code == 201 and owners and not self._lives(owners):  # removed meanwhile: what it owns goes too
                self.delete(f"{path}/{made['metadata']['name']}")
            return code, made

    def delete(self, path: str, grace_s: int | None = None) -> tuple[int, Object]:
        with self.changed:
            found = self.objects.get(path)
            if found is None or not path.startswith(f"{PODS}/"):
                answer = super().delete(path, grace_s)
                if found is not None:
                    self._collect(found["metadata"]["uid"])
                return answer
            metadata = found["metadata"]
            asked = found["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
            if not found["spec"].get("nodeName"):
                asked = 0
            known = metadata.get("deletionGracePeriodSeconds")
            if known is not None and known <= asked:
                return 200, self._store(path, found, "MODIFIED") if known == 0 else found
            ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=asked)
            deleted = {"deletionGracePeriodSeconds": asked, "deletionTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
            return 200, self._store(path, {**found, "metadata": {**metadata, **deleted}}, "MODIFIED")

    def _collect(self, owner: str) -> None:
        for path, found in list(self.objects.items()):
            owners = [one["uid"] for one in found["metadata"].get("ownerReferences") or ()]
            if owner in owners:
                self.delete(path)

    def _lives(self, uids: list[str]) -> bool:
        return any(found["metadata"]["uid"] in uids for found in self.objects.values())

    def of_runs(self) -> list[str]:
        with self.changed:
            return [
                path for path, found in self.objects.items() if objects.RUN in (found["metadata"].get("labels") or {})
            ]

    def host_names(self) -> set[str]:
        """Host names of all pods."""
        with self.changed:
            return {found["spec"]["hostname"] for path, found in self.objects.items() if path.startswith(f"{PODS}/")}

    # What operations of a history do.

    def running(self) -> "list[Pod]":
        with self.changed:
            return sorted((pod for pod in self._pods.values() if pod.pid), key=lambda pod: pod.path)

    def log_of(self, path: str) -> "Pod | None":
        with self.changed:
            found = self.objects.get(path)
            return self._pods.get(found["metadata"]["uid"]) if found else None

    def close(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
            pods = list(self._pods.values())
        for pod in pods:
            pod.join(_PATIENCE_S)


class Pod(threading.Thread):
    """One pod's life on its node."""

    def __init__(self, cluster: ChaosCluster, made: Object) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._uid: str = made["metadata"]["uid"]
        self._mark = f"{cluster.url}/{self._uid}"
        self.path = f"{PODS}/{made['metadata']['name']}"
        self.labels: dict[str, str] = made["metadata"]["labels"]
        self._delays = [cluster.random.uniform(0, most) for most in (0.05, 0.2, 0.1, 0.4)]
        self._process: subprocess.Popen[bytes] | None = None
        self.lines: list[tuple[datetime.datetime, bytes]] = []
        self.has_begun = self.has_ended = False
        self.version = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.labels[objects.RUN][:10], self.labels[objects.TASK]

    @property
    def pid(self) -> int:
        """0: it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def run(self) -> None:
        scheduling, creating, seeing_start, seeing_end = self._delays
        self._pause(scheduling)
        self._wait_for_room()
        found = self._found()
        if not found:
            return
        if not found["metadata"].get("deletionTimestamp"):
            self._write({"spec": {"nodeName": NODE}})
            self._set({"waiting": {"reason": "ContainerCreating"}}, "Pending")
            self._pause(creating)
            self._wait_for_peers()
        found = self._found()
        if found and not found["metadata"].get("deletionTimestamp"):
            started = _now()
            self._start(found)
            self._pause(seeing_start)
            self._when_kubelet_is_there()
            self._set({"running": {"startedAt": started}}, "Running")
            ended = self._until_it_ends()
            self._pause(seeing_end)
            self._when_kubelet_is_there()
            self._set({"terminated": {**ended, "startedAt": started}}, "Failed" if ended["exitCode"] else "Succeeded")
        while not self._cluster.is_over and (found := self._found()):
            if found["metadata"].get("deletionTimestamp") and found["metadata"]["deletionGracePeriodSeconds"]:
                self._cluster.delete(self.path, 0)
            self._pause(_TICK_S)

    def _wait_for_room(self) -> None:
        """Wait, and say so as the scheduler does."""
        while self._cluster.is_full and not self._cluster.is_over and (found := self._found()):
            if found["metadata"].get("deletionTimestamp"):
                return
            if not found["status"].get("conditions"):
                full = {"reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient cpu."}
                condition = {"type": "PodScheduled", "status": "False", **full}
                self._cluster.counts["full"] = self._cluster.counts.get("full", 0) + 1
                self._write({"status": {"conditions": [condition]}})
            time.sleep(_TICK_S)
        self._write({"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}})

    def _wait_for_peers(self) -> None:
        """Wait as its container does: until each host name of the gang is that of a pod."""
        while not self._cluster.is_over and (found := self._found()):
            waiting = found["spec"].get("initContainers") or ()
            wanted = {word.partition(".")[0] for one in waiting for word in one["command"][_NAMES:]}
            if found["metadata"].get("deletionTimestamp") or wanted <= self._cluster.host_names():
                return
            time.sleep(_TICK_S)

    def _start(self, found: Object) -> None:
        container = found["spec"]["containers"][0]
        words = [word.replace("$$", "$") for word in (*container.get("command", ()), *container.get("args", ()))]
        variables = {one["name"]: one["value"].replace("$$", "$") for one in container["env"]}
        process = subprocess.Popen(
            words,
            env={"PATH": os.environ["PATH"], **variables, "HOSTNAME": found["spec"]["hostname"], _MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._readers = [threading.Thread(target=self._read, args=(s,)) for s in (process.stdout, process.stderr)]
        for reader in self._readers:
            reader.start()
        self._process, self.has_begun = process, True

    def _read(self, stream: Any) -> None:
        with stream:
            for line in stream:
                with self._cluster.changed:
                    now = datetime.datetime.now(self._cluster.zone)
                    self.lines.append((now, line if line.endswith(b"\n") else line + b"\n"))
                    self._cluster.changed.notify_all()

    def _until_it_ends(self) -> Object:
        """Stop it as its object says, and kill what it leaves."""
        assert self._process is not None
        kill_at, is_notified = float("inf"), False
        while self._process.poll() is None:
            found = self._found()
            if found is None or self._cluster.is_over:
                kill_at = 0.0
            elif found["metadata"].get("deletionTimestamp"):
                grace = max(found["metadata"]["deletionGracePeriodSeconds"], _MINIMUM_GRACE_S)
                kill_at = min(kill_at, time.monotonic() + grace)
                if not is_notified:
                    self._process.terminate()
                    is_notified = True
            if time.monotonic() >= kill_at:
                self._process.kill()
            time.sleep(_TICK_S)
        finished = _now()
        while others := _marked(self._mark):
            for pid in others:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_TICK_S)
        for reader in self._readers:
            reader.join()
        with self._cluster.changed:
            self.has_ended = True
            self._cluster.changed.notify_all()
        code = self._process.returncode
        return {"exitCode": 128 - code if code < 0 else code, "reason": "Error", "finishedAt": finished}

    def _when_kubelet_is_there(self) -> None:
        while self._cluster.is_kubelet_away and not self._cluster.is_over:
            time.sleep(_TICK_S)

    def _found(self) -> Object | None:
        with self._cluster.changed:
            found = self._cluster.objects.get(self.path)
            return found if found and found["metadata"]["uid"] == self._uid else None

    def _set(self, state: Object, phase: str) -> None:
        self._write({"status": {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}})

    def _write(self, change: Object) -> None:
        with self._cluster.changed:
            if self._found():
                FakeCluster.patch(self._cluster, self.path, change)

    def _pause(self, seconds: float) -> None:
        time.sleep(0 if self._cluster.is_over else seconds)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _stamp(time_: datetime.datetime) -> bytes:
    """The stamp that containerd gives a line: nanoseconds, and the offset of its node's zone."""
    text = time_.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return f"{text[:26]}123{text[26:]} ".encode()


def _marked(mark: str) -> list[int]:
    """The processes of a pod that still live."""
    found, variable = [], f"{_MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def _chaos_handler(cluster_of: Callable[[], ChaosCluster]) -> type[Any]:
    class Handler(handler(cluster_of)):  # type: ignore[misc]
        def do_GET(self) -> None:  # noqa: N802
            parts = urlsplit(self.path)
            if not parts.path.endswith("/log"):
                self._answer()
                return
            cluster, path = cluster_of(), parts.path.removesuffix("/log")
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            fault = cluster.claim_fault("LOG", parts.path)
            if fault is not None:
                if fault.lost or not self._fail(fault):
                    self._drop()
                return
            pod = cluster.log_of(path)
            if pod is None:
                self._send(404, status(404, f"pods {path} not found", "NotFound"))
            elif not pod.has_begun:
                self._send(400, status(400, "container main is waiting to start: ContainerCreating", "BadRequest"))
            else:
                self._send_log(cluster, pod, query)

        def _send_log(self, cluster: ChaosCluster, pod: Pod, query: dict[str, str]) -> None:
            self._stream(())
            since = datetime.datetime.fromisoformat(query.get("sinceTime", "1970-01-01T00:00:00Z"))
            restores = cluster.restores
            at = max(0, len(pod.lines) - int(query["tailLines"])) if "tailLines" in query else 0
            with suppress(OSError):
                while not cluster.is_over and cluster.restores == restores:
                    with cluster.changed:
                        lines, has_ended = pod.lines[at:], pod.has_ended
                        if not lines and query.get("follow") and not has_ended:
                            cluster.changed.wait(0.05)
                            continue
                    at += len(lines)
                    if content := b"".join(_stamp(when) + text for when, text in lines if when >= since):
                        self._chunk(content)
                    if not lines:
                        self._end(False)
                        return
            self._drop()

    return Handler


@contextmanager
def chaos_cluster(directory: Path, seed: int) -> Iterator[ChaosCluster]:
    """A cluster, and a kubeconfig for it in the directory."""
    cluster: ChaosCluster
    authority = Authority(directory)
    authority.issue("api-server", "kube-apiserver", hosts=("127.0.0.1",))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "api-server.crt", directory / "api-server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), _chaos_handler(lambda: cluster)) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # an agent was killed within a request
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        cluster = ChaosCluster(f"https://127.0.0.1:{server.server_port}", seed)
        cluster.kubeconfig = directory / "kubeconfig"
        cluster.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(cluster.url, authority.certificate)))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield cluster
        finally:
            cluster.close()
            server.shutdown()
            thread.join()


def _kubeconfig(url: str, authority: Path) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "chaos", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "agent", "user": {"token": "chaos"}}],
        "contexts": [{"name": "chaos", "context": {"cluster": "chaos", "user": "agent", "namespace": NAMESPACE}}],
        "current-context": "chaos",
    }
