"""verl's loop for single turns, one request at a time in the order of the data, each with a seed of its own: two runs make the same batches."""

import asyncio

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class SeededLoop(SingleTurnAgentLoop):
    """verl makes one for each sample, in one process (num_workers=1), and hands them over in any order."""

    _waiting: dict[tuple[int, int], asyncio.Future] = {}  # the samples of this step that are not done, by prompt and number

    async def run(self, sampling_params, **kwargs):
        """`index` and `session_id`: of the prompt in the data, and of the sample among the prompt's samples."""
        mine = int(kwargs["index"]), int(kwargs["session_id"])
        turn = self._waiting[mine] = asyncio.get_running_loop().create_future()
        if len(self._waiting) == self.config.data.train_batch_size * self.rollout_config.n:
            self._next()
        await turn
        try:
            return await super().run({**sampling_params, "seed": mine[0] * self.rollout_config.n + mine[1]}, **kwargs)
        finally:
            del self._waiting[mine]
            self._next()

    def _next(self):
        if self._waiting:
            self._waiting[min(self._waiting)].set_result(None)
