import types


class ActorRolloutRefWorker:
    def __init__(self, engine):
        self.actor, self.ref = types.SimpleNamespace(engine=engine), None

    async def update_weights(self, global_steps=None, mode="auto"):
        self.actor.engine.to("cuda", optimizer=False)
        self.actor.engine.to("cpu", optimizer=False)
        return "updated"
