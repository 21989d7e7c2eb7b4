"""What image.sh does with the root of the image: in_image.py ROOT BUILD. Containers are chroots here, with the users, groups, powers,
variables and commands that the manifests give them; only the pool is smaller, and the driver is the simulated one."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import yaml

PROJECT = pathlib.Path(__file__).resolve().parents[2]
MANIFESTS = PROJECT / "deploy" / "kubernetes"
POOL = "256MiB"
# By NVIDIA's container toolkit, on nodes that have a driver.
DRIVER = {"LD_LIBRARY_PATH": "/sim", "AMEM_SIM_DIR": "/node", "AMEM_SIM_DEVICES": "2", "AMEM_SIM_MEMORY": "96MiB"}


class Failed(Exception):
    pass


def say(text):
    print(f"image.sh: {text}", flush=True)


def need(condition, text):
    if not condition:
        raise Failed(text)


class Container:
    """A container of a pod: its command starts with start()."""

    def __init__(self, root, spec, pod):
        self.root, self.spec, self.name = root, spec, spec["name"]
        user = {**pod.get("securityContext", {}), **spec.get("securityContext", {})}
        groups = ",".join(map(str, user.get("supplementalGroups", [])))
        self.enter = ["chroot", root, "setpriv", f"--reuid={user.get('runAsUser', 0)}", f"--regid={user.get('runAsGroup', 0)}",
                      f"--groups={groups}" if groups else "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs",
                      "env", "-i"]
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **DRIVER, **{each["name"]: each["value"] for each in spec.get("env", ())}}
        self.enter += [f"{name}={value}" for name, value in variables.items()]
        self.process = None

    def command(self):
        return [POOL if word.endswith("GiB") else word for word in self.spec["command"]]

    def run(self, *words, check=True):
        done = subprocess.run([*self.enter, *words], capture_output=True, text=True, timeout=60, check=False)
        need(not check or done.returncode == 0, f"{self.name}: {' '.join(words)}: {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def start(self, *words, **options):
        log = open(os.path.join(self.root, f"{self.name}.log"), "ab")
        self.process = subprocess.Popen([*self.enter, *(words or self.command())], stderr=log, **options)
        return self.process

    def probe(self, name):
        """Until it says yes, as often as it may be asked."""
        probe = self.spec[name]
        for _ in range(probe.get("failureThreshold", 3) * 10):
            if self.run(*probe["exec"]["command"], check=False).returncode == 0:
                return
            need(self.process.poll() is None, f"{self.name} has ended: {self.log()}")
            time.sleep(0.1)
        raise Failed(f"{self.name}: {name} does not succeed: {self.log()}")

    def log(self):
        return pathlib.Path(self.root, f"{self.name}.log").read_text(encoding="utf-8")

    def end(self, number=signal.SIGTERM):
        if number == signal.SIGTERM and "lifecycle" in self.spec:  # as the kubelet does
            self.run(*self.spec["lifecycle"]["preStop"]["exec"]["command"])
        self.process.send_signal(number)
        self.process.wait(20)


class Job(Container):
    """A job's container: the workload in the place of your trainer."""

    def begin(self):
        os.makedirs(f"{self.root}/meet/{self.name}", exist_ok=True)
        os.chmod(f"{self.root}/meet/{self.name}", 0o777)
        self.start("/sim/amem-workload", "--ranks", "1", "--rank", "0", "--rendezvous", f"/meet/{self.name}", "--communicators", "1",
                   "--allocations", "8", "--bytes", "2097152", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask(None)

    def ask(self, command):
        if command:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        need(line, f"{self.name} has ended: {self.log()}")
        return line

    def leave(self):
        self.process.stdin.write("exit\n")
        self.process.stdin.close()
        self.process.wait(30)


def documents(name):
    return [each for each in yaml.safe_load_all((MANIFESTS / name).read_text(encoding="utf-8")) if each]


def states(amemd):
    groups = yaml.safe_load(amemd.run("amemctl", "--json", "groups").stdout)["groups"]
    return {each["name"]: each["state"].removeprefix("GROUP_STATE_").lower() for each in groups}


def eventually(condition, what):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.1)
    raise Failed(f"not within 20 s: {what}")


def contents(root):
    say("what is in it")
    shell = Container(root, {"name": "shell"}, {})
    for program in ("amemd", "amem-holder", "amem-checkpoint", "amemctl", "curl", "jq"):
        shell.run(program, "--version")
    need("amem:x:936:" in shell.run("getent", "group", "amem").stdout, "the group amem has not number 936")
    need(os.path.exists(f"{root}/usr/lib/amem/libamem_shim.so"), "there is no shim")
    for program in ("gcc", "cmake", "python3"):
        need(shell.run("sh", "-c", f"command -v {program}", check=False).returncode != 0, f"{program} is in the image")


def sidecar(root):
    say("a broker in the pod")
    pod = next(each for each in documents("examples/sidecar.yaml") if each["kind"] == "Pod")["spec"]
    shim, holder, amemd = (Container(root, spec, pod) for spec in pod["initContainers"])
    jobs = {spec["name"]: Job(root, spec, pod) for spec in pod["containers"]}
    for folder in ("amem", "holder"):
        os.mkdir(f"{root}/{folder}")
        os.chmod(f"{root}/{folder}", 0o777)  # as Kubernetes makes an emptyDir
    shim.run(*shim.command())
    holder.start()
    holder.probe("startupProbe")
    amemd.start()
    amemd.probe("startupProbe")
    for job in jobs.values():
        if states(amemd):
            amemd.run("amemctl", "pause", "train")
        job.begin()
    need(states(amemd) == {"train": "paused", "rollout": "running"}, f"the groups are {states(amemd)}")
    before = jobs["rollout"].ask("checksum")
    amemd.run("amemctl", "swap", "rollout", "train")
    say("amemd is killed and replaced beside a paused job")
    amemd.end(signal.SIGKILL)
    need(amemd.run(*amemd.spec["startupProbe"]["exec"]["command"], check=False).returncode != 0, "a killed amemd is healthy")
    amemd.start()
    amemd.probe("startupProbe")
    eventually(lambda: states(amemd) == {"train": "running", "rollout": "paused"}, "both groups are back")
    amemd.run("amemctl", "swap", "train", "rollout")
    need(jobs["rollout"].ask("checksum") == before, "the bytes are not what they were")
    amemd.run("amemctl", "resume", "train")
    for job in jobs.values():
        job.leave()
    need(holder.process.poll() is None, f"the holder has ended: {holder.log()}")
    for container in (amemd, holder):
        container.end()


def node(root):
    say("a broker for the node")
    templates = {each["metadata"]["name"]: each["spec"]["template"] for each in documents("amem.yaml") if each["kind"] == "DaemonSet"}
    pods = [templates[name]["spec"] for name in ("amem-holder", "amem")]
    holder, amemd = (Container(root, pod["containers"][0], pod) for pod in pods)
    for_jobs = Container(root, pods[1]["initContainers"][0], pods[1])
    os.makedirs(f"{root}/shim", 0o755)
    for_jobs.run(*for_jobs.command())
    for folder in ("run/amem", "run/amem-holder"):
        shutil.rmtree(f"{root}/{folder}", ignore_errors=True)
        os.makedirs(f"{root}/{folder}", 0o755)  # hostPath: DirectoryOrCreate
    settings = templates["amem"]["metadata"]["annotations"]["amem/amemd.toml"].replace('"64GiB"', f'"{POOL}"')
    pathlib.Path(root, "etc/amem/amemd.toml").write_text(settings, encoding="utf-8")
    holder.start()
    amemd.start()
    amemd.probe("readinessProbe")

    variables = [{"name": "LD_PRELOAD", "value": "/shim/libamem_shim.so"}, {"name": "AMEM_RUNTIME_DIR", "value": "/run/amem"},
                 {"name": "AMEM_GROUP", "value": "train"}, {"name": "AMEM_REQUIRED", "value": "1"}]
    member = Job(root, {"name": "member", "env": variables}, {"securityContext": {"runAsUser": 1001, "runAsGroup": 1001, "supplementalGroups": [936]}})
    member.begin()
    before = member.ask("checksum")
    member.run("amemctl", "pause", "train")
    amemd.end()  # as `helm upgrade` does
    need("holder" not in amemd.log().split("ending")[-1] or holder.process.poll() is None, "the holder has ended")
    amemd.start()
    amemd.probe("readinessProbe")
    eventually(lambda: states(amemd) == {"train": "paused"}, "the group is back, and paused")
    amemd.run("amemctl", "resume", "train")
    need(member.ask("checksum") == before, "the bytes are not what they were")
    stranger = Container(root, {"name": "stranger"}, {"securityContext": {"runAsUser": 1002, "runAsGroup": 1002}})
    refused = stranger.run("amemctl", "--runtime-dir", "/run/amem", "status", check=False)
    need(refused.returncode == 8, f"a user outside of the group gets {refused.returncode}: {refused.stdout}{refused.stderr}")
    member.leave()
    for container in (amemd, holder):
        container.end()


def main(root, build):
    os.umask(0)  # the simulated driver's state is every user's
    os.makedirs(f"{root}/sim")
    for name in os.listdir(f"{build}/lib/sim"):
        shutil.copy(f"{build}/lib/sim/{name}", f"{root}/sim/")
    for name in ("bin/amem-workload", "lib/libnccl_workload.so"):
        shutil.copy(f"{build}/{name}", f"{root}/sim/")
    for folder in ("node", "meet"):
        os.mkdir(f"{root}/{folder}")
        os.chmod(f"{root}/{folder}", 0o777)
    for source, target in (("/proc", "proc"), ("/dev", "dev")):
        subprocess.run(["mount", "--rbind", source, f"{root}/{target}"], check=True, timeout=20)
    try:
        contents(root)
        sidecar(root)
        shutil.rmtree(f"{root}/node")
        os.mkdir(f"{root}/node")
        os.chmod(f"{root}/node", 0o777)
        node(root)
    except Failed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    finally:
        for target in ("proc", "dev"):
            subprocess.run(["umount", "--recursive", "--lazy", f"{root}/{target}"], check=False, timeout=20)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
