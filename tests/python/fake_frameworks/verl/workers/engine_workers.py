import types
from typing import Any


class ActorRolloutRefWorker:
    def __init__(self, engine: Any) -> None:
        self.actor, self.ref = types.SimpleNamespace(engine=engine), None

    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> str:
        self.actor.engine.to("cuda", optimizer=False)
        self.actor.engine.to("cpu", optimizer=False)
        return "updated"
