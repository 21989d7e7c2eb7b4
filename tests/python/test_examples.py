"""examples/: the commands of the READMEs, with stand-ins for python3 and amemctl; and what frameworks.py reads of the frameworks."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import types
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import pasted  # noqa: E402
from sim_node.child import patience  # noqa: E402

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
                 ["-m", "amem.ray", "run", "--group", "RolloutRayActor=engine{number}:heap", "--group", "*ModelActor=trainer:heap"]),
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


# ---- tests/gpu/by_hand/frameworks.py ----
LOG = """(pid=1) INFO 11-27 GPU KV cache size: 1,234,560 tokens
(pid=1) INFO 11-27 It took 0.500000 seconds to fall asleep.
(pid=1) \x1b[36mINFO\x1b[0m It took 0.100000 seconds to wake up tags ['weights'].
(pid=1) INFO 11-27 It took 0.050000 seconds to wake up tags ['kv_cache'].
(pid=1) INFO 11-27 It took 0.250000 seconds to fall asleep.
"""
STEPS = [{"rollout/reward_mean": 0.5, "policy_loss": -0.25, "actor_grad_norm": 1.5, "timing/step_total": 4.0, "timing/broadcast": 0.5},
         {"rollout/reward_mean": 0.625, "policy_loss": -0.125, "actor_grad_norm": 1.25, "timing/step_total": 2.0, "timing/broadcast": 0.25}]


def of_run(frameworks: Any, name: str, folder: pathlib.Path, steps: list[dict[str, float]]) -> Any:
    """What it reads of a run of this framework, which has written these numbers in its own way."""
    folder.mkdir()
    log = LOG
    if name == "openrlhf":
        log += "".join(f"(PPOTrainer pid=2) INFO ✨ Global step {at + 1}: {step}\n" for at, step in enumerate(steps))
    elif name == "verl":
        (folder / "verl.jsonl").write_text("".join(json.dumps({"step": at, "data": step}) + "\n" for at, step in enumerate(steps)))
    else:
        state = folder / "trl" / "checkpoint-2" / "trainer_state.json"
        state.parent.mkdir(parents=True)
        state.write_text(json.dumps({"log_history": [*steps, {"train_runtime": 3.0}]}))
    return frameworks.summary(name, folder, log)


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
    assert (one["steps"], one["step"], one["cache_tokens"], one["sleep"], one["wake"]) == (2, 2.0, 1234560, 0.25, 0.05)
    assert one["switched"] == pytest.approx(0.45) and one["update"] == (None if name == "trl" else 0.25)
    assert all(len(step) == 3 for step in one["compared"])
    other = [steps[0], {**steps[1], names.get("policy_loss", "policy_loss"): -0.1250000001}]
    two = of_run(frameworks, name, tmp_path / "two", other)
    runs = {"plain 1": one, "plain 2": one, "amem 1": one}
    assert frameworks.verdict(runs) == [f"plain 1 and {each}: rewards, losses and gradient norms are equal bit for bit"
                                        for each in ("plain 2", "amem 1")]
    assert f"plain 1 and amem 1: {names.get('policy_loss', 'policy_loss')} differ" in frameworks.verdict({**runs, "amem 1": two})
    assert any("in the last step: without amem" in each for each in frameworks.verdict({"plain 1": one, "plain 2": two, "amem 1": one}))
    assert "| projected to a step of 10 s | 4.5 % |" in frameworks.table({"plain 1": one})
