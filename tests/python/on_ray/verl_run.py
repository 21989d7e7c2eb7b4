"""A driver for `python3 -m amem.ray run`: run_ppo() of verl's, and in its runner what verl's trainer calls to make workers and servers.

The workers and the servers are the test's. verl's import wants vLLM, which is stood in for.
"""
import asyncio
import os
from types import SimpleNamespace
from typing import Any

import hydra
import ray
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import create_colocated_worker_cls
from verl.trainer import main_ppo
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from played import Holder, about, tell_test
from verl_rank import VerlRank


class vLLMHttpServer(Holder):  # noqa: N801: as it is called there
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.load(f"server{given['replica_rank']}")

    async def get_master_address(self) -> tuple[str, int, int]:
        return "127.0.0.1", 1, 2

    async def launch_server(self, **given: Any) -> None:
        pass

    async def get_server_address(self) -> tuple[str, int]:
        return "127.0.0.1", 1


class Replica(vLLMReplica):
    """With the servers of this file, and nothing that needs a model."""

    def __init__(self, rank: int, workers: list[Any]) -> None:
        self.replica_rank, self.workers, self.world_size, self.nnodes, self.gpus_per_replica_node = rank, workers, 1, 1, 1
        self.server_class = ray.remote(num_cpus=0)(vLLMHttpServer)
        self.is_reward_model = self.is_teacher_model = False
        self.name_suffix = ""
        self.servers: list[Any] = []
        self.config, self.model_config, self.rollout_mode = SimpleNamespace(max_num_seqs=1), None, None


def switched_on(worker: object) -> tuple[str, ...]:
    """The frameworks in the process of a worker, after what a trainer there imports and, when it makes an engine, imports."""
    import amem
    import verl.workers.engine_workers
    import verl.workers.engine  # noqa: F401

    return amem.enable().frameworks


@ray.remote(num_cpus=0)
class TaskRunner:
    def run(self, config: Any) -> None:
        pool = RayResourcePool(process_on_nodes=[1] * config.trainer.nnodes, use_gpu=True, max_colocate_count=2)
        classes = {"actor": RayClassWithInitArgs(ray.remote(VerlRank), "actor")}
        together = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=create_colocated_worker_cls(classes))
        actors = together.spawn(prefix_set=classes.keys())["actor"]
        replicas = [Replica(number, [worker]) for number, worker in enumerate(together.workers)]
        for replica in replicas:
            asyncio.run(replica.launch_servers())
        servers = [server for replica in replicas for server in replica.servers]
        on = ray.get([each.__ray_call__.remote(switched_on) for each in together.workers])
        tell_test(runner=about(), on=on, workers=actors.about(), servers=ray.get([each.about.remote() for each in servers]))
        assert actors.fill(1) == actors.check() == [1] * config.trainer.nnodes


@hydra.main(config_path=os.path.join(os.path.dirname(main_ppo.__file__), "config"), config_name="ppo_trainer", version_base=None)
def main(config: Any) -> None:
    main_ppo.run_ppo(config, TaskRunner)


if __name__ == "__main__":
    main()
