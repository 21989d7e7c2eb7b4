import types
from typing import Any


class ActorRolloutRefWorker:
    def __init__(self, engine: Any) -> None:
        self.actor, self.ref = types.SimpleNamespace(engine=engine), None
        self.sent: list[int] = []

    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> str:
        parameters, _ = self.actor.engine.get_per_tensor_param(base_sync_done=True)
        self.sent = list(parameters)
        if mode in ("auto", "naive"):
            self.actor.engine.to("cpu", optimizer=False)
        return "updated"
