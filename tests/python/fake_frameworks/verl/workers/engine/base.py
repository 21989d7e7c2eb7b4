from typing import Any


class BaseEngineCtx:
    def __init__(self, engine: Any, mode: str) -> None:
        self.engine, self.mode = engine, mode

    def __enter__(self) -> None:
        self.engine.to("cuda", optimizer=self.mode == "train")

    def __exit__(self, *_: object) -> None:
        self.engine.to("cpu", optimizer=self.mode == "train")
