"""verl's loop for single turns, with a seed for each request: two runs then make the same tokens, in whatever order requests arrive."""

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class SeededLoop(SingleTurnAgentLoop):
    async def run(self, sampling_params, priority=0, **kwargs):
        """`priority`: verl's number of the request in its batch."""
        return await super().run({**sampling_params, "seed": int(priority)}, priority=priority, **kwargs)
