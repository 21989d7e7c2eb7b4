"""Stages that make no sense: amemd does not start, and says why."""
import os
import subprocess

import pytest


@pytest.fixture
def refusal(bare_node):
    """What an amemd with this configuration prints, and its exit status."""
    def ask(text, *flags):
        path = os.path.join(bare_node.dir, "amemd.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run([bare_node.build.program("amemd"), "--config", path, "--runtime-dir", bare_node.runtime_dir, "--pool-size", "16MiB", *flags],
                              env=bare_node.env(), capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr
    return ask


@pytest.mark.parametrize("text, status, error", [
    ("[stage.a]\ndevices = [0]\n[stage.b]\ndevices = [1, 0]", 2, "stage.b.devices: GPU 0 is in stage 'a', too"),
    ("[stage.a]\ndevices = [0]\npolicy = \"fair\"", 2, "stage.a.policy: \"fair\" is not one of lease demand slice"),
    ("[stage.a]\nidle = \"1s\"", 2, "stage.a.devices: name at least one GPU"),
    ("[stage.a]\ndevices = [7]", 1, "stage.a.devices: this node has no GPU 7. It has 0 (GPU-"),
    ("[stage.a]\ndevices = [0]\nusers = [\"no-such-user\"]", 2, "stage.a.users: there is no user 'no-such-user'"),
    ("[stage.a]\ndevices = [0]\ngroups = [\"no-such-group\"]", 2, "stage.a.groups: there is no group 'no-such-group'"),
    ("[stage.a]\ndevices = [0]\nmargin = \"1TiB\"", 1, "stage.a: the margin of 1 TiB leaves nothing"),
])
def test_wrong_stages(refusal, text, status, error):
    code, said = refusal(text)
    assert code == status and error in said


def test_one_gpu_by_its_number_and_by_its_uuid(refusal, bare_node):
    bare_node.start_broker()
    uuid = bare_node.ctl.devices()[0]["uuid"]
    assert bare_node.broker.terminate() == 0
    code, said = refusal(f"[stage.a]\ndevices = [0]\nmargin = \"1MiB\"\n[stage.b]\ndevices = [\"{uuid}\"]")
    assert code == 1
    assert f"stage.b.devices: GPU {uuid} is in stage 'a', too. A GPU can be in one stage" in said

