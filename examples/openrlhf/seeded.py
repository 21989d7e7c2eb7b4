"""OpenRLHF's executor for single turns. It runs one request at a time, sorted by prompt, each with its own seed: two runs make the same batches."""

import asyncio
import collections
import copy
import pathlib
import zlib

from openrlhf.utils.agent import SingleTurnAgentExecutor

QUIET = 0.5  # seconds without a new request, after which a step has sent all of its requests


class AgentExecutor(SingleTurnAgentExecutor):
    """For --train.agent_func_path. An engine makes one, in its event loop's thread."""

    def __init__(self):
        super().__init__(str(pathlib.Path(__file__).resolve().parents[1] / "made_up" / "rewards.py"))
        self._turn = asyncio.Condition()
        self._samples = collections.Counter()  # by prompt
        self._waiting = set()
        self._newest = 0.0  # when the last request arrived

    async def execute(self, prompt, label, sampling_params, **kwargs):
        request = prompt, self._samples[prompt]
        self._samples[prompt] += 1
        self._waiting.add(request)
        await self._all_here()
        async with self._turn:
            await self._turn.wait_for(lambda: min(self._waiting) == request)
            mine = copy.deepcopy(sampling_params)  # all samples share it
            mine.seed = zlib.crc32(f"{request[0]} {request[1]}".encode())
            try:
                return await super().execute(prompt=prompt, label=label, sampling_params=mine, **kwargs)
            finally:
                self._waiting.remove(request)
                self._turn.notify_all()

    async def _all_here(self):
        """Waits for all requests of the step, so that they can be sorted. OpenRLHF shuffles the prompts, and its seed does not fix the order."""
        clock = asyncio.get_running_loop().time
        self._newest = clock()
        while (left := self._newest + QUIET - clock()) > 0:
            await asyncio.sleep(left)
