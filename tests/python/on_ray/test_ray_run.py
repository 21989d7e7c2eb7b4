"""`python3 -m amem.ray run` on a real Ray, with stand-ins that make their actors as verl and OpenRLHF do.

amemd runs on each node already.
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pytest

from sim_node.child import patience
from sim_node.node import Build, Node

HERE = os.path.dirname(os.path.abspath(__file__))
VERL = ("--group", "WorkerDict=trainer:regions", "--group", "vLLMHttpServer={name}:heap")
OPENRLHF = ("--group", "*ModelActor=trainer:heap", "--group", "RolloutRayActor=engine{number}:heap")


class Driver:
    """The driver of a job."""

    def __init__(self, build: Build, options: Sequence[str], program: Sequence[str], address: str = "", **env: str) -> None:
        path = os.pathsep.join((os.path.join(build.directory, "python"), HERE))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "amem.ray", "run", *options, *program],
            env={**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": address, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def answer(self) -> Any:
        """What the stand-in tells next."""
        assert self._process.stdout is not None and self._process.stderr is not None
        for line in self._process.stdout:
            if line.startswith("TEST "):
                return json.loads(line.removeprefix("TEST "))
        raise AssertionError(self._process.stderr.read())

    def call(self, *what: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self.answer()["done"]

    def end(self) -> tuple[int, str]:
        """Its exit code, and all that it said that was not told."""
        out, err = self._process.communicate(timeout=patience(120))
        return self._process.returncode, out + err


# ---- what the command refuses: it needs no cluster ------------------------------------------------------------------


@pytest.mark.parametrize("groups, sentence", (
    (["WorkerDict"], '"WorkerDict" does not say which actors are in which group. Write CLASS=GROUP:SCOPE, such as'),
    (["WorkerDict="], "does not say which actors are in which group"),
    (["Worker Dict=a"], "does not say which actors are in which group"),
    (["A=a,B=b"], "does not say which actors are in which group"),
    (["WorkerDict=trainer:region"], '"WorkerDict=trainer:region": "region" is not a valid scope. Use nccl, regions or heap'),
    (["WorkerDict=trainer:"], '"WorkerDict=trainer:": "" is not a valid scope. Use nccl, regions or heap'),
    (["WorkerDict=-x"], '"WorkerDict=-x": "-x" is not a valid group name. Use 1 to 63 characters'),
    (["WorkerDict=e{index}"], '"WorkerDict=e{index}" has {index}. A group can only have {name} (the actor\'s name), {number} (0 for'),
    (["Work*=a", "WorkerDict=b"], '"WorkerDict=b:heap" never counts, because "Work*=a:heap" comes first'),
))
def test_what_is_refused_at_the_command(build: Build, groups: list[str], sentence: str) -> None:
    code, said = Driver(build, [word for group in groups for word in ("--group", group)], ["nowhere.py"]).end()
    assert code == 2 and said.startswith("python3 -m amem.ray: ") and sentence in said and len(said.splitlines()) == 1, said


def test_without_a_shim(build: Build) -> None:
    code, said = Driver(build, VERL, ["nowhere.py"], AMEM_SHIM="/nowhere/libamem_shim.so").end()
    assert code == 2 and "libamem_shim.so is not at /nowhere/libamem_shim.so. Set AMEM_SHIM" in said and len(said.splitlines()) == 1, said


@pytest.mark.parametrize("rule, class_name, actor_name, number, group", (
    ("A=trainer", "A", "name", 5, "trainer"),
    ("A=engine{number}", "A", "name", 5, "engine5"),
    ("A={name}", "A", "vllm_server_0_1", 5, "vllm_server_0_1"),
    ("A*={name}", "Ab", None, 5, "Ab_5"),
    ("A={job}-trainer", "A", "name", 5, "01000000-89ab-trainer"),
    ("A=x-{name}", "A", "abcWorkerDict_0:1", 5, "x-abcWorkerDict_0-1"),
    ("A={name}", "A", "-" + "x" * 80 + "/1", 5, "x" * 61 + "-1"),
    ("A={name}", "A", "...", 5, "A"),
))
def test_names_of_groups(rule: str, class_name: str, actor_name: str | None, number: int, group: str) -> None:
    from amem.ray._rules import parse_rule

    found = parse_rule(rule)
    assert found.matches(class_name) and not found.matches("B") and found.scope == "heap"
    assert found.group_of(class_name, actor_name, number, "01000000-89ab") == group


def test_the_help_names_what_a_group_can_have(build: Build) -> None:
    code, said = Driver(build, ("--help",), ()).end()
    said = " ".join(said.split())
    assert code == 0
    assert "GROUP can have {name} (the actor's name), {number} (0 for the first of these actors, 1 for the next), {job} (the" in said


# ---- jobs -----------------------------------------------------------------------------------------------------------

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
pytest.importorskip("grpc", reason="grpcio is not installed (Debian: python3-grpcio)")

import amem  # noqa: E402
from ray_nodes import MIB, RayNodes  # noqa: E402

PLACES = ("place0", "place1")
UNTOUCHED: dict[str, object] = {"shim": False, "OF_JOB": "yes"}
DASHBOARD = importlib.util.find_spec("aiohttp_cors") is not None  # of ray[default]. It has Ray's state API
# An older one refuses the runtime_env that it has given itself: a driver that an actor starts cannot hand it on.
HANDS_ON = tuple(map(int, ray.__version__.split(".")[:2])) >= (2, 55)


@pytest.fixture(scope="module")
def raylets(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    nodes = RayNodes(build, tmp_path_factory.mktemp("ray"), count=2, dashboard=DASHBOARD)
    yield nodes
    nodes.close()


@pytest.fixture
def nodes(raylets: RayNodes) -> Iterator[RayNodes]:
    """With amemd on each."""
    for sim in raylets.sims:
        sim.start_broker()
    yield raylets
    for sim in raylets.sims:
        sim.broker.kill()


class Drive(Protocol):
    def __call__(self, options: Sequence[str], *program: str) -> Driver: ...


@pytest.fixture
def drive(nodes: RayNodes, build: Build) -> Drive:
    def start(options: Sequence[str], *program: str) -> Driver:
        return Driver(build, options, program, nodes.cluster.address)

    return start


def groups_of(sim: Node) -> dict[str, int]:
    """Resident bytes by the group's name."""
    with amem.Broker(sim.runtime_dir) as broker:
        return {group.name: group.resident_bytes for group in broker.groups()}


def of_node(sim: Node, **what: str) -> dict[str, object]:
    return {"shim": True, "LD_PRELOAD": amem.shim_path(), "AMEM_ON": "1", "AMEM_RUNTIME_DIR": sim.runtime_dir, "NCCL_CUMEM_ENABLE": "1",
            "OF_JOB": "yes", **what}


def turn(sims: Sequence[Node], group: str, driver: Driver, step: int) -> None:
    """The group leaves its GPUs, comes back, and has its bytes."""
    actors = len(driver.call("fill", step))
    for sim in sims:
        with amem.Broker(sim.runtime_dir) as broker:
            broker.pause(group)
            assert groups_of(sim)[group] == 0
            broker.resume(group)
    assert driver.call("check") == [step] * actors


def unmatched(said: str, line: str) -> int:
    """How often the line is said, or that it cannot be known."""
    return said.count(line if DASHBOARD else "because Ray's state API does not answer")


def without_directory(found: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in found.items() if name != "AMEM_RUNTIME_DIR"}


def test_a_job_of_verls(nodes: RayNodes, drive: Drive) -> None:
    """Workers and servers are made in a worker process, after the driver's own ray.init."""
    first, second = nodes.sims
    driver = drive(VERL, "-m", "played_verl", *PLACES)
    about = driver.answer()
    assert about["workers"] == [of_node(sim, AMEM_GROUP="trainer", AMEM_SCOPE="regions", OF_CALL=str(number))
                                for number, sim in enumerate((first, second))]
    servers = [of_node(first, AMEM_GROUP=f"vllm_server_{number}_0", AMEM_SCOPE="heap", OF_CALL="server") for number in range(2)]
    assert about["servers"] == about["cores"] == servers
    for found in (about["runner"], about["task"], *about["others"]):
        assert without_directory(found) == UNTOUCHED
    assert groups_of(first) == {"trainer": 4 * MIB, "vllm_server_0_0": 4 * MIB, "vllm_server_1_0": 4 * MIB}
    assert groups_of(second) == {"trainer": 4 * MIB}
    turn((first, second), "trainer", driver, 1)
    turn((first,), "vllm_server_1_0", driver, 2)
    code, said = driver.end()
    assert code == 0, said
    assert 'amem: WorkerDict: group "trainer", scope regions' in said
    assert 'amem: vLLMHttpServer: group "vllm_server_1_0", scope heap' in said
    assert 'amem: on: group "trainer", scope regions, no framework that amem knows is imported yet' in said
    assert "no actor of this job" not in said


def test_a_job_of_openrlhfs(nodes: RayNodes, drive: Drive) -> None:
    """The driver makes all actors. Engines have no names, and one that uses Ray has workers of its own."""
    first, second = nodes.sims
    driver = drive((*OPENRLHF, "--required"), os.path.join(HERE, "played_openrlhf.py"), *(["--ray-workers"] if HANDS_ON else []), *PLACES)
    about = driver.answer()
    required = {"AMEM_ON": "require", "AMEM_REQUIRED": "1"}
    trainers = [of_node(sim, AMEM_GROUP="trainer", AMEM_SCOPE="heap", **required) for sim in (first, second)]
    assert about["trainers"] == trainers * 2
    engines = [of_node(first, AMEM_GROUP=f"engine{number}", AMEM_SCOPE="heap", **required) for number in range(2)]
    assert about["engines"] == engines
    assert [without_directory(each) for each in about["workers"]] == [without_directory(each) for each in engines if HANDS_ON]
    for found in (about["task"], *about["others"]):
        assert without_directory(found) == UNTOUCHED | {"AMEM_REQUIRED": "1"}
    assert about["driver"] == {"shim": False}
    assert groups_of(first) == {"trainer": 8 * MIB, "engine0": 4 * MIB, "engine1": 4 * MIB}
    turn((first, second), "trainer", driver, 1)
    turn((first,), "engine0", driver, 2)
    code, said = driver.end()
    assert code == 0, said
    assert 'amem: PolicyModelActor: group "trainer", scope heap' in said
    assert 'amem: RolloutRayActor: group "engine1", scope heap' in said


def test_a_rule_that_matches_nothing(drive: Drive) -> None:
    driver = drive(("--group", "WorkrDict=trainer:regions"), "-m", "played_verl", *PLACES)
    about = driver.answer()
    assert not any(each["shim"] for each in about["workers"] + about["servers"])
    code, said = driver.end()
    assert code == 0, said
    line = ('amem: no actor of this job has the class WorkrDict, so the rule "WorkrDict=trainer:regions" had no effect. '
            "The classes of its actors: AgentLoopWorker, TaskRunner, WorkerDict, vLLMHttpServer\n")
    assert unmatched(said, line) == 1, said
    assert len([line for line in said.splitlines() if line.startswith("amem: ")]) == 1, said


ENDS = """
import sys
import ray

class WorkerDict:
    def ready(self):
        return True

ray.init(runtime_env={RUNTIME_ENV})
worker = ray.remote(num_cpus=0)(WorkerDict).remote()
print(ray.get(worker.ready.remote()), sys.argv, __name__)
{END}
"""


def small_job(tmp_path: pathlib.Path, end: str = "", runtime_env: str = "None") -> str:
    (tmp_path / "small.py").write_text(ENDS.replace("{END}", end).replace("{RUNTIME_ENV}", runtime_env))
    return str(tmp_path / "small.py")


@pytest.mark.parametrize("end, code", (("sys.exit(7)", 7), ("raise ValueError('of the job')", 1), ("ray.shutdown()", 0)))
def test_the_end_is_the_jobs(drive: Drive, tmp_path: pathlib.Path, end: str, code: int) -> None:
    job = drive(("--group", "WorkerDict=a", "--group", "Never=b"), small_job(tmp_path, end), "--its", "own").end()
    assert job[0] == code and f"True ['{tmp_path}/small.py', '--its', 'own'] __main__" in job[1], job[1]
    assert unmatched(job[1], 'no actor of this job has the class Never, so the rule "Never=b:heap" had no effect') == 1, job[1]


@pytest.mark.skipif(not DASHBOARD, reason="Ray's job submission is not installed (pip install 'ray[default]')")
def test_a_job_that_is_submitted(nodes: RayNodes, build: Build, tmp_path: pathlib.Path) -> None:
    """Its driver starts on the cluster, and the job has a runtime_env of its own."""
    path = os.pathsep.join((os.path.join(build.directory, "python"), HERE))
    env = {"env_vars": {"PYTHONPATH": path, "OF_SUBMISSION": "yes", "LD_PRELOAD": "libm.so.6"}}
    command = [os.path.join(os.path.dirname(sys.executable), "ray"), "job", "submit", "--runtime-env-json", json.dumps(env), "--",
               sys.executable, "-m", "amem.ray", "run", *VERL, "-m", "played_verl", *PLACES]
    done = subprocess.run(command, env={**os.environ, "RAY_ADDRESS": f"http://{nodes.cluster.head_node.webui_url}"}, capture_output=True,
                          text=True, timeout=patience(120))
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    [told] = [line for line in done.stdout.splitlines() if line.startswith("TEST ")]
    about = json.loads(told.removeprefix("TEST "))
    assert [each["AMEM_GROUP"] for each in about["workers"]] == ["trainer"] * 2
    assert [each["AMEM_GROUP"] for each in about["servers"]] == ["vllm_server_0_0", "vllm_server_1_0"]
    assert {each["LD_PRELOAD"] for each in about["workers"] + about["servers"]} == {f"{amem.shim_path()}:libm.so.6"}
    assert without_directory(about["runner"]) == UNTOUCHED | {"OF_SUBMISSION": "yes", "LD_PRELOAD": "libm.so.6"}


def test_no_amemd_on_a_node(raylets: RayNodes, build: Build, tmp_path: pathlib.Path) -> None:
    """The job runs without amem, and says so; with --required its rank does not."""
    started = Driver(build, ("--group", "WorkerDict=a"), (small_job(tmp_path),), raylets.cluster.address)
    code, said = started.end()
    assert code == 0 and "amem: amem is off in this process (pid " in said and "): amemd does not run" in said, said
    started = Driver(build, ("--group", "WorkerDict=a", "--required"), (small_job(tmp_path),), raylets.cluster.address)
    code, said = started.end()
    assert code != 0 and "amemd does not run" in said, said


def test_a_hook_of_the_job_itself(drive: Drive, tmp_path: pathlib.Path) -> None:
    code, said = drive(("--group", "WorkerDict=a"), small_job(tmp_path, runtime_env="{'worker_process_setup_hook': 'os.getpid'}")).end()
    assert code != 0 and "the job's runtime_env has the worker_process_setup_hook 'os.getpid', and amem requires its own" in said, said


def test_what_the_maker_of_an_actor_has_chosen(drive: Drive, tmp_path: pathlib.Path) -> None:
    """And the runtime directory that the command names, and what is in LD_PRELOAD."""
    (tmp_path / "chosen.py").write_text("""
import os
import ray
from played import Holder, tell_test

ray.init(runtime_env={"env_vars": {"LD_PRELOAD": "libm.so.6"}})
kinds = ray.remote(num_cpus=0)(Holder)
chosen = kinds.options(runtime_env={"env_vars": {"AMEM_GROUP": "mine"}})
made = [chosen.remote(), kinds.remote(), kinds.remote()]
get = lambda actor, name: ray.get(actor.__ray_call__.remote(lambda self: os.environ.get(name)))
tell_test(groups=[get(each, "AMEM_GROUP") for each in made], directory=get(made[1], "AMEM_RUNTIME_DIR"),
          preloads=[get(each, "LD_PRELOAD") for each in made])
""")
    driver = drive(("--group", "Holder=g{number}", "--runtime-dir", "/nowhere"), str(tmp_path / "chosen.py"))
    about = driver.answer()
    assert about == {"groups": ["mine", "g1", "g2"], "directory": "/nowhere",
                     "preloads": ["libm.so.6", *[f"{amem.shim_path()}:libm.so.6"] * 2]}
    assert driver.end()[0] == 0


SEVERAL = """
import os
import ray
from played import Holder, tell_test

class Maker:
    def make(self):
        self.made = [ray.remote(num_cpus=0)(Holder).remote() for _ in range(2)]
        return ray.get([each.__ray_call__.remote(lambda self: os.environ.get("AMEM_GROUP")) for each in self.made])

ray.init()
makers = [ray.remote(num_cpus=0)(Maker).remote() for _ in range(2)]
tell_test(groups=sorted(sum(ray.get([each.make.remote() for each in makers]), [])))
"""


def test_several_processes_that_make_actors(drive: Drive, tmp_path: pathlib.Path) -> None:
    """And a second job of the same cluster: {job} tells the two apart."""
    (tmp_path / "several.py").write_text(SEVERAL)
    jobs = [drive(("--group", "Holder={job}-e{number}"), str(tmp_path / "several.py")) for _ in range(2)]
    groups = [each.answer()["groups"] for each in jobs]
    assert [each.end()[0] for each in jobs] == [0, 0]
    names = {found[0].rpartition("-")[0] for found in groups}
    assert len(names) == 2 and all([each.rpartition("-")[2] for each in found] == ["e0", "e1", "e2", "e3"] for found in groups), groups


@pytest.mark.parametrize("by_variable", (False, True))
def test_rays_client(build: Build, tmp_path: pathlib.Path, by_variable: bool) -> None:
    (tmp_path / "client.py").write_text("import ray\nray.init(%s)\n" % ("" if by_variable else "'ray://127.0.0.1:10001'"))
    driver = Driver(build, ("--group", "WorkerDict=a"), (str(tmp_path / "client.py"),), "ray://127.0.0.1:10001" if by_variable else "")
    code, said = driver.end()
    assert code == 1 and "amem.ray cannot serve a driver that uses Ray's client (ray://127.0.0.1:10001). Start the driver on" in said, said
