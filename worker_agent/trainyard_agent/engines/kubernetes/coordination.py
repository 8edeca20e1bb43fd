"""Coordination Lease of a namespace: of several agents in it, one writes.

An agent that cannot renew it stops writing; the pods go on. A lease has expired for an agent that has seen no renewal
for its duration, by that agent's own clock: clocks of machines need not agree.
"""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeDown, KubeError, KubeRefused
from trainyard_agent.host.clock import Clock

LEASE_S = 15
RENEW_S = 5.0
WRITE_S = 10.0
"""How long after a renewal it is relied on: what is on its way then still arrives within the lease."""

NAME = "trainyard-agent"

_POLL_S = 2.0
_CONFLICT = 409

_log = logging.getLogger(__name__)


class CoordinationLease:
    def __init__(self, client: KubeClient, holder: str, clock: Clock) -> None:
        """`holder` names this agent, and no other that may run at the same time."""
        self._client, self._holder, self._clock = client, holder, clock
        self._lock = threading.Lock()
        self._renewed_at: float | None = None
        self._seen: tuple[str, str] = "", ""
        self._seen_at = 0.0
        self._ended = ""
        """Why it is never taken again: who took it over, or that it was released."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coordination lease")
        self._last_error = ""

    def try_acquire(self) -> str:
        """Take or renew it. Returns "" if this agent holds it, else who does. Raises KubeError."""
        with self._lock:
            if self._ended:
                return self._ended
            now = self._clock.monotonic()
            lease = self._client.get("leases", NAME)
            if lease is None:
                lease = self._client.create("leases", self._body(0))
            elif self._is_free(lease["spec"], now):
                lease = self._claim(lease)
            holder = _holder(lease)
            if holder == self._holder:
                self._renewed_at = now
                return ""
            if self._renewed_at is not None:
                self._ended = holder
            return holder or "another agent"

    def check(self) -> None:
        """Raises KubeError unless this agent may write now."""
        renewed_at = self._renewed_at
        if not self._ended and renewed_at is not None and self._clock.monotonic() - renewed_at < WRITE_S:
            return
        if holder := self.try_acquire():
            raise KubeDown(f"Nothing is written: the agent of the namespace is {holder}.")

    async def acquire(self) -> None:
        """Wait for it."""
        waits_for = ""
        while (holder := await self._attempt()) != "":
            if holder is not None and holder != waits_for:
                _log.warning("the agent of the namespace %s is %s: waiting for its end", self._client.namespace, holder)
                waits_for = holder
            await self._clock.sleep(_POLL_S)
        if waits_for:
            _log.info("took over from %s", waits_for)

    async def lost(self) -> str:
        """Renew it. Return once another agent has it, with who that is."""
        while True:
            await self._clock.sleep(RENEW_S)
            if holder := await self._attempt():
                return holder

    def release(self) -> None:
        """Let the next agent take it at once, and never take it again."""
        with self._lock:
            held, self._ended = self._renewed_at is not None and not self._ended, "nobody: this one ends"
            self._thread.shutdown(wait=False, cancel_futures=True)
            if not held:
                return
            try:
                lease = self._client.get("leases", NAME)
                if lease is not None and _holder(lease) == self._holder:
                    self._patch(lease, {"holderIdentity": None})
            except KubeError as error:
                _log.warning("the lease could not be released; it will expire: %s", error.message)

    async def _attempt(self) -> str | None:
        """Try to acquire: None if the API server did not answer. In a thread of its own: others may all be busy."""
        try:
            holder = await asyncio.get_running_loop().run_in_executor(self._thread, self.try_acquire)
        except KubeError as error:
            if error.message != self._last_error:
                _log.warning("the lease is not renewed, trying again: %s", error.message)
            self._last_error = error.message
            return None
        self._last_error = ""
        return holder

    def _is_free(self, spec: dict[str, Any], now: float) -> bool:
        holder = str(spec.get("holderIdentity") or "")
        if holder in ("", self._holder):
            return True
        renewal = (holder, str(spec.get("renewTime")))
        if renewal != self._seen:
            self._seen, self._seen_at = renewal, now
        return now - self._seen_at >= (spec.get("leaseDurationSeconds") or LEASE_S)

    def _claim(self, lease: dict[str, Any]) -> dict[str, Any]:
        spec = lease["spec"]
        changes = int(spec.get("leaseTransitions") or 0) + (_holder(lease) != self._holder)
        try:
            return self._patch(lease, self._body(changes)["spec"])
        except KubeRefused as refused:
            if refused.status != _CONFLICT:
                raise
            return self._client.get("leases", NAME) or {"spec": {}}  # another one was quicker

    def _patch(self, lease: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        """Change the version that was read, or none."""
        version = {"resourceVersion": lease["metadata"]["resourceVersion"]}
        return self._client.patch("leases", NAME, {"metadata": version, "spec": spec}) or {"spec": {}}

    def _body(self, changes: int) -> dict[str, Any]:
        now = self._clock.now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME},
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": LEASE_S,
                "leaseTransitions": changes,
                "renewTime": now,
            },
        }


def _holder(lease: dict[str, Any]) -> str:
    return str(lease["spec"].get("holderIdentity") or "")
