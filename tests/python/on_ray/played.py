"""What the drivers of stand-ins for frameworks share: memory of an actor, and the talk with the test over standard input and output."""
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import ray

from ray_rank import Rank


class Holder:
    """Holds device memory from the moment on in which it is told to. `region`: its tag; None: no region."""

    def __init__(self) -> None:
        self.memory: Rank | None = None

    def load(self, name: str, region: str | None = None) -> None:
        if region is None:
            self.memory = Rank(name)
        else:
            import amem

            with amem.region(region):
                self.memory = Rank(name)

    def fill(self, step: int) -> int:
        assert self.memory is not None
        return self.memory.fill(step)

    def check(self) -> int:
        assert self.memory is not None
        return self.memory.check()

    def about(self) -> dict[str, Any]:
        return about()


def about() -> dict[str, Any]:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        shim = "libamem_shim" in maps.read()
    names = ("AMEM_GROUP", "AMEM_SCOPE", "AMEM_ON", "AMEM_REQUIRED", "AMEM_RUNTIME_DIR", "NCCL_CUMEM_ENABLE", "OF_CALL", "OF_JOB",
             "OF_SUBMISSION", "LD_PRELOAD")
    return {"shim": shim, **{name: os.environ[name] for name in names if name in os.environ}}


def about_child() -> Any:
    """Of a process that this one starts, as an engine starts its core."""
    code = "import json, played; print(json.dumps(played.about()))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


@ray.remote(num_cpus=0)
def task() -> dict[str, Any]:
    """As the small ones that frameworks run beside their actors."""
    return about()


def tell_test(**what: object) -> None:
    print("TEST", json.dumps(what), flush=True)


def play(actors: Sequence[Any]) -> None:
    """Until the test has enough: it fills the actors' memory, or looks at it."""
    for line in sys.stdin:
        call, *arguments = json.loads(line)
        tell_test(done=ray.get([getattr(actor, call).remote(*arguments) for actor in actors]))
