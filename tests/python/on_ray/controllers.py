"""amem.ray beside verl and OpenRLHF, which make the actors themselves: their single controllers, and their own commands.

tests/nightly.sh runs it, as both need PyTorch and more: environment.sh installs that.

The newest of each have been tried: Ray 2.60, PyTorch 2.15.0, verl 0.9.1, OpenRLHF 0.11.2.
"""
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
pytest.importorskip("cryptography", reason="cryptography is not installed (Debian: python3-cryptography)")

import amem.ray  # noqa: E402
from ray_nodes import MIB, RayNodes, nothing_left  # noqa: E402
from sim_node.node import Build  # noqa: E402

NODES = 4
STEPS = 5


@pytest.fixture
def raylets(build: Build, tmp_path: pathlib.Path) -> Iterator[RayNodes]:
    nodes = RayNodes(build, tmp_path)
    yield nodes
    nodes.close()
    nothing_left()


def resident(cluster: amem.ray.Cluster, group: str) -> list[int]:
    return [each.resident_bytes for answer in cluster.status().values() for each in answer.result().groups if each.name == group]


def rl_loop(cluster: amem.ray.Cluster, train: Any, start_rollout: Callable[[], Any]) -> Any:
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


def test_verl(raylets: RayNodes) -> None:
    pytest.importorskip("verl", reason="verl is not installed (pip install verl)")
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl_rank import VerlRank

    pool = RayResourcePool(process_on_nodes=[1] * NODES, use_gpu=True, max_colocate_count=2)
    with amem.ray.Cluster(pool.get_placement_groups(), pool="64MiB") as cluster:

        def start(group: str) -> Any:
            rank_class = cluster.actor(ray.remote(VerlRank), group)
            return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(rank_class, group))

        train = start("train")
        rollout = rl_loop(cluster, train, lambda: start("rollout"))
        for worker in train.workers + rollout.workers:
            ray.kill(worker)


class Group:
    """OpenRLHF's, with calls that wait."""

    def __init__(self, actors: Any) -> None:
        self.actors = actors

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: ray.get(self.actors.async_run_method(name, *arguments))


def test_openrlhf(raylets: RayNodes) -> None:
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed (pip install openrlhf)")
    from openrlhf_rank import OpenrlhfRank, RayActorGroup

    placed = raylets.placed()
    with amem.ray.Cluster(placed, pool="64MiB") as cluster:

        def start(group: str) -> Group:
            rank_class = cluster.actor(ray.remote(OpenrlhfRank), group)
            return Group(RayActorGroup(NODES, 1, rank_class, pg=placed, num_gpus_per_actor=0.4))

        train = start("train")
        rollout = rl_loop(cluster, train, lambda: start("rollout"))
        for actor in train.actors._actor_handlers + rollout.actors._actor_handlers:
            ray.kill(actor)


# ---- python3 -m amem.ray run: the driver is the framework's ----
STOOD_IN = '''
import importlib.abc, importlib.machinery, sys
from unittest.mock import AsyncMock, MagicMock

__version__ = "0.29.0"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith(__name__ + ".") else None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


class AsyncLLMEngine:
    @staticmethod
    def from_engine_args(arguments):
        from ray_rank import Rank

        engine = AsyncMock()
        engine.memory = Rank("engine")
        return engine


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock(name=name)


sys.meta_path.insert(0, _Finder())
'''


class Command(Protocol):
    def __call__(self, *arguments: str) -> tuple[RayNodes, str]: ...


@pytest.fixture
def command(build: Build, tmp_path: pathlib.Path) -> Iterator[Command]:
    """Runs a driver to its end, as the job of two nodes on which amemd runs. Gives the nodes, and what it said."""
    stood_in = tmp_path / "stood_in"
    for name in ("vllm", "flash_attn"):
        (stood_in / name).mkdir(parents=True)
        (stood_in / name / "__init__.py").write_text(STOOD_IN)
    about = stood_in / "vllm-0.29.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.29.0\n")
    path = os.pathsep.join((os.path.join(build.directory, "python"), os.path.dirname(os.path.abspath(__file__)), str(stood_in)))
    nodes = RayNodes(build, tmp_path, count=2)
    ray.shutdown()
    for sim in nodes.sims:
        sim.start_broker()

    def run(*arguments: str) -> tuple[RayNodes, str]:
        job = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}  # as `ray job submit` hands it over
        done = subprocess.run([sys.executable, "-m", "amem.ray", "run", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env={**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": nodes.cluster.address,
                                              "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job), "RAY_DEDUP_LOGS": "0"}, timeout=300)
        return nodes, done.stdout

    yield run
    nodes.close()


def test_the_command_of_openrlhf(command: Command) -> None:
    """It ends where it wants a model, which is after all of its actors that have GPUs have been made."""
    pytest.importorskip("openrlhf", reason="OpenRLHF is not installed (pip install openrlhf)")
    sizes = [word for role in ("actor", "ref", "critic") for word in (f"--{role}.num_nodes", "1", f"--{role}.num_gpus_per_node", "2")]
    _, said = command(
        "--group", "*ModelActor=trainer:heap", "--group", "RolloutRayActor=engine{number}:heap", "-m", "openrlhf.cli.train_ppo_ray", *sizes,
        "--vllm.num_engines", "2", "--vllm.tensor_parallel_size", "1", "--train.colocate_all", "--actor.model_name_or_path", "/nowhere",
        "--reward.remote_url", "http://nowhere", "--data.prompt_dataset", "/nowhere")
    for line in ('RolloutRayActor: group "engine0", scope heap', 'RolloutRayActor: group "engine1", scope heap',
                 'PolicyModelActor: group "trainer", scope heap', 'ReferenceModelActor: group "trainer", scope heap'):
        assert said.count(f"amem: {line}") == 1, said
    for group, least in (("engine0", 1), ("engine1", 1), ("trainer", 4)):
        assert said.count(f'amem: on: group "{group}", scope heap') >= least, said
    assert "'/nowhere'" in said, said


def test_the_driver_of_verl(command: Command, tmp_path: pathlib.Path) -> None:
    """run_ppo() with a configuration of its own, and in its runner the calls of its trainer that make workers and servers."""
    pytest.importorskip("verl", reason="verl is not installed (pip install verl)")
    nodes, said = command("--group", "WorkerDict=trainer:regions", "--group", "vLLMHttpServer={name}:heap",
                          "-m", "verl_run", "trainer.nnodes=2", f"hydra.run.dir={tmp_path}/hydra")
    told = [line.partition("TEST ")[2] for line in said.splitlines() if "TEST {" in line]
    assert len(told) == 1, said
    about = json.loads(told[0])
    assert [(each["shim"], each["AMEM_GROUP"], each["AMEM_SCOPE"]) for each in about["servers"]] == [
        (True, "vllm_server_0_0", "heap"), (True, "vllm_server_1_0", "heap")]
    assert [(each["shim"], each["group"]) for each in about["workers"]] == [(True, "trainer")] * 2
    assert {each["directory"] for each in about["workers"]} == {sim.runtime_dir for sim in nodes.sims}
    assert all("verl" in each for each in about["on"]) and said.count("amem: on for verl, too") == 2, said
    assert not about["runner"]["shim"]
