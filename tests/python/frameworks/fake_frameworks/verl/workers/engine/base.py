from typing import Any

import verl.workers.engine_workers  # verl comes to it by a chain of imports  # noqa: F401


class BaseEngineCtx:
    def __init__(self, engine: Any, mode: str) -> None:
        self.engine, self.mode = engine, mode

    def __enter__(self) -> None:
        self.engine.to("cuda", optimizer=self.mode == "train")

    def __exit__(self, *_: object) -> None:
        self.engine.to("cpu", optimizer=self.mode == "train")
