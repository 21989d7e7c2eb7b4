"""amem.ray beside the single controllers of verl and OpenRLHF, which make the actors themselves. By hand, as both need
PyTorch and more:

    pip install "ray[default]" torch pytest cryptography grpcio transformers peft codetiming hydra-core tensordict torchdata datasets
    pip install --no-deps verl openrlhf deepspeed
    pip install einops hjson jsonlines loralib optimum optree py-cpuinfo pylatexenc torchmetrics
    python3 -m pytest tests/python/on_ray/controllers.py --build-dir build/release
"""
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
pytest.importorskip("cryptography", reason="cryptography is not installed (Debian: python3-cryptography)")

import amem.ray  # noqa: E402
from ray_nodes import MIB, RayNodes, nothing_left  # noqa: E402

NODES = 4
STEPS = 5


@pytest.fixture
def raylets(build, tmp_path):
    nodes = RayNodes(build, tmp_path)
    yield nodes
    nodes.close()
    nothing_left()


def resident(cluster, group):
    return [each.resident_bytes for answer in cluster.status().values() for each in answer.result().groups if each.name == group]


def rl_loop(cluster, train, start_rollout):
    """Both have fill(step), check() and about(), which give what all of their ranks give."""
    about = train.about()
    assert all(each["shim"] and each["group"] == "train" for each in about)
    assert len({each["directory"] for each in about}) == NODES
    cluster.pause("train")
    rollout = start_rollout()
    assert rollout.check() == [0] * NODES
    for step in range(1, STEPS + 1):
        cluster.swap("rollout", "train")
        assert resident(cluster, "rollout") == [0] * NODES and resident(cluster, "train") == [4 * MIB] * NODES
        assert train.check() == [step - 1] * NODES
        assert train.fill(step) == [step] * NODES
        cluster.swap("train", "rollout")
        assert rollout.check() == [step - 1] * NODES
        assert rollout.fill(step) == [step] * NODES
    cluster.resume("train")
    assert train.check() == rollout.check() == [STEPS] * NODES
    return rollout


def test_verl(raylets):
    pytest.importorskip("verl", reason="verl is not installed (pip install verl)")
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl_rank import VerlRank

    pool = RayResourcePool(process_on_nodes=[1] * NODES, use_gpu=True, max_colocate_count=2)
    with amem.ray.Cluster(pool.get_placement_groups(), pool="64MiB") as cluster:

        def start(group):
            rank_class = cluster.actor(ray.remote(VerlRank), group)
            return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(rank_class, group))

        train = start("train")
        rollout = rl_loop(cluster, train, lambda: start("rollout"))
        for worker in train.workers + rollout.workers:
            ray.kill(worker)


class Group:
    """OpenRLHF's, with calls that wait."""

    def __init__(self, actors):
        self.actors = actors

    def __getattr__(self, name):
        return lambda *arguments: ray.get(self.actors.async_run_method(name, *arguments))


def test_openrlhf(raylets):
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed (pip install openrlhf)")
    from openrlhf_rank import OpenrlhfRank, RayActorGroup

    placed = raylets.placed()
    with amem.ray.Cluster(placed, pool="64MiB") as cluster:

        def start(group):
            rank_class = cluster.actor(ray.remote(OpenrlhfRank), group)
            return Group(RayActorGroup(NODES, 1, rank_class, pg=placed, num_gpus_per_actor=0.4))

        train = start("train")
        rollout = rl_loop(cluster, train, lambda: start("rollout"))
        for actor in train.actors._actor_handlers + rollout.actors._actor_handlers:
            ray.kill(actor)
