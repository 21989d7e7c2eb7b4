"""A job of OpenRLHF's, as OpenRLHF 0.11 makes it: the driver makes all actors, which have no names and no environments.

An engine on several GPUs has vLLM's Ray workers. vLLM's core, a child process of the engine's actor, makes them, and gives them the
runtime_env of this actor.
"""
import json
import subprocess
import sys
from typing import Any

import ray

from played import Holder, about, play, task, tell_test


@ray.remote(num_gpus=1)
class PolicyModelActor(Holder):
    pass


@ray.remote(num_gpus=1)
class ReferenceModelActor(Holder):
    pass


@ray.remote(num_cpus=0)
class PPOTrainer:
    def about(self) -> dict[str, Any]:
        return about()


CORE = """
import json, sys, ray
from played import about
env = json.loads(sys.argv[1])
ray.init(address="auto", runtime_env=ray.runtime_env.RuntimeEnv(**env), log_to_driver=False)

@ray.remote(num_cpus=0)
class RayWorkerWrapper:
    def about(self):
        return about()

worker = RayWorkerWrapper.remote()
print(json.dumps(ray.get(worker.about.remote())))
"""


@ray.remote
class RolloutRayActor(Holder):
    def worker(self) -> Any:
        env = json.dumps(dict(ray.get_runtime_context().runtime_env))
        done = subprocess.run([sys.executable, "-c", CORE, env], stdout=subprocess.PIPE, check=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    places = [each for each in sys.argv[1:] if each != "--ray-workers"]
    ray.init(runtime_env={"env_vars": {"OF_JOB": "yes"}})
    engine_class: Any = RolloutRayActor
    trainer_classes: tuple[Any, ...] = (PolicyModelActor, ReferenceModelActor)
    other_class: Any = PPOTrainer
    engines = [engine_class.options(num_cpus=0, num_gpus=0.2, resources={places[0]: 0.1}).remote() for _ in range(2)]
    trainers = [kind.options(num_cpus=0, num_gpus=0.2, resources={place: 0.1}).remote()
                for kind in trainer_classes for place in places]
    ray.get([each.load.remote(f"engine{number}") for number, each in enumerate(engines)])
    ray.get([each.load.remote(f"trainer{number}") for number, each in enumerate(trainers)])
    others = [other_class.remote()]
    workers = ray.get([each.worker.remote() for each in engines if "--ray-workers" in sys.argv])
    tell_test(driver=about(), task=ray.get(task.remote()), workers=workers,
              **{name: ray.get([each.about.remote() for each in actors])
                 for name, actors in (("trainers", trainers), ("engines", engines), ("others", others))})
    play(trainers + engines)


if __name__ == "__main__":
    main()
