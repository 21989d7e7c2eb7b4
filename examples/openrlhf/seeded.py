"""OpenRLHF's executor for single turns, one request at a time, each with a seed of its own: two runs make the same batches."""

import asyncio
import collections
import copy
import pathlib
import zlib

from openrlhf.utils.agent import SingleTurnAgentExecutor


class AgentExecutor(SingleTurnAgentExecutor):
    """For --train.agent_func_path. An engine makes one, in its event loop's thread."""

    def __init__(self):
        super().__init__(str(pathlib.Path(__file__).resolve().parents[1] / "made_up" / "rewards.py"))
        self._turn = asyncio.Lock()
        self._samples = collections.Counter()  # by prompt

    async def execute(self, prompt, label, sampling_params, **kwargs):
        mine = copy.deepcopy(sampling_params)
        mine.seed = zlib.crc32(f"{prompt} {self._samples[prompt]}".encode())
        self._samples[prompt] += 1
        async with self._turn:  # in the order in which they have come
            return await super().execute(prompt=prompt, label=label, sampling_params=mine, **kwargs)
