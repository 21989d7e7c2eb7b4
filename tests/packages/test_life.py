"""Packages are installed, upgraded, removed and installed again, on a node with groups and without. dpkg and rpm do it, with the scripts of
deploy/packages; programs and systemd are played (node_root.py)."""
import os
import shutil
import subprocess

import pytest
from node_root import SPEAKS, Node, Packages

OTHER = "session 99, holder 1, amem record 3"
OVERRIDE = "run/amem-may-lose-memory"
GROUPS = "run/fake/groups"
ALL = {"amemd.service", "amem-holder.socket", "amem-holder.service"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
                                reason="only root may enter another root, and not in a chroot")


@pytest.fixture(scope="module", params=["deb", "rpm"])
def packages(request, tmp_path_factory):
    needed = {"deb": ("dpkg", "dh_installsystemd", "deb-systemd-invoke"), "rpm": ("rpm", "rpmbuild")}[request.param]
    missing = [tool for tool in needed if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {missing[0]} here; deploy/deps.sh --dev installs it")
    return Packages(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def node(packages, tmp_path):
    node = Node(tmp_path, packages.kind, packages.folder)
    yield node
    node.close()


@pytest.fixture
def running(node, packages):
    """With version 1.0, which runs."""
    assert node.install(packages.files("1.0"))[0] == 0
    node.run("systemctl", "start", "amemd.service")
    assert node.active() == ALL
    node.calls()
    return node


# An RPM enables and starts nothing, and has no purge and no second chance after a failure.
deb = pytest.mark.parametrize("packages", ["deb"], indirect=True)


def both(version):
    return {"amemd": version, "libamem-shim": version}


def done(result):
    status, said = result
    assert status == 0 and "error" not in said, said
    return said


def refused(result, *words):
    status, said = result
    assert status != 0 and "nothing has changed" in said and OVERRIDE in said, said
    for word in words:
        assert word in said, said
    return said


def test_a_new_installation_is_enabled_and_started(node, packages):
    done(node.install(packages.files("1.0")))
    assert node.installed() == both("1.0")
    if packages.kind == "rpm":  # RHEL's presets decide
        assert node.calls("preset", "start") == ["preset amemd.service"]
    else:
        assert node.active() == ALL and node.run("systemctl", "is-enabled", "amemd.service")[1] == "enabled\n"


@pytest.mark.parametrize("groups", ["", "train\n"])
def test_an_upgrade_goes_through_and_restarts_nothing(running, packages, groups):
    running.write(GROUPS, groups)
    pid = running.pid()
    for version in ("2.0", "2.0", "1.0"):  # the same version once more, and an older one
        said = done(running.install(packages.files(version)))
        assert said.count("When it suits you: amemctl upgrade\n") == 1 and "restart" not in said, said
        assert running.installed() == both(version) and running.pid() == pid and running.active() == ALL
        assert not [call for call in running.calls("start", "stop", "restart", "disable") if call != "start amemd.service"]
        running.write("run/fake/calls")


def test_an_upgrade_to_one_that_does_not_speak_with_the_running_one_is_refused(running, packages):
    running.write(GROUPS, "train\nrollout\n")
    files, pid = packages.files("2.0", OTHER), running.pid()
    refused(running.install(files), "train rollout", SPEAKS, OTHER)
    assert running.installed() == both("1.0"), "the shim, too"
    assert running.path("usr/lib/amem/libamem_shim.so").read_text() == "1.0"
    assert running.pid() == pid and running.active() == ALL and not running.calls("stop", "restart")

    running.write(OVERRIDE)
    done(running.install(files))
    assert running.installed() == both("2.0") and running.pid() == pid
    assert not running.path(OVERRIDE).exists(), "it holds for one time"
    # It is the program that runs that counts, not its file, which is of 2.0 now.
    refused(running.install(packages.files("3.0", OTHER)), "train rollout")
    done(running.install(packages.files("1.0")))


def test_an_upgrade_to_one_that_speaks_otherwise_goes_through_without_groups(running, packages):
    done(running.install(packages.files("2.0", OTHER)))
    assert running.installed() == both("2.0")


def test_an_upgrade_mends_an_amemd_that_does_not_start(running, packages):
    """The holder has a group. The installed program is asked, since none runs."""
    running.write(GROUPS, "train\n")
    running.run("systemctl", "stop", "amemd.service")
    assert running.active() == ALL - {"amemd.service"}
    refused(running.install(packages.files("2.0", OTHER)), "amemd does not answer")
    done(running.install(packages.files("2.0")))
    assert "amem-holder.service" in running.active() and running.path(GROUPS).read_text() == "train\n"


def test_a_removal_stops_all(running):
    done(running.remove())
    assert running.installed() == {} and running.active() == set()
    assert not running.path("run/amem-holder").exists() and not running.path("run/amem").exists()


def test_a_removal_is_refused_while_there_are_groups(running):
    running.write(GROUPS, "train\n")
    refused(running.remove(), "train", "Wait for their jobs to end")
    assert running.installed() == both("1.0") and running.active() == ALL and not running.calls("stop", "disable")
    refused(running.remove("amemd"))
    assert running.run("systemctl", "is-enabled", "amemd.service")[1] == ("enabled\n" if running.kind == "deb" else "disabled\n")

    running.write(OVERRIDE)
    done(running.remove())
    assert running.installed() == {} and running.active() == set() and not running.path(OVERRIDE).exists()


def test_a_removal_asks_this_node(running):
    """Not the one that the administrator's shell is set to."""
    running.write(GROUPS, "train\n")
    command = ["dpkg", "--remove"] if running.kind == "deb" else ["rpm", "--force-debian", "-e"]
    refused(running.run(*command, "amemd", AMEM_ADDRESS="far:7070", AMEM_NODES="far:7070", AMEM_RUNTIME_DIR="/elsewhere"), "train")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_removal_is_refused_while_nobody_says_what_the_holder_has(running, stopped):
    running.write(GROUPS, "train\n")
    if stopped:
        running.run("systemctl", "stop", "amemd.service")
    else:
        running.write("run/fake/silent")
    refused(running.remove("amemd"), "amemd does not answer", "systemctl status")
    assert running.installed() == both("1.0") and {"amem-holder.socket", "amem-holder.service"} <= running.active()
    assert running.path(GROUPS).read_text() == "train\n"


def test_a_removal_goes_on_where_nothing_runs(running):
    running.run("systemctl", "stop", "amemd.service")
    assert running.active() == {"amem-holder.socket"}
    done(running.remove())
    assert running.installed() == {} and running.active() == set()


def test_nothing_is_refused_where_no_systemd_runs(running, packages):
    """In the build of an image, or in a chroot."""
    running.write(GROUPS, "train\n")
    running.path("run/systemd/system").rmdir()
    running.calls()
    done(running.install(packages.files("2.0", OTHER)))
    done(running.remove())
    assert running.installed() == {} and not running.calls("start", "stop", "restart")


def test_one_that_was_removed_and_installed_again_runs(running, packages):
    done(running.remove())
    running.calls()
    said = done(running.install(packages.files("1.0")))
    assert "amemctl upgrade" not in said and running.installed() == both("1.0")
    if packages.kind == "deb":
        assert running.active() == ALL
    else:
        assert running.calls("preset") == ["preset amemd.service"]


@deb
def test_what_the_administrator_has_disabled_or_masked_stays_so(running, packages):
    for state, how in (("disabled", ("disable", "--now", "amemd.service")), ("masked", None)):
        if how:
            running.run("systemctl", *how)
        else:
            running.path("etc/systemd/system/amemd.service").symlink_to("/dev/null")
        for _ in ("upgrade", "reinstallation"):
            said = done(running.install(packages.files("2.0")))
            assert running.run("systemctl", "is-enabled", "amemd.service")[1] == state + "\n"
            assert "amemd.service" not in running.active() and "does not run yet" not in said
            done(running.remove())


@deb
def test_one_that_cannot_start_says_so(node, packages):
    node.write("run/fake/no-driver")
    assert "the service does not run yet: 'journalctl -u amemd' says why" in done(node.install(packages.files("1.0")))
    done(node.remove())


@deb
@pytest.mark.parametrize("what", ["abort-remove", "abort-upgrade", "abort-deconfigure"])
def test_what_was_called_off_runs_again(running, packages, what):
    """dpkg calls it when a removal or an upgrade fails after prerm."""
    scripts = "/var/lib/dpkg/info/amemd"
    for script, *arguments in ((f"{scripts}.prerm", "remove"), (f"{scripts}.postinst", what, "1.0-1")):
        assert running.run(script, *arguments, DPKG_MAINTSCRIPT_PACKAGE="amemd")[0] == 0
        assert running.active() == (set() if arguments == ["remove"] else ALL)


@deb
def test_a_purge_takes_the_settings(running, packages):
    running.write(GROUPS, "train\n")
    refused(running.run("dpkg", "--purge", "amemd"), "train")
    running.write(GROUPS)
    done(running.run("dpkg", "--purge", "amemd", "libamem-shim"))
    left = running.run("find", "/etc", "/run", "/usr/lib/systemd", "/var/lib/systemd", "-name", "*amem*")[1]
    assert not left, left


@pytest.mark.parametrize("groups", ["", "train\n"])
def test_an_upgrade_from_0_1_0(node, packages, groups):
    done(node.install(packages.files("0.1.0")))
    node.run("systemctl", "start", "amemd.service")
    node.write(GROUPS, groups)
    pid = node.pid()
    refused(node.install(packages.files("2.0", OTHER)), "train") if groups else None
    said = done(node.install(packages.files("2.0")))
    assert "amemctl upgrade, and then: systemctl restart amem-holder.socket amem-holder.service\n" in said, said
    assert node.pid() == pid and node.active() == ALL and not [call for call in node.calls("restart", "stop") if "amem" in call]
    # What it says: after that the holder is at its new place.
    node.run("systemctl", "restart", "amem-holder.socket", "amem-holder.service")
    assert node.path("run/amem-holder/holder.sock").is_socket()
    assert "When it suits you: amemctl upgrade\n" in done(node.install(packages.files("3.0")))


def test_the_holders_socket_of_0_1_0_moves_at_once_if_no_holder_runs(node, packages):
    done(node.install(packages.files("0.1.0")))
    node.run("systemctl", "start", "amem-holder.socket")
    node.run("systemctl", "stop", "amemd.service")
    assert node.active() == {"amem-holder.socket"} and not node.path("run/amem-holder").exists()
    done(node.install(packages.files("2.0")))
    assert node.path("run/amem-holder/holder.sock").is_socket()


@pytest.mark.skipif(shutil.which("logrotate") is None, reason="no logrotate here")
def test_logrotate_has_amemd_open_a_new_log(running):
    running.write("var/log/amem/amemd.log", "a line\n")
    status, said = running.run("logrotate", "--force", "/etc/logrotate.d/amemd")
    assert status == 0, said
    assert running.calls("kill") == ["kill amemd.service"]
    assert [path.name for path in running.path("var/log/amem").iterdir()] == ["amemd.log.1"]
