"""The package's scripts and the group amem: what they make they remove, and what was there stays."""
import os
import subprocess

import pytest

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "packages", "control", "amemd")
# In the place of what the scripts call: the first two change $DPKG_ROOT/etc/group, the others do nothing.
TOOLS = {
    "systemd-sysusers": "grep -q '^amem:' \"$DPKG_ROOT/etc/group\" || echo amem:x:999: >>\"$DPKG_ROOT/etc/group\"",
    "groupdel": "sed -i /^amem:/d \"$DPKG_ROOT/etc/group\"",
    "deb-systemd-helper": "",
    "deb-systemd-invoke": "",
    "systemctl": "",
}


@pytest.fixture
def package(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "root" / "etc").mkdir(parents=True)
    for name, does in TOOLS.items():
        tool = tmp_path / "tools" / name
        tool.write_text(f"#!/bin/sh\n{does}\n")
        tool.chmod(0o755)
    return tmp_path


def run(package, script, *arguments):
    environment = {"PATH": f"{package}/tools:{os.environ['PATH']}", "DPKG_ROOT": str(package / "root")}
    subprocess.run(["sh", os.path.join(SCRIPTS, script), *arguments], check=True, env=environment, timeout=60)


def life(package):
    """Installed, upgraded, removed and purged; what of each group is there then, and what files."""
    run(package, "postinst", "configure", "")
    assert "amem:" in (package / "root/etc/group").read_text()
    run(package, "postinst", "configure", "0.1.0")
    run(package, "postrm", "remove")
    assert "amem:" in (package / "root/etc/group").read_text(), "a removal that is no purge leaves it"
    run(package, "postrm", "purge")
    files = [str(path.relative_to(package / "root")) for path in (package / "root").rglob("*") if path.is_file()]
    return (package / "root/etc/group").read_text(), files


def test_a_group_that_the_installation_made_goes_with_it(package):
    (package / "root/etc/group").write_text("root:x:0:\n")
    assert life(package) == ("root:x:0:\n", ["etc/group"])


def test_a_group_that_was_there_stays(package):
    (package / "root/etc/group").write_text("root:x:0:\namem:x:1234:alice\n")
    assert life(package) == ("root:x:0:\namem:x:1234:alice\n", ["etc/group"])
