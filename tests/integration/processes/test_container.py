"""What root in a job's container can do, which has amemd's uid and no capabilities: each sentence of docs/security.md, "Root in a container"."""
import os
import shutil
import sys

import pytest

from sim_node import NOBODY, Broker, Child, as_user, eventually
from sim_node.container import in_container, only_the_runtime_directory, possible

pytestmark = pytest.mark.skipif(not possible(), reason="this machine allows no namespaces")

TRIES = int(os.environ.get("AMEM_TEST_CONTAINER_TRIES", "12"))

# Says what came of all its attempts when it is told to end.
KNOCK = """
import collections, json, os, select, socket, struct, sys
HELLO, LIST, WELCOME = 1, 4, 16
def greet(client):
    try:
        client.send(struct.pack("=HHIQ", HELLO, 0, 0, 1))
    except BrokenPipeError:
        pass  # it has refused already, and its reason is there to read
    while True:
        try:
            return client.recv(4096)
        except ConnectionResetError:
            pass  # the same: read again, and its reason comes
said, descriptors = collections.Counter(), 0
print(json.dumps([os.path.isdir(os.path.dirname(path)) for path in sys.argv[1:]]), flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for path in sys.argv[1:]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(10)
            try:
                client.connect(path)
                answer = greet(client)
                if answer and struct.unpack_from("=H", answer)[0] == WELCOME:
                    client.send(struct.pack("=HHIQ", LIST, 0, 0, 7))
                    descriptors += len(socket.recv_fds(client, 4096, 253)[1])
            except OSError as error:
                said[type(error).__name__] += 1
                continue
            kind, detail = struct.unpack_from("=H2xI", answer) if answer else (0, 0)
            said[f"{kind}/{detail}"] += 1
print(json.dumps({"said": said, "descriptors": descriptors}), flush=True)
"""
REFUSED_AS_A_CONTAINER, REFUSED_BESIDE_ANOTHER = "17/5", "17/2"


def ends(knocker):
    knocker.send("end")
    answer = knocker.json_line()
    print(answer)
    return answer["said"], answer["descriptors"]


# What a job's pod mounts; and as if somebody had mounted all of the node's folders into it.
@pytest.mark.parametrize("sees", ["the runtime directory", "everything"])
def test_it_gets_nothing_while_amemd_restarts_and_is_upgraded(bare_node, installed, sees):
    node = bare_node
    paused, running = node.job(), node.job("rollout")
    node.ctl("pause", "train")
    seen = only_the_runtime_directory(node) if sees == "the runtime directory" else ""
    knocker = in_container(node, "knocker", sys.executable, "-c", KNOCK, node.holder_socket, os.path.join(node.runtime_dir, "holder.sock"),
                           mounts=seen)
    assert knocker.json_line() == [sees == "everything", True], "the folders of the two sockets"
    for turn in range(TRIES):
        if turn % 2 == 0:
            node.broker.kill()
            node.start_broker(name=f"amemd{turn}", program=installed)
        else:
            shutil.copy(installed, installed + ".copy")
            os.rename(installed + ".copy", installed)
            node.ctl("upgrade")
        eventually(lambda: node.ctl.state("train") == "paused", what="the paused group is taken up")
        eventually(lambda: node.ctl.state("rollout") == "running", what="the running group is taken up")
    said, descriptors = ends(knocker)
    assert descriptors == 0
    if sees == "everything":
        assert said.pop(REFUSED_AS_A_CONTAINER) > TRIES, "it was there all the time"
    assert set(said) <= {"FileNotFoundError", "ConnectionRefusedError"}, said
    node.ctl("resume", "train")
    paused.check()
    running.check()


def test_while_it_keeps_a_connection_the_next_amemd_gets_what_is_its_own(bare_node):
    """Also one that connected before amemd did, and says nothing."""
    node = bare_node
    keeps = KNOCK.replace("client.settimeout(10)", "client.settimeout(10); kept.append(client.dup())").replace("said, desc", "kept = collections.deque(maxlen=500)\nsaid, desc", 1)
    node.start_broker()
    job = node.job()
    node.ctl("pause", "train")
    knocker = in_container(node, "knocker", sys.executable, "-c", keeps, node.holder_socket)
    assert knocker.json_line() == [True]
    node.broker.kill()
    node.start_broker(name="next")
    eventually(lambda: node.ctl.state("train") == "paused", what="the group is taken up")
    assert ends(knocker)[1] == 0
    node.ctl("resume", "train")
    job.check()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_the_holders_folder_is_closed_to_other_users(bare_node):
    node = bare_node
    node.start_broker()
    folder = os.path.dirname(node.holder_socket)
    for each, mode in ((folder, 0o700), (node.runtime_dir, 0o755)):
        assert os.stat(each).st_mode & 0o777 == mode
    stranger = node.adopt(Child("stranger", [*as_user(NOBODY), "ls", folder], node.env(), node.log_file("stranger")))
    assert stranger.wait() != 0 and "Permission denied" in stranger.output()


def test_in_amemds_pid_namespace_it_is_not_told_apart_from_amemd(bare_node):
    """So hostPID is for pods that may do what root of the node may do. Here it is refused because amemd is connected."""
    node = bare_node
    node.start_broker()
    knocker = in_container(node, "knocker", sys.executable, "-c", KNOCK, node.holder_socket, host_pid=True)
    assert knocker.json_line() == [True]
    eventually(lambda: f"already serves pid {node.broker.pid}" in open(node.broker.log_path).read(), what="the holder has refused it")
    said, descriptors = ends(knocker)
    assert descriptors == 0 and REFUSED_BESIDE_ANOTHER in said and REFUSED_AS_A_CONTAINER not in said


def test_it_does_not_replace_a_socket_in_a_folder_that_is_mounted_read_only(bare_node):
    node = bare_node
    node.start_broker()
    path = os.path.join(node.runtime_dir, "session.sock")
    mover = in_container(node, "mover", "mv", path, path + ".away", mounts=only_the_runtime_directory(node))
    assert mover.wait() != 0 and "Read-only file system" in mover.output()
    assert os.path.exists(path)


@pytest.mark.parametrize("isolation", ["uid", "userns"])
def test_it_is_an_operator_where_uids_tell_owners_apart(bare_node, isolation):
    """So it is in no user namespace of its own; one that has one is another owner (integration.owners)."""
    node = bare_node
    node.start_broker("--isolation-by", isolation)
    node.job()
    asks = in_container(node, "asks", node.build.program("amemctl"), "groups", "-o", "name", mounts=only_the_runtime_directory(node))
    assert asks.wait() == 0, asks.output()
    assert asks.output("out").split() == ["train"]


@pytest.mark.parametrize("host_pid", [False, True])
def test_a_holder_without_capabilities_in_a_container_serves_amemd(bare_node, host_pid):
    """Also one that does not see amemd, as with hostPID: false. Then only the holder's folder keeps others out."""
    node = bare_node
    holder = in_container(node, "holder", node.build.program("amem-holder"), "--stay", "--socket", node.holder_socket, host_pid=host_pid)
    holder.wait_for("serves")
    node.start_broker("--holder", "external")
    job = node.job()
    node.ctl("pause", "train")
    node.broker.kill()
    node.start_broker("--holder", "external", name="next")
    eventually(lambda: node.ctl.state("train") == "paused", what="both ranks have reconnected")
    node.ctl("resume", "train")
    job.check()


def test_a_path_that_is_too_long_for_a_socket_is_named(bare_node):
    node = bare_node
    node.runtime_dir = os.path.join(node.dir, "r" * (107 - len("-holder/holder.sock") - len(node.dir)))  # with the slash one too many
    broker = node.adopt(Broker(node))
    assert broker.wait() != 0
    assert "Set holder_socket to a shorter path" in broker.output()
    node.start_broker("--holder-socket", os.path.join(node.dir, "held", "holder.sock"), name="shorter")
    node.job().check()
