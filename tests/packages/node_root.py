"""A root in which packages are installed: this machine's files below, and what changes in memory, gone at the end. No systemd runs in it;
fake_systemctl.py takes its place. The packages have the scripts of deploy/packages and programs of a line."""
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
DEPLOY = HERE.parents[1] / "deploy"
SPEAKS = (DEPLOY / "kubernetes/amem/files/speaks").read_text(encoding="utf-8").strip()
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Folders in the overlay that begin empty.
EMPTY = ("run", "var/lib/dpkg", "var/lib/rpm", "var/lib/systemd")
AMEMD = """#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) { if (argc > 1) puts(SPEAKS); else for (;;) pause(); return argv == 0; }
"""
AMEMCTL = """#!/bin/sh
# amemctl --runtime-dir /run/amem … groups -o name
case $* in "--runtime-dir /run/amem "*" groups -o name") ;; *) exit 2 ;; esac
if [ -n "$AMEM_ADDRESS$AMEM_NODES" ]; then echo of-another-node; exit 0; fi
[ -e /run/fake/amemd.service ] && [ ! -e /run/fake/silent ] || exit 3
cat /run/fake/groups 2>/dev/null || :
"""
# In the place of what is slow, or would change this machine's users.
TOOLS = {"sleep": "", "systemd-sysusers": "", "systemd-tmpfiles": "", "groupdel": "",
         "systemd-update-helper": """case $1 in
  install-system-units) shift; systemctl --no-reload preset "$@" ;;
  remove-system-units) shift; now=; [ ! -d /run/systemd/system ] || now=--now; systemctl --no-reload disable $now "$@" ;;
esac"""}


def call(*command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


class Packages:
    """Makes packages, each once: files("2.0") are those of libamem-shim and amemd, in this order."""

    def __init__(self, folder, kind):
        self.folder, self.kind, self.made = folder, kind, {}

    def files(self, version, speaks=SPEAKS):
        if (version, speaks) not in self.made:
            folder = self.folder / f"{len(self.made)}-{version}"
            self._contents(folder / "amemd", version, speaks)
            (folder / "libamem-shim/usr/lib/amem").mkdir(parents=True)
            (folder / "libamem-shim/usr/lib/amem/libamem_shim.so").write_text(version)
            scripts = HERE / "released" / version / self.kind
            if not scripts.exists():
                scripts = folder / "scripts"
                call(DEPLOY / "packages/scripts.sh", self.kind, folder / "amemd/usr/lib/systemd/system", scripts)
                for script in scripts.rglob("p*"):  # as one of an amemd that speaks so
                    script.write_text(script.read_text(encoding="utf-8").replace(SPEAKS, speaks), encoding="utf-8")
            self.made[version, speaks] = (self._debs if self.kind == "deb" else self._rpms)(folder, version, scripts)
        return self.made[version, speaks]

    @staticmethod
    def _contents(tree, version, speaks):
        units = tree / "usr/lib/systemd/system"
        for each in (units, tree / "usr/bin", tree / "etc/amem", tree / "etc/logrotate.d"):
            each.mkdir(parents=True)
        for name in ("amemd", "amem-holder", "amem-driver"):
            text = (DEPLOY / f"{name}.service.in").read_text(encoding="utf-8")
            (units / f"{name}.service").write_text(text.replace("@CMAKE_INSTALL_FULL_BINDIR@", "/usr/bin"), encoding="utf-8")
        text = (DEPLOY / "amem-holder.socket").read_text(encoding="utf-8")
        (units / "amem-holder.socket").write_text(text.replace("/run/amem-holder/", "/run/amem/") if version == "0.1.0" else text, encoding="utf-8")
        shutil.copy(DEPLOY / "packages/amemd.toml", tree / "etc/amem")
        shutil.copy(DEPLOY / "packages/logrotate", tree / "etc/logrotate.d/amemd")
        subprocess.run(["cc", "-x", "c", "-o", tree / "usr/bin/amemd", f'-DSPEAKS="{speaks}"', "-"], input=AMEMD, text=True, check=True, timeout=60)
        (tree / "usr/bin/amemctl").write_text(AMEMCTL)
        (tree / "usr/bin/amemctl").chmod(0o755)

    @staticmethod
    def _debs(folder, version, scripts):
        for package, depends in (("libamem-shim", ""), ("amemd", f"Depends: libamem-shim (= {version}-1)\n")):
            control = folder / package / "DEBIAN"
            control.mkdir()
            (control / "control").write_text(f"Package: {package}\nVersion: {version}-1\nArchitecture: amd64\nMaintainer: nobody <nobody@amem.example>\n"
                                             f"{depends}Description: for a test\n")
            found = scripts / package if (scripts / package).exists() else scripts
            for file in [] if package == "libamem-shim" and found == scripts else found.glob("[pc]*"):
                shutil.copy(file, control)
                (control / file.name).chmod(0o644 if file.name == "conffiles" else 0o755)
            if (control / "conffiles").exists():  # of what is here
                (control / "conffiles").write_text("/etc/amem/amemd.toml\n/etc/logrotate.d/amemd\n")
            call("dpkg-deb", "--root-owner-group", "-Znone", "--build", folder / package, folder / f"{package}.deb")
        return [folder / "libamem-shim.deb", folder / "amemd.deb"]

    @staticmethod
    def _rpms(folder, version, scripts):
        spec = f"""%define __os_install_post %{{nil}}
%{{!?systemd_post:%{{load:{DEPLOY}/packages/rpm/macros.systemd}}}}
Name: amem
Version: {version}
Release: 1
Summary: for a test
License: none
AutoReqProv: no
%description
.
%install
cp -r {folder}/amemd/. {folder}/libamem-shim/. %{{buildroot}}
"""
        for package, needs, files, parts in (
                ("libamem-shim", "", "/usr/lib/amem/libamem_shim.so", {} if version == "0.1.0" else {"pre": "pre", "preun": "preun-shim"}),
                ("amemd", f"Requires: libamem-shim = {version}", "/usr/bin/*\n/usr/lib/systemd/system/*\n%config(noreplace) /etc/*/*",
                 {name: name for name in ("pre", "post", "preun", "postun")})):
            spec += f"%package -n {package}\nSummary: for a test\n{needs}\n%description -n {package}\n.\n%files -n {package}\n{files}\n"
            for section, name in parts.items():
                if (scripts / name).exists():
                    spec += f"%{section} -n {package}\n{(scripts / name).read_text(encoding='utf-8')}\n"
        (folder / "amem.spec").write_text(spec, encoding="utf-8")
        call("rpmbuild", "--define", f"_topdir {folder}/build", "-bb", folder / "amem.spec")
        return [next((folder / "build/RPMS").rglob(f"{package}-*.rpm")) for package in ("libamem-shim", "amemd")]


class Node:
    """A root of its own, as a node that systemd has booted. files: a folder that it sees by the same name."""

    def __init__(self, folder, kind, files):
        self.kind, self.top = kind, folder
        script = f"""set -e
mount -t tmpfs top {folder}; cd {folder}; mkdir upper work root
mount -t overlay over -o lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work root
for each in {" ".join(EMPTY)}; do mkdir -p root/$each; mount -t tmpfs empty root/$each; done
mkdir -p root/run/systemd/system root/run/fake root/var/lib/dpkg/info root/var/lib/dpkg/updates root{files}; : >root/var/lib/dpkg/status
mount -t proc proc root/proc; mount --rbind /dev root/dev; mount --bind {files} root{files}
echo ready; exec sleep infinity"""
        self.holds = subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = self.holds.stdout.readline()
        assert said == "ready\n", f"no root of its own: {said}"
        self.leader = call("pgrep", "--parent", self.holds.pid).strip()
        self.run("rm", "-f", "/usr/sbin/groupdel", "/usr/bin/systemctl", "/usr/sbin/policy-rc.d")
        for name, does in TOOLS.items():
            self.write(f"usr/lib/systemd/{name}" if name.endswith("helper") else f"usr/bin/{name}", f"#!/bin/sh\n{does}\n")
        self.write("usr/bin/systemctl", (HERE / "fake_systemctl.py").read_text(encoding="utf-8"))
        # What this machine has of amem is not this node's.
        self.run("sh", "-c", "rm -rf /usr/bin/amem* /etc/amem* /etc/systemd/system/*amem* /etc/systemd/system/*/amem* /lib/systemd/system/amem*")

    def close(self):
        self.holds.kill()
        self.holds.wait()

    def path(self, name):
        return pathlib.Path(f"/proc/{self.leader}/root{self.top}/root") / name.lstrip("/")

    def write(self, name, text=""):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text, encoding="utf-8")
        self.path(name).chmod(0o755)

    def run(self, *command, **variables):
        """Exit status and output."""
        done = subprocess.run(["nsenter", "--target", self.leader, "--mount", "--pid", "chroot", f"{self.top}/root", "env", "-i", f"PATH={PATH}", "LC_ALL=C.UTF-8",
                               *(f"{name}={value}" for name, value in variables.items()), *map(str, command)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    def install(self, files, **variables):
        """A new installation, an upgrade or the same version once more."""
        command = ["dpkg", "--force-depends", "-i"] if self.kind == "deb" else ["rpm", "--force-debian", "--nodeps", "--force", "-U"]
        return self.run(*command, *files, **variables)

    def remove(self, *packages):
        packages = packages or ("amemd", "libamem-shim")
        return self.run(*(["dpkg", "--remove"] if self.kind == "deb" else ["rpm", "--force-debian", "-e"]), *packages)

    def installed(self):
        """{package: version} of what is whole."""
        form = ["dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n"] if self.kind == "deb" else ["rpm", "-qa", "--qf", "%{NAME} %{VERSION}-1 installed\n"]
        rows = [line.split() for line in self.run(*form)[1].splitlines()]
        return {package: version.removesuffix("-1") for package, version, status in rows if status == "installed"}

    def active(self):
        return {name for name in ("amemd.service", "amem-holder.socket", "amem-holder.service") if self.path(f"run/fake/{name}").exists()}

    def pid(self):
        return self.path("run/fake/amemd.service").read_text()

    def calls(self, *verbs):
        """What systemctl was asked for since the last question."""
        calls = self.path("run/fake/calls")
        found = [line for line in calls.read_text().splitlines() if line.split()[0] in verbs] if calls.exists() else []
        calls.unlink(missing_ok=True)
        return found
