"""examples/: the commands of the READMEs, with stand-ins: of python3 and amemctl for the trainers, of vLLM, SGLang and JAX on the simulated
driver for the others; and what frameworks.py reads of them."""
import asyncio
import collections
import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import types
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

import pasted  # noqa: E402
from sim_node.child import patience  # noqa: E402
from sim_node.node import Build, Node  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "rl-frameworks.md").read_text(encoding="utf-8")
STAND_IN = """#!{python}
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.environ.get("AMEM_ON"), os.environ["PYTHONPATH"]]) + "\\n")
"""
# What runs, and what --amem puts before it.
COMMANDS = {
    "trl": (["python3", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "trl.scripts.grpo"],
            ["amemctl", "run", "--group", "trl", "--scope", "regions", "--"]),
    "verl": (["-m", "verl.trainer.main_ppo"],
             ["-m", "amem.ray", "run", "--group", "WorkerDict=trainer:regions", "--group", "vLLMHttpServer={name}:heap"]),
    "openrlhf": (["-m", "openrlhf.cli.train_ppo_ray"],
                 ["-m", "amem.ray", "run", "--group", "RolloutRayActor=engine{number}:heap", "--group", "PolicyModelActor=actor:regions"]),
}


def load(path: pathlib.Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> dict[str, str]:
    """With stand-ins, which note how they are called."""
    (tmp_path / "bin").mkdir()
    for name in ("python3", "amemctl"):
        program = tmp_path / "bin" / name
        program.write_text(STAND_IN.format(python=sys.executable))
        program.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "LD_", "GPUS"))}
    return {**clean, "PATH": f"{tmp_path / 'bin'}:{clean['PATH']}", "CALLS": str(tmp_path / "calls"), "PYTHONPATH": "of-the-user"}


def calls(environment: dict[str, str]) -> list[Any]:
    return [json.loads(line) for line in pathlib.Path(environment["CALLS"]).read_text().splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_of_its_readme(name: str, environment: dict[str, str], tmp_path: pathlib.Path) -> None:
    """They run what the README says: the same command, and amem before it."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    page = EXAMPLES / name / "README.md"
    assert pasted.paste(page, tmp_path, environment, patience(60)) == 1
    made, plain, ours = calls(environment)
    assert made[:2] == ["python3", ["examples/made_up/make.py", "/tmp/made-up"]]
    program, before = COMMANDS[name]
    assert plain[2] is None and "amem" not in " ".join(plain[1]).replace(str(ROOT), "")
    called = [plain[0], *plain[1]]
    assert [word for word in called if word in program][:len(program)] == program
    if name == "trl":
        assert [ours[0], *ours[1]] == [*before, *called] and ours[2] == "1"
    else:
        assert [ours[0], *ours[1]] == ["python3", *before, *called[1:]] and ours[2] is None
    text = page.read_text(encoding="utf-8")
    assert all(word in text for word in before) and all(word in PAGE for word in before)
    assert all("of-the-user" in each[3] for each in (plain, ours))


@pytest.mark.parametrize("name", COMMANDS)
def test_options_and_gpus(name: str, environment: dict[str, str], tmp_path: pathlib.Path) -> None:
    subprocess.run([EXAMPLES / name / "run.sh", "--amem", tmp_path / "made", "--mine", "a b"], env={**environment, "GPUS": "2"}, check=True)
    (_, words, _, _), = calls(environment)
    assert words[-2:] == ["--mine", "a b"] and str(tmp_path / "made" / "model") in " ".join(words)
    assert "2" in words or any(word.endswith("gpus_per_node=2") for word in words)


@pytest.mark.parametrize("name", COMMANDS)
def test_its_result_is_measured_by_the_command_that_it_names(name: str) -> None:
    """The command names a program, an example and options that exist."""
    said = re.findall(r"^(tests/gpu/\S+) (\S+) (--\S+) \S+$", (EXAMPLES / name / "README.md").read_text(encoding="utf-8"), re.M)
    assert [(name, "--prefix")] == [each[1:] for each in said]
    assert os.access(ROOT / said[0][0], os.X_OK)


def test_prompts_and_rewards(tmp_path: pathlib.Path) -> None:
    make, rewards = load(EXAMPLES / "made_up" / "make.py"), load(EXAMPLES / "made_up" / "rewards.py")
    subprocess.run([sys.executable, EXAMPLES / "made_up" / "make.py", "--only-prompts", "--prompts", "3", tmp_path], check=True)
    lines = [json.loads(line) for line in (tmp_path / "prompts" / "train.jsonl").read_text().splitlines()]
    assert [line["prompt"] for line in lines] == make.prompts(3) and len(set(make.prompts(96))) == 96
    assert rewards.for_trl(["w2 w3 </s>", "", "w4"]) == [0.5, 0.0, 1.0]
    assert rewards.for_verl("made_up", "w1 w2 w4 w6", "", {}) == 0.75


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, name: str, value: Any) -> None:
    """Makes a module, with its packages, that has one name."""
    for each in (module[:at] for at, letter in enumerate(module + ".") if letter == "."):
        monkeypatch.setitem(sys.modules, each, types.ModuleType(each))
    monkeypatch.setattr(sys.modules[module], name, value, raising=False)


def test_verls_requests_have_an_order_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With verl's loop as a stand-in. The file names the class, and the run names both."""
    class Loop:
        config = types.SimpleNamespace(data=types.SimpleNamespace(train_batch_size=2))
        rollout_config = types.SimpleNamespace(n=3)

        async def run(self, sampling_params: dict[str, Any], **more: Any) -> Any:
            at = len(done)
            await asyncio.sleep(0.001)
            assert len(done) == at, "another one runs"
            done.append((more["index"], more["session_id"], sampling_params["seed"]))
            if sampling_params["top_p"] == 0:
                raise ValueError
            return more["raw_prompt"]

    async def step(prompts: list[int], **params: Any) -> list[Any]:
        done.clear()
        samples = [(prompt, number) for number in (2, 0, 1) for prompt in prompts]
        return list(await asyncio.gather(*(module.SeededLoop().run(params, index=prompt, session_id=number, raw_prompt=[prompt])
                                           for prompt, number in samples), return_exceptions=True))

    stand_in(monkeypatch, "verl.experimental.agent_loop.single_turn_agent_loop", "SingleTurnAgentLoop", Loop)
    done: list[tuple[int, int, int]] = []
    module = load(EXAMPLES / "verl" / "seeded.py")
    expected = [(1, number, 3 + number) for number in range(3)] + [(4, number, 12 + number) for number in range(3)]
    for _ in range(2):
        assert asyncio.run(step([4, 1], top_p=1.0)) == [[4], [1]] * 3 and done == expected
    assert all(isinstance(each, ValueError) for each in asyncio.run(step([4, 1], top_p=0))) and done == expected
    config, script = ((EXAMPLES / "verl" / each).read_text(encoding="utf-8") for each in ("seeded.yaml", "run.sh"))
    assert "- name: seeded\n  _target_: seeded.SeededLoop\n" in config
    assert "agent.default_agent_loop=seeded" in script and 'agent.agent_loop_config_path="$here/seeded.yaml"' in script


def test_openrlhfs_requests_have_an_order_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With OpenRLHF's executor as a stand-in."""
    class Executor:
        def __init__(self, rewards: str) -> None:
            assert load(pathlib.Path(rewards)).reward_func

        async def execute(self, prompt: str, label: str, sampling_params: Any, max_length: int) -> Any:
            at = len(done)
            await asyncio.sleep(0.001)
            assert len(done) == at, "another one runs"
            done.append(prompt)
            return sampling_params.seed

    async def step(executor: Any, prompts: list[str]) -> dict[str, list[int]]:
        params, seeds = types.SimpleNamespace(seed=None), collections.defaultdict(list)
        async def one(prompt: str) -> None:
            seeds[prompt].append(await executor.execute(prompt=prompt, label="", sampling_params=params, max_length=8))
        tasks = []
        for prompt in prompts:
            tasks.append(asyncio.ensure_future(one(prompt)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        assert params.seed is None, "all samples share it"
        return seeds

    async def run(prompts: list[str]) -> list[dict[str, list[int]]]:
        module = load(EXAMPLES / "openrlhf" / "seeded.py")
        executor = module.AgentExecutor()
        return [await step(executor, prompts) for _ in range(2)]

    stand_in(monkeypatch, "openrlhf.utils.agent", "SingleTurnAgentExecutor", Executor)
    done: list[str] = []
    first = asyncio.run(run(["w1 w2", "w3", "w1 w2", "w3"]))
    assert done == ["w1 w2"] * 2 + ["w3"] * 2 + ["w1 w2"] * 2 + ["w3"] * 2
    assert len({seed for step in first for seeds in step.values() for seed in seeds}) == 8
    assert asyncio.run(run(["w3", "w3", "w1 w2", "w1 w2"])) == first, "OpenRLHF has shuffled the prompts"
    assert '--train.agent_func_path "$here/seeded.py"' in (EXAMPLES / "openrlhf" / "run.sh").read_text(encoding="utf-8")


# ---- vllm, sglang, jax: on the simulated driver ----
FRAMEWORKS = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
# How amem starts each: what docs/frameworks.md says.
STARTS: dict[str, list[str]] = {"vllm": ["amemctl run --group A --scope heap --required --", "amemctl run --group A --scope heap --"],
          "sglang": ["amemctl run --group engine0 --scope regions --"],
          "jax": ["amemctl run --group train --scope heap --"]}
SAID: dict[str, list[str]] = {"vllm": ["AMEM_ON=1", "--enable-sleep-mode", "VLLM_SERVER_DEV_MODE=1"],
        "sglang": ["--enable-memory-saver", "--enable-weights-cpu-backup"], "jax": []}
VLLM = """#!{python}
import os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(" ".join([os.environ.get("AMEM_ON", "0"), os.environ.get("AMEM_GROUP", "none"), *sys.argv[1:]]) + "\\n")
from vllm.entrypoints.cli.main import main
sys.exit(main())
"""
SGLANG = """
import http.server, json, os, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
with open(os.environ["CALLS"], "a") as calls:
    calls.write(" ".join([os.environ.get("AMEM_SCOPE", "none"), os.environ.get("AMEM_GROUP", "none"), *sys.argv[1:]]) + "\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    asleep = False
    def log_message(self, *words):
        pass
    def do_GET(self):
        self.answer(200)
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/generate":
            assert set(body) == {"text", "sampling_params"}
            return self.answer(500 if Handler.asleep else 200, {"text": "w1 w2"})
        right = self.path == ("/resume_memory_occupation" if Handler.asleep else "/release_memory_occupation") and body == {}
        Handler.asleep = not Handler.asleep
        self.answer(200 if right else 404)
    def answer(self, status, body=None):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def stage(bare_node: Node, build: Build, tmp_path: pathlib.Path) -> tuple[pathlib.Path, dict[str, str]]:
    """(the folder where a page's commands run, their environment): a broker, the simulated driver, the stand-ins."""
    bare_node.start_broker("--pool-size", "512MiB")
    folder = tmp_path / "stage"
    made, site, programs = folder / "examples" / "made_up", folder / "site", folder / "bin"
    for each in (made, site / "sglang", programs):
        each.mkdir(parents=True)
    for name in STARTS:
        (folder / "examples" / name).symlink_to(EXAMPLES / name)
    (made / "turns.sh").symlink_to(EXAMPLES / "made_up" / "turns.sh")
    (made / "make.py").write_text("import pathlib, sys\npathlib.Path(sys.argv[1]).mkdir()\n")
    (site / "jax.py").symlink_to(HERE / "stub_jax.py")
    (site / "sglang" / "launch_server.py").write_text(SGLANG)
    for name, text in (("vllm", VLLM.format(python=sys.executable)), ("nvidia-smi", "#!/bin/bash\necho 17 MiB\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "python3").symlink_to(sys.executable)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    built = os.path.abspath(build.directory)
    paths = [site, HERE / "fake_vllm", EXAMPLES / "tutorial", f"{built}/python"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "PYTHON"))}
    return folder, {**clean, **bare_node.env({}), "PATH": f"{programs}:{built}/bin:{clean['PATH']}", "PYTHONPATH": ":".join(map(str, paths)),
                    "PYTHONDONTWRITEBYTECODE": "1", "PORT": str(port), "CALLS": str(folder / "calls"), "FAKE_VLLM_WEIGHTS_MIB": "2",
                    "FAKE_VLLM_CACHE_MIB": "4"}


@pytest.mark.parametrize("name", STARTS)
def test_the_commands_of_a_readme_take_turns(name: str, stage: tuple[pathlib.Path, dict[str, str]]) -> None:
    folder, environment = stage
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    page = folder / "README.md"
    page.write_text(re.sub(r"/tmp/(made-up|jax)", rf"{folder}/\1", text))
    assert pasted.paste(page, folder, environment, patience(120)) == 1
    script = (EXAMPLES / name / "run.sh").read_text(encoding="utf-8")
    for start in STARTS[name]:
        assert start in text and start in script and start in FRAMEWORKS
    assert all(said in text and said.partition("=")[0] in script and said in FRAMEWORKS for said in SAID[name])
    if name == "jax":
        return
    own, *ours = (folder / "calls").read_text().splitlines()
    if name == "vllm":
        sleeps, paused = ours
        assert own.startswith("0 none serve") and sleeps.startswith("1 A serve") and paused.startswith("0 A serve")
        assert ["--enable-sleep-mode" in each for each in (own, sleeps, paused)] == [True, True, False]
    else:
        assert own.startswith("none none --model-path") and ours == [own.replace("none none", "regions engine0", 1)]


@pytest.mark.parametrize("name", STARTS)
def test_a_program_that_ends_is_noticed(name: str, stage: tuple[pathlib.Path, dict[str, str]]) -> None:
    folder, environment = stage
    (folder / "made-up").mkdir()
    for each in ("bin/vllm", "site/sglang/launch_server.py"):
        (folder / each).write_text("#!/bin/bash\nexit 3\n")
    (folder / "site" / "jax.py").unlink()
    done = subprocess.run([f"examples/{name}/run.sh", "--amem", "made-up"], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=patience(60))
    assert done.returncode == 1 and "turn 1" not in done.stdout


@pytest.mark.parametrize("name", STARTS)
def test_its_measurement(name: str) -> None:
    test_its_result_is_measured_by_the_command_that_it_names(name)


def test_a_training_in_jax_itself() -> None:
    """On the CPU, where JAX is installed."""
    pytest.importorskip("jax")
    done = subprocess.run([sys.executable, EXAMPLES / "jax" / "train.py", "--width", "16", "--steps", "200"], capture_output=True, text=True,
                          env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=patience(100), check=True)
    losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert len(losses) == 10 and losses == sorted(losses, reverse=True)


# ---- tests/gpu/by_hand/frameworks.py ----
LOG = """(pid=1) INFO 11-27 GPU KV cache size: 1,234,560 tokens
(pid=1) INFO 11-27 Sleep mode freed 40.5 GiB memory, 9.75 GiB memory is still in use.
(pid=1) INFO 11-27 It took 0.500000 seconds to fall asleep.
(pid=1) \x1b[36mINFO\x1b[0m It took 0.100000 seconds to wake up tags ['weights'].
(pid=1) INFO 11-27 It took 0.050000 seconds to wake up tags ['kv_cache'].
(pid=1) INFO 11-27 It took 0.250000 seconds to fall asleep.
(pid=1) INFO 11-27 Sleep mode freed 40.5 GiB memory, 2.5 GiB memory is still in use.
"""
STEPS = [{"rollout/reward_mean": 0.5, "policy_loss": -0.25, "actor_grad_norm": 1.5, "timing/step_total": 4.0, "timing/broadcast": 0.5},
         {"rollout/reward_mean": 0.625, "policy_loss": -0.125, "actor_grad_norm": 1.25, "timing/step_total": 2.0, "timing/broadcast": 0.25}]


def in_numpy(step: dict[str, float]) -> str:
    """The first number as a tensor, the second as NumPy's."""
    first, second, *others = (f"{key!r}: {value}" for key, value in step.items())
    return "{" + ", ".join([first.replace(": ", ": tensor(") + ", device='cuda:0')", second.replace(": ", ": np.float64(") + ")", *others]) + "}"


def of_run(frameworks: Any, name: str, folder: pathlib.Path, steps: list[dict[str, float]], times: pathlib.Path | None = None) -> Any:
    """What it reads of a run of this framework, which has written these numbers in its own way."""
    folder.mkdir()
    log = LOG
    if name == "openrlhf":
        log += "".join(f"(PPOTrainer pid=2) INFO ✨ Global step {at + 1}: {in_numpy(step)}\n" for at, step in enumerate(steps))
    elif name == "verl":
        (folder / "verl.jsonl").write_text("".join(json.dumps({"step": at, "data": step}) + "\n" for at, step in enumerate(steps)))
    else:
        state = folder / "trl" / "checkpoint-2" / "trainer_state.json"
        state.parent.mkdir(parents=True)
        state.write_text(json.dumps({"log_history": [*steps, {"train_runtime": 3.0}]}))
    return frameworks.summary(name, folder, log, times)


@pytest.mark.parametrize("name, names", [
    ("openrlhf", {}),
    ("verl", {"rollout/reward_mean": "critic/rewards/mean", "policy_loss": "actor/pg_loss", "actor_grad_norm": "actor/grad_norm",
              "timing/step_total": "timing_s/step", "timing/broadcast": "timing_s/update_weights"}),
    ("trl", {"rollout/reward_mean": "reward", "policy_loss": "loss", "actor_grad_norm": "grad_norm", "timing/step_total": "step_time",
             "timing/broadcast": "other"})])
def test_what_frameworks_py_reads(name: str, names: dict[str, str], tmp_path: pathlib.Path) -> None:
    frameworks = load(ROOT / "tests" / "gpu" / "by_hand" / "frameworks.py")
    steps = [{names.get(key, key): value for key, value in step.items()} for step in STEPS]
    one = of_run(frameworks, name, tmp_path / "one", steps)
    assert (one["steps"], one["step"], one["cache_tokens"], one["sleep"], one["wake"]) == (2, 2.0, 1234560, 0.25, pytest.approx(0.075))
    assert one["switched"] == pytest.approx(0.325) and one["used"] == 2560 and one["update"] == (None if name == "trl" else 0.25)
    assert all(len(step) == 3 for step in one["compared"])
    other = [steps[0], {**steps[1], names.get("policy_loss", "policy_loss"): -0.1250000001}]
    two = of_run(frameworks, name, tmp_path / "two", other)
    runs = {"plain 1": one, "plain 2": one, "amem 1": one}
    assert frameworks.verdict(runs) == [f"plain 1 and {each}: rewards, losses and gradient norms are equal bit for bit"
                                        for each in ("plain 2", "amem 1")]
    assert f"plain 1 and amem 1: {names.get('policy_loss', 'policy_loss')} differ" in frameworks.verdict({**runs, "amem 1": two})
    assert any("in the last step: without amem" in each for each in frameworks.verdict({"plain 1": one, "plain 2": two, "amem 1": one}))
    cut = {**one, "compared": one["compared"][:1]}
    assert frameworks.verdict({"plain 1": cut, "amem 1": one}) == ["plain 1 and amem 1: rewards, losses and gradient norms are equal bit for bit"
                                                                   f" in the first 1 steps. They have 1 and {len(one['compared'])} steps"]
    assert frameworks.verdict({"amem 1": one}) == []
    assert "| projected to a step of 10 s | 3.2 % |" in frameworks.table({"plain 1": one})


@pytest.mark.parametrize("script, said", [("exit 3", "ended with 3 after"), ("sleep 1000", "ended with still running after 1 s: ")])
def test_what_a_run_leaves_is_ended(script: str, said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    """A job that fails or hangs may leave processes in sessions of their own, as Ray does."""
    frameworks = load(ROOT / "tests" / "gpu" / "by_hand" / "frameworks.py")
    run = tmp_path / "examples" / "vllm" / "run.sh"
    run.parent.mkdir(parents=True)
    run.write_text(f"#!/bin/bash\nsetsid sleep 1000 &\necho $! >{tmp_path}/left\n{script}\n")
    run.chmod(0o755)
    monkeypatch.setattr(frameworks, "EXAMPLES", run.parents[1])
    (tmp_path / "made").mkdir()
    options = types.SimpleNamespace(gpus=1, prefix=tmp_path, more=[], limit=1)
    kit = types.SimpleNamespace(clean={"PYTHONPATH": ""})
    assert frameworks.run_once("vllm", options, tmp_path / "made", tmp_path / "out", kit, False) is None
    assert said in capsys.readouterr().out
    left = pathlib.Path("/proc") / (tmp_path / "left").read_text().strip()
    assert not left.exists() or "State:\tZ" in (left / "status").read_text()


FAKES = {
    "vllm/v1/executor/abstract.py": """
class Executor:
    def sleep(self, level=1): pass
    def wake_up(self, tags=None): pass
""", "trl/generation/vllm_generation.py": """
class VLLMGeneration:
    def sync_weights(self, executor): executor.wake_up(["weights"])
""", "verl/workers/engine/fsdp/transformer_impl.py": """
from amem.frameworks.phases import bring, take
class FSDPEngine:
    def to(self, device, model=True): (take if device == "cpu" else bring)(["params"])
""", "openrlhf/utils/deepspeed/deepspeed_utils.py": """
import threading
from amem.frameworks.phases import take
def offload_deepspeed_states(model):
    thread = threading.Thread(target=take, args=(["states"],))  # beside DeepSpeed
    thread.start()
    thread.join()
def reload_deepspeed_states(model): pass
""", "amem/frameworks/phases.py": """
def take(tags): pass
def bring(tags): pass
class State:
    def here(self): bring([])
"""}
TIMED_PROGRAM = """
import importlib.util, sys, time
import of_the_next
def finder():
    # another one that awaits a module and changes its loader, as amem's
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name != "trl.generation.vllm_generation": return None
            for each in sys.meta_path:
                spec = None if each is self else each.find_spec(name, path, target)
                if spec is not None: break
            run = spec.loader.exec_module
            vars(spec.loader)["exec_module"] = lambda module: (run(module), came.append(name))
            return spec
    return Finder()
came = []
sys.meta_path.insert(0, finder())
from vllm.v1.executor.abstract import Executor
from trl.generation.vllm_generation import VLLMGeneration
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, take
from openrlhf.utils.deepspeed.deepspeed_utils import offload_deepspeed_states
from amem.frameworks.phases import State
assert came == ["trl.generation.vllm_generation"]
executor, engine = Executor(), FSDPEngine()
executor.sleep(level=2)
engine.to(device="cuda")
engine.to("cpu")
VLLMGeneration().sync_weights(executor)
State().here()
take(["nccl"])
offload_deepspeed_states(engine)
"""


def test_the_functions_of_frameworks_are_timed(tmp_path: pathlib.Path) -> None:
    """Beside another finder that awaits the same module, and another sitecustomize."""
    site = tmp_path / "site"
    for name, text in FAKES.items():
        (site / name).parent.mkdir(parents=True)
        (site / name).write_text(text)
    (site / "sitecustomize.py").write_text("import sys, types\nsys.modules['of_the_next'] = types.ModuleType('of_the_next')\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests' / 'gpu' / 'by_hand' / 'timed'}:{site}", "PYTHONDONTWRITEBYTECODE": "1"}
    timed: dict[str, str] = {"FRAMEWORKS_TIMES": str(tmp_path / "times")}
    nothing: dict[str, str] = {}
    for variables in (nothing, timed):
        subprocess.run([sys.executable, "-c", TIMED_PROGRAM], env={**environment, **variables}, check=True, timeout=patience(60))
    lines = [json.loads(line) for line in (tmp_path / "times").read_text().splitlines()]
    assert [each["name"] for each in lines] == ["sleep", "return", "leave", "wake", "update", "return", "leave", "leave"]
    assert all(0 <= each["seconds"] < 10 and each["at"] > 1e9 for each in lines)


def test_what_a_step_spends_with_switching(tmp_path: pathlib.Path) -> None:
    """Of three steps, and of the first process of the engine and of the trainer."""
    frameworks = load(ROOT / "tests" / "gpu" / "by_hand" / "frameworks.py")
    assert frameworks.spent(tmp_path) == {}
    lines = [("wake", 1, 0.5, 50.0), ("sleep", 1, 1.0, 60.0), ("leave", 2, 2.0, 70.0)]
    for step in range(3):
        begin = 10.0 * (step + 1)
        lines += [("sleep", 1, begin, 0.25), ("return", 2, begin + 1, 0.5), ("return", 3, begin + 1, 9.0), ("return", 2, begin + 2, 0.5),
                  ("leave", 2, begin + 3, 0.25), ("wake", 1, begin + 5, 0.125), ("update", 2, begin + 4, 2.0 + step), ("wake", 1, begin + 6, 0.25)]
    (tmp_path / "times").write_text("".join(json.dumps({"name": name, "pid": pid, "at": at, "seconds": seconds}) + "\n"
                                            for name, pid, at, seconds in lines))
    assert frameworks.spent(tmp_path) == {"sleep": 0.25, "wake": 0.375, "leave": 0.25, "return": 1.0, "update": 2.5}
    run = of_run(frameworks, "trl", tmp_path / "one", [{"loss": 1.0, "step_time": 4.0}] * 2, tmp_path)
    assert (run["switched"], run["update"]) == (1.875, 2.5)
    text = frameworks.table({"plain 1": run})
    assert "| the trainer's memory returns, s | 1.0000 |" in text and "| their share of a step | 46.9 % |" in text


def test_a_frameworks_own_options_follow_two_dashes() -> None:
    options = load(ROOT / "tests" / "gpu" / "by_hand" / "frameworks.py").options_of(["verl", "--prefix", "here", "--", "trainer.steps=3", "--x"])
    assert (options.framework, str(options.prefix), options.more) == ("verl", "here", ["trainer.steps=3", "--x"])


TURNS = """turn 1: left in 9.000 s, GPU memory in use meanwhile: 600 MiB, returned in 8.000 s
turn 2: left in 0.300 s, GPU memory in use meanwhile: 700 MiB, returned in 0.200 s
turn 3: left in 0.400 s, GPU memory in use meanwhile: unknown, returned in 0.300 s
"""


@pytest.mark.parametrize("name, lines, other, what", [
    ("vllm", "answer: 1 2 3\n", "answer: 1 2 4\n", "answer"), ("sglang", "answer: w1 w2\n", "answer: w1\n", "answer"),
    ("jax", "step 20: loss 0.5\nstep 40: loss 0.25\n", "step 20: loss 0.5\nstep 40: loss 0.125\n", "loss")])
def test_what_frameworks_py_reads_of_turns(name: str, lines: str, other: str, what: str, tmp_path: pathlib.Path) -> None:
    frameworks = load(ROOT / "tests" / "gpu" / "by_hand" / "frameworks.py")
    one = frameworks.summary(name, tmp_path, LOG + lines + TURNS)
    assert (one["steps"], one["step"], one["sleep"], one["wake"], one["used"]) == (lines.count("\n"), None, pytest.approx(0.35), 0.25, 700)
    unlike = frameworks.summary(name, tmp_path, other)
    assert (unlike["sleep"], unlike["used"]) == (None, None)
    kinds = {"answer": "the answers", "loss": "the losses"}
    assert frameworks.verdict({"plain 1": one, "amem 1": one}) == [f"plain 1 and amem 1: {kinds[what]} are equal bit for bit"]
    said = frameworks.verdict({"plain 1": one, "plain 2": unlike, "amem 1": one})
    assert f"plain 1 and plain 2: {what} differ" in said
    assert [each for each in said if "in the last step" in each and "answer" in each] == []
    assert "| GPU memory in use while asleep or paused, MiB | 700 | – |" in frameworks.table({"plain 1": one, "amem 1": unlike})
