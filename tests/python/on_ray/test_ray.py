"""amem.ray on a real Ray: each of four raylets of this machine is a simulated node."""
import functools
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
pytest.importorskip("cryptography", reason="cryptography is not installed (Debian: python3-cryptography)")
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

import amem  # noqa: E402
import amem.ray  # noqa: E402
from amem.ray._cluster import _END_S, Cluster, _Place, size_of  # noqa: E402
from amem.ray._node import Node, Started  # noqa: E402
from ray_nodes import MIB, POOL, RayNodes, left_behind, nothing_left  # noqa: E402
from ray_rank import Rank  # noqa: E402
from sim_node.child import Child, eventually, patience  # noqa: E402
from sim_node.node import Build  # noqa: E402

STEPS = 12
AT_REST = ("RUNNING", "PAUSED")
RAY_NOTICES_WITHIN = 120  # seconds: Ray's own time, 15 s on an idle machine
TOLD_WITHIN = 40


@pytest.fixture(scope="module")
def raylets(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    nodes = RayNodes(build, tmp_path_factory.mktemp("ray"))
    yield nodes
    nodes.close()


@pytest.fixture
def nodes(raylets: RayNodes) -> Iterator[RayNodes]:
    yield raylets
    raylets.free()
    nothing_left()


@pytest.fixture
def own_nodes(build: Build, tmp_path: pathlib.Path, raylets: RayNodes) -> Iterator[RayNodes]:
    """Some of which are to die. Ray has one driver in a process."""
    ray.shutdown()
    nodes = RayNodes(build, tmp_path)
    yield nodes
    nodes.close()
    ray.init(address=raylets.cluster.address, log_to_driver=False)


def answers(calls: Iterable[Any], deadline: float = 60) -> list[Any]:
    found: list[Any] = ray.get(list(calls), timeout=patience(deadline))
    return found


def start_ranks(cluster: Cluster, group: str, bundles: Iterable[int] = range(4)) -> list[Any]:
    """One in each bundle; two groups share its GPU."""
    actor = ray.remote(Rank)
    ranks = [actor.options(num_cpus=0, num_gpus=0.5, **cluster.options(bundle, group)).remote(f"{group}{bundle}")
             for bundle in bundles]
    answers(rank.check.remote() for rank in ranks)
    return ranks


def driver_environment(nodes: RayNodes, build: Build) -> dict[str, str]:
    path = os.pathsep.join((os.path.join(build.directory, "python"), os.path.dirname(os.path.abspath(__file__))))
    return {**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": nodes.cluster.address}


def end_ranks(*groups: Sequence[Any]) -> None:
    for rank in (each for group in groups for each in group):
        ray.kill(rank)


def states(cluster: Cluster, group: str) -> list[str]:
    """Of the nodes that answer."""
    return [each.state.name for answer in cluster.status().values() if answer.value is not None
            for each in answer.value.groups if each.name == group]


def at_rest(cluster: Cluster, group: str) -> bool:
    """On the three nodes that are left."""
    return len(states(cluster, group)) == 3 and set(states(cluster, group)) <= set(AT_REST)


def resident(cluster: Cluster, group: str) -> list[int]:
    return [each.resident_bytes for answer in cluster.status().values() for each in answer.result().groups if each.name == group]


# ---- what it is for -----------------------------------------------------------------------------------------------


def test_an_rl_loop_with_two_swaps_a_step(nodes: RayNodes) -> None:
    with amem.ray.Cluster(nodes.placed(), pool="64MiB") as cluster:
        assert len(set(cluster.nodes)) == 4 and len(set(cluster.addresses)) == 4
        train = start_ranks(cluster, "train")
        about = answers(rank.about.remote() for rank in train)
        assert all(each["shim"] and each["group"] == "train" for each in about)
        assert len({each["directory"] for each in about}) == 4
        cluster.pause("train")
        rollout = start_ranks(cluster, "rollout")
        for step in range(1, STEPS + 1):
            done = cluster.swap("rollout", "train")
            assert len(done) == 8 and all(each.done for each in done)
            assert sorted(each.node for each in done) == sorted(cluster.nodes * 2)
            assert answers(rank.check.remote() for rank in train) == [step - 1] * 4
            assert resident(cluster, "rollout") == [0] * 4 and resident(cluster, "train") == [4 * MIB] * 4
            answers(rank.fill.remote(step) for rank in train)
            cluster.swap("train", "rollout")
            assert answers(rank.check.remote() for rank in rollout) == [step - 1] * 4
            answers(rank.fill.remote(step) for rank in rollout)
        cluster.resume("train")
        assert answers(rank.check.remote() for rank in train + rollout) == [STEPS] * 8
        end_ranks(train, rollout)


MY_JOB = """
from ray_rank import Rank


class Trainer(Rank):
    def __init__(self, bundle):
        super().__init__(f"train{bundle}")
        self.step = 0

    def ready(self):
        return self.check()

    def train(self, batch):
        assert batch == self.check()
        return self.fill(batch + 1)


class Rollout(Rank):
    def __init__(self, bundle):
        super().__init__(f"rollout{bundle}")

    def ready(self):
        return self.check()

    def generate(self):
        return self.check()

    def load(self, weights):
        self.fill(weights)
"""


def test_the_example_of_the_manual(nodes: RayNodes, build: Build, tmp_path: pathlib.Path) -> None:
    manual = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "ray.md")
    with open(manual, encoding="utf-8") as file:
        example = file.read().split("```python\n")[1].split("```")[0]
    small = example.replace('"64GiB"', '"64MiB"').replace("range(100)", "range(3)")
    assert small.count("64MiB") == 1 and small.count("range(3)") == 1
    (tmp_path / "controller.py").write_text(small + 'print(step, samples, weights)\n')
    (tmp_path / "my_job.py").write_text(MY_JOB)
    done = subprocess.run([sys.executable, "controller.py"], cwd=tmp_path, env=driver_environment(nodes, build),
                          capture_output=True, text=True, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    assert "2 [2, 2, 2, 2] [3, 3, 3, 3]" in done.stdout.splitlines(), done.stdout


def test_several_placement_groups(nodes: RayNodes) -> None:
    """As verl's: one for each node."""
    groups = [nodes.placed(number) for number in (2, 1)]
    with amem.ray.Cluster(groups, pool=POOL) as cluster:
        assert cluster.nodes == (nodes.raylets[2].node_id, nodes.raylets[1].node_id)
        ranks = start_ranks(cluster, "train", range(2))
        cluster.pause("train", timeout=30)
        cluster.resume("train")
        answers(rank.check.remote() for rank in ranks)
        end_ranks(ranks)
        with pytest.raises(amem.InvalidArgumentError, match="no bundle 2. The bundles are 0 to 1"):
            cluster.options(2, "train")


def test_two_bundles_of_one_node(nodes: RayNodes) -> None:
    with amem.ray.Cluster(nodes.placed(1, 1), pool=POOL) as cluster:
        assert cluster.nodes == (nodes.raylets[1].node_id,)
        env = cluster.runtime_env("train", base={"LD_PRELOAD": "/lib/other.so", "A": "b"})["env_vars"]
        assert env["LD_PRELOAD"] == f"{amem.shim_path()}:/lib/other.so"
        assert (env["A"], env["AMEM_SCOPE"], env["AMEM_REQUIRED"]) == ("b", "heap", "1")
        assert cluster.options(1, "train", "nccl")["scheduling_strategy"].placement_group_bundle_index == 1


def test_nodes_of_one_machine_have_directories_of_their_own(nodes: RayNodes) -> None:
    with amem.ray.Cluster(nodes.placed(0, 1), pool=POOL) as cluster:
        with pytest.raises(amem.FailedPreconditionError, match="Pass the bundle"):
            cluster.runtime_env("train")
        directories = [cluster.runtime_env("train", bundle=bundle)["env_vars"]["AMEM_RUNTIME_DIR"] for bundle in (0, 1)]
        assert len(set(directories)) == 2 and all(os.stat(each).st_mode & 0o777 == 0o700 for each in directories)


def test_an_actor_class_for_code_that_makes_the_actors(nodes: RayNodes) -> None:
    placed = nodes.placed(0, 1)
    with amem.ray.Cluster(placed, pool=POOL) as cluster:
        ranks = cluster.actor(ray.remote(num_cpus=0, runtime_env={"env_vars": {"OF": "the class"}})(Rank), "train")
        assert ranks.__ray_actor_class__ is Rank and "check" in dir(ranks)

        def made(number: int, **more: Any) -> Any:
            where = PlacementGroupSchedulingStrategy(placed, placement_group_bundle_index=number)
            return ranks.options(num_gpus=0.5, scheduling_strategy=where, **more).remote("rank")

        actors = [made(1), made(0, runtime_env={"env_vars": {"OF": "the call"}})]
        about = answers(actor.about.remote() for actor in actors)
        assert [each["group"] for each in about] == ["train"] * 2 and all(each["shim"] for each in about)
        assert [each["directory"] for each in about] == [
            cluster.runtime_env("train", bundle=bundle)["env_vars"]["AMEM_RUNTIME_DIR"] for bundle in (1, 0)]
        assert answers(actor.variable.remote("OF") for actor in actors) == ["the class", "the call"]
        end_ranks(actors)
        without: tuple[Callable[[str], Any], ...] = (ranks.remote, lambda name: made(-1))
        for without_bundle in without:
            with pytest.raises(amem.FailedPreconditionError, match="Pass the bundle"):
                without_bundle("rank")
        with pytest.raises(amem.InvalidArgumentError, match="is not an actor class. ray.remote"):
            cluster.actor(Rank, "train")


def machines() -> Cluster:
    """A cluster of three nodes, as it is where each is a machine of its own."""
    cluster = object.__new__(Cluster)
    cluster._closed = False
    cluster._places = [_Place(f"{number}" * 56, f"10.0.0.{number}", 0, host=f"host{number}", shim="/amem/shim.so",
                              started=Started(f"10.0.0.{number}:7070", "/tmp/amem-0-job")) for number in range(3)]
    return cluster


def test_nodes_that_are_machines_have_one_environment() -> None:
    env = machines().runtime_env("train", "regions", required=False)["env_vars"]
    assert env == {"AMEM_GROUP": "train", "AMEM_RUNTIME_DIR": "/tmp/amem-0-job", "LD_PRELOAD": "/amem/shim.so",
                   "NCCL_CUMEM_ENABLE": "1", "AMEM_SCOPE": "regions"}


def test_names_of_nodes_that_are_machines() -> None:
    """amemd says the host's name, or the address of one that has not joined."""
    said = machines()._explained("node 'host1' failed: x; node '10.0.0.2:7070': gone; node 'else' knows", ["host0"])
    assert said == (f"node 'host1' (Ray's {'1' * 12}) failed: x; node '10.0.0.2:7070' (Ray's {'2' * 12}): gone; "
                    "node 'else' knows")


def test_amemd_serves_all_gpus_of_the_node(nodes: RayNodes) -> None:
    """Though Ray may hide them from who has asked for none."""
    with amem.ray.Cluster(nodes.placed(0), pool=POOL) as cluster:
        [answer] = cluster.status().values()
        status = answer.result()
        assert len(status.devices) == 2 and status.pool.ready_bytes == POOL
    assert left_behind() == []  # when close() has returned


# ---- the pool is Ray's resource -----------------------------------------------------------------------------------


def test_a_pool_larger_than_the_nodes_memory(nodes: RayNodes) -> None:
    with pytest.raises(amem.ResourceExhaustedError, match=f"has {256 * MIB} bytes .* requires {512 * MIB}"):
        amem.ray.Cluster(nodes.placed(), pool="512MiB")


def test_memory_that_is_in_use(nodes: RayNodes) -> None:
    group = nodes.placed(0)
    with amem.ray.Cluster(group, pool="192MiB"):
        with pytest.raises(amem.DeadlineExceededError, match="its resource memory may be in use"):
            amem.ray.Cluster(group, pool="128MiB", timeout=5)


@pytest.mark.parametrize("text, size", (("64GiB", 64 << 30), ("2 mib", 2 << 20), ("4194304", 4 << 20), (0, 0)))
def test_sizes(text: int | str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ("64GB", "", "1MiB", "much", -2 << 20, 5, 2.5, True))
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(amem.InvalidArgumentError, match="is not a valid pool size"):
        size_of(text)


# ---- amemd that runs already --------------------------------------------------------------------------------------


def test_amemd_that_runs_already(nodes: RayNodes, build: Build) -> None:
    first, second = nodes.sims[:2]
    first.start_broker()
    try:
        one, both = nodes.placed(0), nodes.placed(0, 1)
        with amem.ray.Cluster(one, pool=None) as cluster:
            assert cluster.addresses == (f"unix:{first.runtime_dir}/control.sock",)
            [answer] = cluster.status().values()
            assert answer.result().pid == first.broker.pid
            ranks = start_ranks(cluster, "train", [0])
            cluster.pause("train")
            cluster.resume("train")
            answers(rank.check.remote() for rank in ranks)
            end_ranks(ranks)
        assert first.broker.alive()  # it is not ours to end
        with pytest.raises(amem.FailedPreconditionError, match="Start it on all nodes, stop it on all nodes"):
            amem.ray.Cluster(both, pool=POOL)
        second.start_broker()
        with pytest.raises(amem.FailedPreconditionError, match="Pass the port at which the amemds listen"):
            amem.ray.Cluster(both, pool=POOL)
        with pytest.raises(amem.UnavailableError, match="cannot reach amemd at .*:1: "):
            amem.ray.Cluster(both, pool=POOL, port=1)
        with amem.ray.Cluster(both, pool=POOL, runtime_dir="/nowhere/amem") as cluster:
            assert all(answer.result().pid not in (first.broker.pid, second.broker.pid) for answer in cluster.status().values())
    finally:
        for sim in (first, second):
            if sim.has_broker:
                sim.broker.kill()
    with pytest.raises(amem.FailedPreconditionError, match="runs on no node"):
        amem.ray.Cluster(one, pool=None)


# ---- what goes wrong ----------------------------------------------------------------------------------------------


def test_errors_are_amems_own_and_name_the_node(nodes: RayNodes) -> None:
    with amem.ray.Cluster(nodes.placed(0, 1), pool=POOL) as cluster:
        ranks = start_ranks(cluster, "train", [0])
        with pytest.raises(amem.NotFoundError) as caught:
            cluster.pause("train")
        assert f"(Ray's {cluster.nodes[1][:12]}" in caught.value.text
        assert states(cluster, "train") == ["RUNNING"]
        end_ranks(ranks)
    with pytest.raises(amem.OperationCancelledError):
        cluster.pause("train")


def test_amemd_that_dies_alone(nodes: RayNodes) -> None:
    with amem.ray.Cluster(nodes.placed(0, 1), pool=POOL) as cluster:
        pids = [answer.result().pid for answer in cluster.status().values()]
        for number in (1, 0):
            os.kill(pids[number], signal.SIGKILL)
            eventually(lambda: cluster.status()[cluster.nodes[number]].error is not None, what="it is noticed")
            said = cluster.status()[cluster.nodes[number]].error
            assert isinstance(said, amem.UnavailableError)
            assert "amemd was killed by signal 9. The last lines of its log:\n" in said.text
            with pytest.raises(amem.UnavailableError, match=cluster.nodes[number][:12]):
                cluster.pause("train")


@pytest.mark.parametrize("lost", (0, 1), ids=("the_leader", "another"))
def test_a_raylet_that_is_killed_in_the_middle(own_nodes: RayNodes, lost: int) -> None:
    """The controller is told which node it was; the other nodes come to rest; close() leaves nothing."""
    cluster = amem.ray.Cluster(own_nodes.placed(1, 2, 3, 0), pool=POOL)
    train = start_ranks(cluster, "train")
    cluster.pause("train")
    rollout = start_ranks(cluster, "rollout")
    ended, turns = [], []

    def loop() -> None:
        groups = ["rollout", "train"]
        try:
            while True:
                cluster.swap(groups[0], groups[1])
                groups.reverse()
                turns.append(time.monotonic())
        except Exception as error:
            ended.append((time.monotonic(), error))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    eventually(lambda: len(turns) >= 3, deadline=60, what="three swaps")
    killed = time.monotonic()
    own_nodes.kill_raylet(cluster.nodes[lost])
    eventually(lambda: not own_nodes.alive(cluster.nodes[lost]), deadline=RAY_NOTICES_WITHIN, what="Ray notices it")
    thread.join(patience(TOLD_WITHIN))
    assert ended, f"the controller was told nothing within {TOLD_WITHIN} s after Ray noticed it"
    [(at, error)] = ended
    print(f"told after {at - killed:.1f} s: {error}")
    # Its ranks may have gone before the rest of it: then a group is missing there.
    assert isinstance(error, (amem.UnavailableError, amem.AbortedError, amem.NotFoundError))
    assert cluster.nodes[lost][:12] in error.text
    survivors = [node for number, node in enumerate(cluster.nodes) if number != lost]
    for group in ("train", "rollout"):
        eventually(functools.partial(at_rest, cluster, group), deadline=60, what=f"{group} is at rest on {survivors}")
    # Before Ray has told this process, the next error may also be of amemd alone, as the first one.
    eventually(lambda: isinstance(cluster.status()[cluster.nodes[lost]].error, amem.UnavailableError), deadline=60,
               what="this process knows that the actor is lost")
    with pytest.raises(amem.UnavailableError, match=cluster.nodes[lost][:12]):
        cluster.swap("train", "rollout")
    began = time.monotonic()
    cluster.close()
    assert time.monotonic() - began < _END_S, "it waited for the lost node"
    nothing_left()
    end_ranks(train, rollout)


def test_close_in_the_middle(nodes: RayNodes) -> None:
    """Of operations of another thread, which are told."""
    cluster = amem.ray.Cluster(nodes.placed(0, 1), pool=POOL)
    ranks = start_ranks(cluster, "train", range(2))
    turns, ended = [], []

    def loop() -> None:
        try:
            while True:
                cluster.pause("train")
                cluster.resume("train")
                turns.append(1)
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    eventually(lambda: len(turns) >= 2, what="two turns")
    cluster.close()
    assert left_behind() == []
    thread.join(patience(20))
    assert len(ended) == 1 and isinstance(ended[0], amem.OperationCancelledError), ended
    assert "close() has closed this amem.ray.Cluster" in str(ended[0])
    end_ranks(ranks)


def test_a_node_that_is_stopped_calls_no_other_amemd(tmp_path: pathlib.Path) -> None:
    """An operation of another thread may reach the actor after close()."""
    node = Node(str(tmp_path))
    assert isinstance(node.status(), amem.UnavailableError)
    assert node.stop() is None
    for answer in (node.operate([f"unix:{tmp_path}/control.sock"], "pause", ["train"], {}), node.status()):
        assert isinstance(answer, amem.OperationCancelledError)


def test_a_cluster_that_nobody_has_any_more(nodes: RayNodes) -> None:
    cluster = amem.ray.Cluster(nodes.placed(0), pool=POOL)
    assert left_behind()
    del cluster
    gc.collect()
    nothing_left()


# ---- it dies with the job -----------------------------------------------------------------------------------------

DRIVER = """
import sys, time, ray, amem.ray
from ray.util import placement_group
from ray_rank import Rank
ray.init(log_to_driver=False)
group = placement_group([{"CPU": 1, "GPU": 1, f"place{number}": 0.1} for number in range(2)])
cluster = amem.ray.Cluster(group, pool="64MiB")
ranks = [ray.remote(Rank).options(num_cpus=0, num_gpus=0.5, **cluster.options(bundle, "train")).remote("train")
         for bundle in range(2)]
ray.get([rank.check.remote() for rank in ranks], timeout=60)
cluster.pause("train")
print("paused", flush=True)
if sys.argv[1] == "waits":
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ("killed", "returns"))
def test_a_driver_that_ends_leaves_nothing(nodes: RayNodes, build: Build, tmp_path: pathlib.Path, end: str) -> None:
    """By SIGKILL, or without close(); its group is paused."""
    driver = Child("driver", [sys.executable, "-c", DRIVER, "waits" if end == "killed" else "ends"],
                   driver_environment(nodes, build), str(tmp_path / "driver.log"))
    try:
        driver.wait_for("paused", 90, "out")
        if end == "killed":
            assert len(left_behind()) >= 8  # of each node: the directory, supervisor, amemd and holder
            driver.kill()
        nothing_left(60)
        driver.wait(60)
    finally:
        driver.close()


def test_without_the_word_there_is_no_ray() -> None:
    script = "import sys, amem, amem.ray; assert not {'ray', 'cryptography'} & set(sys.modules); print('good')"
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                          capture_output=True, text=True, timeout=60)
    assert done.stdout == "good\n", done.stderr
