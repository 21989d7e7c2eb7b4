#!/usr/bin/env python3
"""Writes a CycloneDX SBOM of packages and wheels: what of others is in them. deploy/release.sh calls it.

What is compiled in is what the build says: the headers that each object file was made of and the static libraries that were linked, by
the packages that own these files. Code that comes as a shared library is not in a .deb, whose dependencies name it; into a wheel
auditwheel has copied it, with a list of its own. In a build with the libraries of deploy/static.sh their folders say what they are.
"""
import argparse
import datetime
import functools
import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import uuid
import zipfile

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot5
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

NVIDIA = {"cuda": ("CUDA headers", r"#define CUDA_VERSION (\d+)"), "nccl": ("NCCL headers", r"#define NCCL_VERSION_CODE (\d+)")}


def output(*command):
    return subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout


def owners(paths):
    """The distribution's package that each file is of: {path: package}, without those that are of none."""
    names = {}  # by each of its names: a package may know a file by a link to it, or from the time before / and /usr were one
    for path in paths:
        real = os.path.realpath(path)
        for name in (path, real, real.removeprefix("/usr"), "/usr" + path):
            names.setdefault(name, set()).add(path)
    # It ends with 1 when there is one that is of none.
    done = subprocess.run(["dpkg-query", "-S", *names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, timeout=120)
    found = {}
    for line in done.stdout.splitlines():
        package, _, name = line.partition(": ")
        if not package.startswith("diversion "):
            found.update((path, package.split(",")[0].split(":")[0]) for path in names.get(name, ()))
    return found


@functools.lru_cache(maxsize=None)
def field(package, name):
    return output("dpkg-query", "-W", f"-f=${{{name}}}\\n", package).splitlines()[0]


def licence(path):
    """The short name that a copyright file gives to most of a package; None: there is no such file, or it has another form."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(r"(?ms)^Files:\s*\*\s*$.*?^License:[ \t]*([^\n]+)$", text)
    return found[1].strip() if found else None


def distribution():
    value = platform.freedesktop_os_release()
    return value["ID"], f"{value['ID']}-{value['VERSION_ID']}"


def of_distribution(package, how):
    """A package of the distribution as a component that is inside of another."""
    vendor, release = distribution()
    name = licence(pathlib.Path("/usr/share/doc", package, "copyright"))
    version = field(package, "Version")
    return Component(
        name=package, version=version, type=ComponentType.LIBRARY, licenses=[DisjunctiveLicense(name=name)] if name else [],
        purl=PackageURL("deb", vendor, package, version, {"arch": field(package, "Architecture"), "distro": release}),
        properties=[Property(name="amem:how", value=how)])


class Build:
    """The build tree that the packages were made of."""

    def __init__(self, folder):
        self.folder = folder
        found = re.search(r"(?m)^CMAKE_TOOLCHAIN_FILE:\w+=(.+)$", (folder / "CMakeCache.txt").read_text(encoding="utf-8"))
        self.static = pathlib.Path(found[1]).parent if found else None

    def of_static(self, path):
        """The library of deploy/static.sh that a file is of."""
        return pathlib.Path(path).relative_to(self.static / "packages").parts[0]

    def in_static(self, path):
        return self.static is not None and pathlib.Path(path).is_relative_to(self.static)

    def made(self, name):
        """The target of this file name. None: it is not a target."""
        return next((each for each in ("bin/" + name, "lib/" + name, "lib/sim/" + name) if (self.folder / each).is_file()), None)

    def ninja(self, *arguments):
        return output("ninja", "-C", self.folder, "-t", *arguments).splitlines()

    @functools.lru_cache(maxsize=None)
    def inside(self, target):
        """What of others is compiled into a program or library: {package: how}; "cuda" and "nccl" for headers that no package owns."""
        inputs = [line for line in self.ninja("inputs", target) if not line.startswith("ninja:")]
        objects = [each for each in inputs if each.endswith(".o")]
        headers = {line.strip() for line in self.ninja("deps", *objects) if line.startswith("    ")}
        # Sources and headers of the tree, and what is generated from it, are ours.
        top = str(self.folder.parent.parent)
        headers = {os.path.normpath(self.folder / each) for each in headers}
        own = {each for each in headers if each.startswith(top + "/") and "/build/headers/" not in each}
        # The compiler's headers are of its C++ library and of the C library.
        theirs = {each for each in headers - own if not self.in_static(each)}
        # Of an archive without members, as the C library has for the sake of old makefiles, nothing is taken.
        static = [each for each in inputs if each.endswith(".a") and each.startswith("/") and output("ar", "t", each)]
        libraries = self.libraries(target)
        of = owners([*theirs, *(each for each in static if not self.in_static(each)), *libraries])
        shared = {field(of[path], "source:Package") for path in libraries}
        found = {}
        for header in sorted(theirs):
            package = of.get(header)
            if package is None:
                package = next((name for name in NVIDIA if name in header.lower()), None)
                if package is None:
                    sys.exit(f"sbom: {header}, which {target} is compiled with, is of no package and none of NVIDIA's headers")
                found[package] = "headers"
            elif field(package, "source:Package") not in shared:
                # A program that does not load the compiler's library has it inside.
                found[package] = "static library" if package.startswith(("libstdc++", "libgcc")) else "headers"
        if self.static:
            packages = self.static / "packages"
            found.update((self.of_static(each), "headers") for each in headers if pathlib.Path(each).is_relative_to(packages))
            found.update((each, "static library") for each in ("llvm-libcxx", "zig-compiler-rt"))
        found.update((self.of_static(path) if self.in_static(path) else of[path], "static library") for path in static)
        return found

    def libraries(self, target):
        lines = output("ldd", self.folder / target).splitlines()
        paths = [line.split()[2] if "=>" in line else line.split()[0] for line in lines]
        return [path for path in paths if path.startswith("/") and not path.startswith(str(self.folder))]

    def version_of(self, headers):
        """The version of NVIDIA's headers, from the header itself."""
        cache = (self.folder / "CMakeCache.txt").read_text(encoding="utf-8")
        folder = re.search(rf"(?m)^AMEM_{headers.upper()}_INCLUDE:PATH=(.*)$", cache)[1]
        text = (pathlib.Path(folder) / f"{headers}.h").read_text(encoding="utf-8")
        name, pattern = NVIDIA[headers]
        code = re.search(pattern, text)
        if headers == "nccl":
            return name, ".".join(re.search(rf"#define NCCL_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))
        return name, f"{int(code[1]) // 1000}.{int(code[1]) % 1000 // 10}"

    def component(self, package, how):
        if package in NVIDIA:
            name, version = self.version_of(package)
            return Component(name=name, version=version, type=ComponentType.LIBRARY, properties=[Property(name="amem:how", value=how)])
        if self.static and (self.static / "packages" / package).is_dir():
            return self.static_component(package, how)
        return of_distribution(package, how)

    def static_component(self, name, how):
        """A library of deploy/static.sh: from a source package, from a package that has only headers, or of the compiler."""
        folder = self.static / "packages" / name
        version = (folder / "VERSION").read_text(encoding="utf-8").strip()
        found = licence(folder / "copyright") or {"llvm-libcxx": "Apache-2.0 WITH LLVM-exception", "zig-compiler-rt": "MIT"}.get(name)
        vendor, release = distribution()
        if name in ("llvm-libcxx", "zig-compiler-rt"):
            purl = PackageURL("generic", None, name, version)
        else:
            architecture = (folder / "ARCHITECTURE").read_text(encoding="utf-8").strip()
            purl = PackageURL("deb", vendor, name, version, {"arch": architecture, "distro": release})
        return Component(name=name, version=version, type=ComponentType.LIBRARY, licenses=[DisjunctiveLicense(name=found)] if found else [],
                         purl=purl, properties=[Property(name="amem:how", value=how)])


def build_id(path):
    found = re.search(r"Build ID: ([0-9a-f]+)", output("readelf", "-n", path))
    return found[1] if found else None


def elf_files(folder):
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def artefact(path, builds):
    """A package or wheel with what is inside."""
    found, copied = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        if path.suffix == ".deb":
            subprocess.run(["dpkg-deb", "-x", str(path), scratch], check=True, timeout=120)
            vendor, release = distribution()
            name, version, architecture = (output("dpkg-deb", "-f", path, each).strip() for each in ("Package", "Version", "Architecture"))
            if other := re.search(r"~ubuntu([0-9.]+)$", version):
                vendor, release = "ubuntu", f"ubuntu-{other[1]}"
            purl = PackageURL("deb", vendor, name, version, {"arch": architecture, "distro": release})
            needs = output("dpkg-deb", "-f", path, "Depends").strip()
        elif path.suffix == ".rpm":
            with path.open("rb") as file:
                content = subprocess.run(["rpm2archive", "-"], stdin=file, stdout=subprocess.PIPE, check=True, timeout=120).stdout
            subprocess.run(["tar", "-xz"], input=content, cwd=scratch, check=True, timeout=120)
            name, version, architecture = output("rpm", "-qp", "--qf", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH}", path).split()
            purl = PackageURL("rpm", None, name, version, {"arch": architecture, "distro": "rhel-9"})
            needs = ", ".join(dict.fromkeys(each for each in output("rpm", "-qpR", path).splitlines() if not each.startswith("rpmlib(")))
        else:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(scratch)
            name, version = path.name.split("-")[:2]
            purl = PackageURL("pypi", None, name, version, {"file_name": path.name})
            needs = ""
            for own in folder.glob("*.dist-info/sboms/*.cdx.json"):
                copied += [each["purl"] for each in json.loads(own.read_text(encoding="utf-8"))["components"] if each["purl"].startswith("pkg:deb")]
        for file in elf_files(folder):
            # The torch_memory_saver hooks are the shim under other names; what auditwheel copied is in its list.
            names = ["libamem_shim.so" if file.name.startswith("torch_memory_saver_hook") else file.name, re.sub(r"\.so\..*", ".so", file.name)]
            made = [(build, build.made(name)) for build in builds for name in names if build.made(name)]
            if not made and file.parent.name.endswith(".libs"):
                continue
            build, target = next(((each, name) for each, name in made if build_id(file) == build_id(each.folder / name)), (None, None))
            if build is None:
                sys.exit(f"sbom: {path.name} has {file.relative_to(folder)}, which is of none of the builds")
            for package, how in build.inside(target).items():
                found.setdefault((build, package), set()).add(how)
    components = [build.component(package, " and ".join(sorted(how))) for (build, package), how in
                  sorted(found.items(), key=lambda each: each[0][1])]
    for package in sorted({PackageURL.from_string(each).name for each in copied}):
        components.append(of_distribution(package, "copied shared library"))
    for each in components:  # each is told apart by where it is, or the library takes random names
        each.bom_ref.value = f"{path.name}/{each.name}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    made = Component(name=name, version=version, type=ComponentType.APPLICATION, purl=purl, bom_ref=path.name, components=components,
                     licenses=[DisjunctiveLicense(id="Apache-2.0")], properties=[Property(name="amem:file", value=path.name)],
                     hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)])
    if needs:
        made.properties.add(Property(name="amem:depends", value=needs))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, action="append", help="a build tree that they are made of")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("artefacts", type=pathlib.Path, nargs="+", metavar="PACKAGE_OR_WHEEL")
    options = parser.parse_args()
    version = (pathlib.Path(__file__).parents[1] / "VERSION").read_text(encoding="utf-8").strip()
    builds = [Build(each.resolve()) for each in options.build]
    bom = Bom(components=[artefact(path, builds) for path in sorted(options.artefacts)])
    bom.metadata.component = Component(name="amem", version=version, type=ComponentType.APPLICATION, bom_ref="amem",
                                       licenses=[DisjunctiveLicense(id="Apache-2.0")],
                                       properties=[Property(name="amem:commit", value=options.commit)])
    bom.register_dependency(bom.metadata.component, bom.components)
    # The same packages give the same text.
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, " ".join([options.commit, *sorted(each.hashes[0].content for each in bom.components)]))
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    text = JsonV1Dot5(bom).output_as_string(indent=1)
    wrong = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
    if wrong:
        sys.exit(f"sbom: the written file is not valid CycloneDX: {wrong}")
    options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
