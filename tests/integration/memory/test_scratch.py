"""What of NCCL's receive buffers need not travel (AMEM_NCCL_SCRATCH)."""
import pytest

from sim_node import Program

MIB = 1 << 20
# What is sent and not received in each of the buffers.
AHEAD = ("", "late", "simple", "ll", "ll128")


def program_with(node, scratch, env=None):
    # On a small device slabs would be smaller than these buffers.
    program = Program(node, scope="nccl", env={"AMEM_NCCL_SCRATCH": scratch, "AMEM_SLAB": "16", **(env or {})})
    for each in AHEAD:
        program.ask(f"fifo 0 {each}".rstrip())
    return program


def saved(node):
    return node.ctl.group("train")["saved_bytes"]


def test_it_comes_back_spoilt_in_a_proof_run_and_nothing_else_does(node):
    program = program_with(node, "prove")
    assert "for proof runs only" in program.wait_for("warning: AMEM_NCCL_SCRATCH=prove")
    for _ in range(3):
        node.ctl("pause", "train")
        # Three buffers of 2.3 MiB, of which the sender is ahead, and of the others the counters.
        assert 6.5 * MIB < saved(node) < 7.5 * MIB
        node.ctl("resume", "train")
        answer = program.ask("fifos")
        assert set(answer["counters"]) == {"kept"}
        assert answer["ll"] == ["spoilt", "kept", "kept", "kept", "kept"]
        assert answer["rest"] == ["spoilt", "spoilt", "kept", "kept", "kept"]


@pytest.mark.parametrize("policy", ("keep", "drop"))
def test_it_travels_where_it_is_not_asked_for_or_not_proven(node, policy):
    program = program_with(node, policy)
    node.ctl("pause", "train")
    assert saved(node) >= 11 * MIB
    node.ctl("resume", "train")
    answer = program.ask("fifos")
    assert set(answer["counters"]) == set(answer["ll"]) == set(answer["rest"]) == {"kept"}
    refused = [line for line in program.rest() if "nobody has proven" in line]
    assert len(refused) == (policy == "drop") and all("does not say its version" in line for line in refused)


def test_amems_variable_asks_for_it(node):
    program = Program(node, scope="nccl", env={"AMEM_NCCL_OFFLOAD_FREE_TAG": "7"})
    program.ask("fifo 0")
    assert "nobody has proven" in program.wait_for("warning: AMEM_NCCL_SCRATCH=drop")


@pytest.mark.parametrize("call, said", (("cuMemcpyDtoHAsync", "reading NCCL's tables on device 0"),
                                        ("cuLaunchKernel", "a look at memory on device 0")))
def test_tables_that_cannot_be_read_drop_nothing(node, call, said):
    program = program_with(node, "prove")
    program.faults(f"{call}:1")
    node.ctl("pause", "train")
    assert "saves all of NCCL's buffers" in program.wait_for(said)
    program.faults()
    node.ctl("resume", "train")
    assert set(program.ask("fifos")["rest"]) == {"kept"}
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    assert program.ask("fifos")["rest"][:2] == ["spoilt", "spoilt"]


def test_a_buffer_that_nobody_has_access_to_yet(node):
    """A pause comes while NCCL makes one, the first in its slab: what is found elsewhere is dropped all the same."""
    program = Program(node, scope="nccl", env={"AMEM_NCCL_SCRATCH": "prove"})
    program.ask("fifo 0")
    for device in (0, 1):
        program.ask(f"nccl_begun {device} {64 << 10}")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    assert program.ask("fifos")["rest"] == ["spoilt"]
    assert not [line for line in program.rest() if "saves all of NCCL's buffers" in line]


def test_a_pause_that_is_called_off_has_changed_nothing(bare_node):
    bare_node.start_broker("--pool-size", "2MiB", "--pool-segment", "2MiB")
    program = program_with(bare_node, "prove")
    assert bare_node.ctl.try_("pause", "train").code != 0
    assert bare_node.ctl.state("train") == "running"
    assert set(program.ask("fifos")["rest"]) == {"kept"}


def test_with_checksums_of_all_bytes_nothing_is_dropped(node):
    program = program_with(node, "prove", env={"AMEM_VERIFY": "1"})
    assert "AMEM_VERIFY=1 compares all bytes" in program.wait_for("warning: AMEM_NCCL_SCRATCH")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    assert set(program.ask("fifos")["rest"]) == {"kept"}


def test_several_devices_and_a_pool_that_is_too_small_for_all_bytes(bare_node):
    bare_node.start_broker("--pool-size", "8MiB", "--pool-segment", "2MiB")
    program = Program(bare_node, scope="nccl", env={"AMEM_NCCL_SCRATCH": "prove"})
    for device in (0, 1):
        program.ask(f"fifo {device} none 2")
    bare_node.ctl("pause", "train")
    bare_node.ctl("resume", "train")
    answer = program.ask("fifos")
    assert answer["rest"] == answer["ll"] == ["spoilt"] * 4 and set(answer["counters"]) == {"kept"}
