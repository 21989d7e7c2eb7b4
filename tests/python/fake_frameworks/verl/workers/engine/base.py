class BaseEngineCtx:
    def __init__(self, engine, mode):
        self.engine, self.mode = engine, mode

    def __enter__(self):
        self.engine.to("cuda", optimizer=self.mode == "train")

    def __exit__(self, *_):
        self.engine.to("cpu", optimizer=self.mode == "train")
