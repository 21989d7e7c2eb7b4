"""Which device is idle in a pause: one whose work has ended. One that the driver refuses to wait for is not."""
import re
import time

import pytest

BUSY = 2500  # ms


@pytest.fixture
def puppet(node):
    puppet = node.puppet()
    block = puppet.ask("alloc 3000000")["id"]
    puppet.ask(f"fill {block} 7")
    yield puppet
    puppet.ask(f"verify {block} 7")
    puppet.ask(f"free {block}")
    puppet.leave()


def test_a_pause_waits_for_a_capture_of_cuda_10_0(node, puppet):
    puppet.ask("capture begin")
    answer = node.ctl.try_("pause", "train", "--timeout", "500ms")
    assert answer.code == 6, answer
    assert "is capturing a stream" in answer.error, answer.error
    assert node.ctl.state("train") == "running"
    assert puppet.ask("capture end")["result"] == 0, "the pause has broken it"
    node.ctl("pause", "train")
    node.ctl("resume", "train")


@pytest.mark.parametrize("code, name, advice", [(2, "CUDA_ERROR_OUT_OF_MEMORY (2)", "restart the process"),
                                                (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)",
                                                 "end the stream capture that amem does not see")])
def test_a_device_that_cannot_be_waited_for_is_busy(node, puppet, code, name, advice):
    puppet.ask(f"busy {BUSY}")
    puppet.faults(f"cuCtxSynchronize:*:{code}")
    answer = node.ctl.try_("pause", "train", "--timeout", "600ms")
    assert answer.code == 6, answer
    assert name in answer.error and advice in answer.error and "rank 0" in answer.error, answer.error
    assert re.search("has work running on GPU-", answer.error), answer.error
    assert node.ctl.state("train") == "running"
    told = [line for line in puppet.rest() if name in line]
    assert len(told) == 1, "once, not at each try"
    puppet.faults()


def test_the_wait_for_a_device_is_tried_again(node, puppet):
    puppet.ask(f"busy {BUSY}")
    began = time.monotonic()
    puppet.faults("cuCtxSynchronize:1:2")
    node.ctl("pause", "train")
    assert time.monotonic() - began > 0.9 * BUSY / 1000, "the device had work"
    puppet.faults()
    node.ctl("resume", "train")


def test_a_context_that_a_fault_has_ended_is_idle(node, puppet):
    puppet.faults("cuCtxSynchronize:*:700")
    node.ctl("pause", "train", "--timeout", "5s")
    puppet.faults()
    node.ctl("resume", "train")
