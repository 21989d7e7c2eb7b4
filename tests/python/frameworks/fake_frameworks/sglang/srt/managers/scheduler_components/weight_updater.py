import dataclasses
import os
from typing import Any

ALL = ["kv_cache", "weights", "cuda_graph"]


@dataclasses.dataclass(kw_only=True, slots=True)
class SchedulerWeightUpdaterManager:
    memory_saver_adapter: Any
    idle: bool = True
    offload_tags: set[str] = dataclasses.field(default_factory=set)
    tp_cpu_group: Any = None

    def release_memory_occupation(self, recv_req: Any) -> str:
        assert self.idle, "release_memory_occupation should be called only when server is idle."
        for tag in recv_req.tags or ALL:
            self.offload_tags.add(tag)
            self.memory_saver_adapter.pause(tag)
        return "released"

    def resume_memory_occupation(self, recv_req: Any) -> str:
        for tag in recv_req.tags or ALL:
            self.offload_tags.remove(tag)
            self.memory_saver_adapter.resume(tag)
        return "resumed"


if os.environ.get("FAKE_SGLANG_MOVED"):
    setattr(SchedulerWeightUpdaterManager, "release", SchedulerWeightUpdaterManager.release_memory_occupation)
    del SchedulerWeightUpdaterManager.release_memory_occupation
