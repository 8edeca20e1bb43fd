"""Several stagers as one: each run is prepared by the stager of the runtime that was chosen for it."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from trainyard_agent.runtimes.runtime_set import Choices
from trainyard_agent.staging.base import Stager, Staging
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.sync import RunOrder


class StagerSet:
    """The stagers by the name of their runtime. Implements `base.Stager`."""

    def __init__(self, stagers: Mapping[RuntimeName, Stager], choices: Choices) -> None:
        self._stagers = stagers
        self._choices = choices

    def begin(self, order: RunOrder) -> None:
        self._stagers[self._choices.of(order).runtime].begin(order)

    def status(self) -> dict[str, Staging]:
        """Runs of a former agent are stale, whichever stager has them."""
        every = {name: stager.status() for name, stager in self._stagers.items()}
        merged = {run_id: staging for status in every.values() for run_id, staging in status.items()}
        for run_id in merged:
            choice = self._choices.made_for(run_id)
            if choice is not None and run_id in every[choice.runtime]:
                staging = every[choice.runtime][run_id]
                merged[run_id] = replace(staging, runtime=choice.runtime, runtime_reason=choice.reason)
        return merged

    async def settle(self, run_ids: Collection[str], timeout_s: float) -> None:
        await asyncio.gather(*(stager.settle(run_ids, timeout_s) for stager in self._stagers.values()))

    async def discard(self, run_id: str) -> None:
        for stager in self._stagers.values():
            if run_id in stager.status():
                await stager.discard(run_id)
        self._choices.forget(run_id)

    async def close(self) -> None:
        await asyncio.gather(*(stager.close() for stager in self._stagers.values()))
