"""amemctl doctor: what it says of a command is what becomes of it."""
import json
import os
import shutil
import subprocess

import pytest

from sim_node import NOBODY, as_user, patience


def doctor(node, *command, env=None, options=("--group", "train", "--scope", "heap"), run=()):
    argv = [*run, node.build.program("amemctl"), "doctor", "--json", *options, "--", *command]
    done = subprocess.run(argv, env=node.env(env), capture_output=True, text=True, timeout=patience(30))
    answer = json.loads(done.stdout)
    blocking = [each["check"] for each in answer["findings"] if each["blocks"]]
    assert answer["brokered"] == (not blocking)
    assert done.returncode == (1 if blocking else 0), done
    assert all(each["what"] and each["why"] and each["remedy"] for each in answer["findings"])
    return answer, blocking


def test_a_program_that_is_brokered(node):
    heap = node.build.program("amem-workload")
    answer, blocking = doctor(node, heap)
    assert blocking == []
    assert (answer["program"], answer["group"], answer["scope"]) == (heap, "train", "heap")
    assert answer["runtime_dir"] == node.runtime_dir
    assert node.ctl.status()["groups"] == []  # looking makes no rank
    puppet = node.puppet(scope="heap")  # and so it is
    puppet.ask("plain 3000000")
    assert node.ctl.group("train")["resident_bytes"] >= 3000000
    puppet.leave()


@pytest.mark.parametrize("whole", [False, True])
def test_torch_memory_savers_hook_library(node, tmp_path, whole):
    lib = os.path.join(node.build.directory, "lib")
    hook = tmp_path / "torch_memory_saver_hook_mode_preload.abi3.so"
    shutil.copy(os.path.join(lib, "libamem_shim.so"), hook)
    env = {"LD_PRELOAD": str(hook), "NCCL_CUMEM_ENABLE": "0", "TMS_INIT_ENABLE": "1" if whole else None}
    answer, blocking = doctor(node, "sh", env=env, options=())
    assert (blocking, answer["group"], answer["scope"]) == ([], "tms-PID-NUMBER", "heap" if whole else "regions")
    answer, _ = doctor(node, "sh", env={**env, "AMEM_GROUP": "train", "AMEM_SCOPE": "nccl"}, options=())
    assert (answer["group"], answer["scope"]) == ("train", "nccl")
    # A run leaves out what would be a second shim, and nothing else.
    original = tmp_path / "original" / hook.name
    original.parent.mkdir()
    original.write_bytes(b"the original's")
    run = subprocess.run([*node.launcher("train"), "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True,
                         env=node.env({"LD_PRELOAD": f"{hook}:{original}"}), timeout=patience(30))
    assert run.stdout.strip().split(":")[1:] == [str(original)]


def test_within_a_run(node):
    answer, blocking = doctor(node, "sh", "-c", "exit", options=(), run=node.launcher("inner"))
    assert (blocking, answer["group"], answer["scope"]) == ([], "inner", "nccl")
    assert doctor(node, "sh", options=())[1] == ["shim-missing"]


@pytest.mark.parametrize("env", [{"AMEM_DISABLE": "1"}, {"AMEM_ENABLE": "0"}])
def test_turned_off(node, env):
    assert doctor(node, "sh", env=env)[1] == ["disabled"]
    puppet = node.puppet(scope="heap", env=env)
    puppet.ask("plain 3000000")
    assert node.ctl.status()["groups"] == []
    puppet.leave()


def test_another_interposer_first(node):
    lib = os.path.join(node.build.directory, "lib")
    other = os.path.join(lib, "libpuppet_interposer.so")
    preload = f"LD_PRELOAD={other}:{lib}/libamem_shim.so"
    answer, blocking = doctor(node, "env", preload, node.build.program("amem-puppet"))
    assert blocking == []
    [finding] = answer["findings"]
    assert finding["check"] == "interposer" and other in finding["what"] and "cuMemAlloc" in finding["what"]


def test_without_a_broker(bare_node):
    answer, blocking = doctor(bare_node, "sh")
    assert blocking == ["broker"]
    assert f"{bare_node.runtime_dir}/session.sock" in answer["findings"][0]["remedy"]


def test_an_empty_environment(node):
    assert doctor(node, "env", "-i", "AMEM_RUNTIME_DIR=" + node.runtime_dir, "/bin/sh")[1] == ["shim-missing"]


def test_a_broker_of_another_user(node):
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    nobody = node.ctl.by(as_user(NOBODY))

    def findings():
        told = nobody.try_("doctor", "--group", "train", "--", "/bin/sh").json["findings"]
        return {each["check"]: each for each in told if each["blocks"]}

    # Root's broker serves everybody; a user's serves himself only.

    assert findings() == {}
    socket = os.path.join(node.runtime_dir, "session.sock")
    os.chmod(socket, 0o600)
    assert "may not open" in findings()["broker"]["remedy"]


def test_usage(node):
    for arguments in (["doctor", "--group", "train"], ["doctor", "--"], ["doctor", "--scope", "heap", "--", "sh"]):
        done = subprocess.run([node.build.program("amemctl"), *arguments], env=node.env(), capture_output=True, text=True,
                              timeout=patience(20))
        assert done.returncode == 2 and done.stdout == "", done
