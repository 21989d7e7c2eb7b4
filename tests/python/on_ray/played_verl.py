"""A job of verl's, as verl 0.9 makes it: the driver makes a runner alone. The runner makes workers, of a class that it makes itself, and
servers, which have names and environments."""
import sys
from collections.abc import Sequence
from typing import Any

import ray

from played import Holder, about, about_child, play, task, tell_test


class Worker(Holder):
    pass


def create_colocated_worker_cls() -> Any:
    class WorkerDict(Worker):
        pass

    return ray.remote(WorkerDict)


class vLLMHttpServer(Holder):  # noqa: N801: as it is called there
    def core(self) -> Any:
        return about_child()


class AgentLoopWorker:
    def about(self) -> dict[str, Any]:
        return about()


@ray.remote(num_cpus=0)
class TaskRunner:
    def run(self, nodes: Sequence[str]) -> dict[str, Any]:
        worker_class, server_class = create_colocated_worker_cls(), ray.remote(vLLMHttpServer)
        self.workers = [
            worker_class.options(num_gpus=0.3, num_cpus=0, resources={place: 0.1}, name=f"abcWorkerDict_{number}:0",
                                 runtime_env={"env_vars": {"OF_CALL": str(number)}}).remote() for number, place in enumerate(nodes)]
        self.servers = [
            server_class.options(num_gpus=0.2, num_cpus=0, resources={nodes[0]: 0.1}, name=f"vllm_server_{number}_0", max_concurrency=4,
                                 runtime_env={"env_vars": {"OF_CALL": "server"}}).remote() for number in range(2)]
        self.others = [ray.remote(AgentLoopWorker).options(num_cpus=0).remote()]
        ray.get([each.load.remote(f"worker{number}", "params") for number, each in enumerate(self.workers)])
        ray.get([each.load.remote(f"server{number}") for number, each in enumerate(self.servers)])
        made = (("workers", self.workers), ("servers", self.servers), ("others", self.others))
        return {"runner": about(), "task": ray.get(task.remote()), "cores": ray.get([each.core.remote() for each in self.servers]),
                **{name: ray.get([each.about.remote() for each in actors]) for name, actors in made}}

    def actors(self) -> list[Any]:
        return self.workers + self.servers


def main() -> None:
    ray.init(runtime_env={"env_vars": {"OF_JOB": "yes"}})
    runner_class: Any = TaskRunner
    runner = runner_class.remote()
    tell_test(**ray.get(runner.run.remote(sys.argv[1:])))
    play(ray.get(runner.actors.remote()))


if __name__ == "__main__":
    main()
