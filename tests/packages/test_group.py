"""The package's scripts and the group amem: what they make they remove, and what was there stays."""
import os
import pathlib
import shutil
import subprocess

import pytest
from node_root import DEPLOY, call

# In the place of what the scripts call: the first two change $DPKG_ROOT/etc/group, the others do nothing.
TOOLS = {
    "systemd-tmpfiles": "",
    "systemd-sysusers": "grep -q '^amem:' \"$DPKG_ROOT/etc/group\" || echo amem:x:999: >>\"$DPKG_ROOT/etc/group\"",
    "groupdel": "sed -i /^amem:/d \"$DPKG_ROOT/etc/group\"",
    "deb-systemd-helper": "",
    "deb-systemd-invoke": "",
    "systemctl": "",
}


pytestmark = pytest.mark.skipif(shutil.which("dh_installsystemd") is None, reason="no debhelper here; deploy/deps.sh installs it")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    for name in ("amemd", "amem-holder", "amem-driver"):
        shutil.copy(DEPLOY / f"{name}.service.in", folder / f"{name}.service")
    call(DEPLOY / "packages/scripts.sh", "deb", folder, folder / "made")
    return folder / "made/amemd"


@pytest.fixture
def package(tmp_path, scripts):
    (tmp_path / "scripts").symlink_to(scripts)
    (tmp_path / "tools").mkdir()
    (tmp_path / "root" / "etc").mkdir(parents=True)
    for name, does in TOOLS.items():
        tool = tmp_path / "tools" / name
        tool.write_text(f"#!/bin/sh\n{does}\n")
        tool.chmod(0o755)
    return tmp_path


def run(package, script, *arguments):
    environment = {"PATH": f"{package}/tools:{os.environ['PATH']}", "DPKG_ROOT": str(package / "root")}
    subprocess.run(["sh", pathlib.Path(package, "scripts", script), *arguments], check=True, env=environment, timeout=60)


def life(package):
    """Installed, upgraded, removed and purged; what of each group is there then, and what files."""
    run(package, "postinst", "configure", "")
    assert "amem:" in (package / "root/etc/group").read_text()
    run(package, "postinst", "configure", "0.1.0")
    run(package, "prerm", "remove")
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
