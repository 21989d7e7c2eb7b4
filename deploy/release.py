#!/usr/bin/env python3
"""What deploy/release.sh checks.

release.py ready TREE            before anything is built: the versions that the tree's files have, and CHANGELOG.md
release.py name TREE             whether the distribution's name is free in the package index of this Python's pip, or ours
release.py verify FOLDER (--fingerprint FINGERPRINT [--key FILE] | --unsigned)
                                 a release that is made: its files, their versions, checksums and signature
"""
import argparse
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import Parser

PACKAGES = {"amemd", "libamem-shim", "libamem-client0", "libamem-client-dev", "python3-amem", "amem-sim-driver"}
# Names that an index has, and does not tell from others: one refuses the name amem because of a-mem.
SIMILAR = ("a-mem",)
# How gpg lists keys that must not sign.
STATES = {"r": "is revoked", "e": "has expired", "d": "is disabled in your gpg", "i": "is not valid"}
CHAPTER = re.compile(r"(?m)^## \[?(Unreleased|\d[\w.]*)\]?(?: - (\d{4}-\d\d-\d\d))?[^\n]*\n")


def faults_of_changelog(text, version):
    """Its newest section is the version's, with a date, and nothing is above it but an empty "Unreleased"."""
    parts = CHAPTER.split(text)
    sections = list(zip(parts[1::3], parts[2::3], parts[3::3]))
    if sections and sections[0][0] == "Unreleased":
        if re.search(r"(?m)^(?!#)\s*\S", sections.pop(0)[2]):
            yield f"CHANGELOG.md has entries below [Unreleased]: put them below '## [{version}] - DATE'"
    if not sections or sections[0][0] != version:
        yield f"CHANGELOG.md has no section '## [{version}] - DATE' at its top, but {sections[0][0] if sections else 'none'}"
    elif not sections[0][1]:
        yield f"CHANGELOG.md has no date for {version}: '## [{version}] - DATE'"
    elif not re.search(r"(?m)^- ", sections[0][2]):
        yield f"CHANGELOG.md says nothing of {version}"


def chart_of(text):
    """Its fields of one line, without a parser of YAML."""
    return dict(re.findall(r"(?m)^(\w+): *\"?([^\s\"#]+)", text))


def faults_of_chart(text, version):
    chart = chart_of(text)
    for field in "version", "appVersion":
        if chart.get(field) != version:
            yield f"Chart.yaml has {field} {chart.get(field)}, not {version}"


def project(tree, folder="client/python"):
    return tomllib.loads((tree / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def faults_of_tree(tree):
    version = (tree / "VERSION").read_text(encoding="utf-8").strip()
    yield from faults_of_changelog((tree / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    yield from faults_of_chart((tree / "deploy/kubernetes/amem/Chart.yaml").read_text(encoding="utf-8"), version)
    if project(tree)["version"] != version:
        yield f"client/python/pyproject.toml has version {project(tree)['version']}, not {version}"
    if not project(tree, "client/python/dropin")["version"].endswith(f"+amem{version}"):
        yield f"client/python/dropin/pyproject.toml does not end in +amem{version}"
    done = ran(sys.executable, "-B", tree / "deploy/place.py")
    if done.returncode:
        yield (done.stdout + done.stderr).strip()


def alike(name):
    """What an index takes for the same name."""
    return re.sub("[-_.]", "", name.lower()).translate(str.maketrans("lio", "110"))


def in_index(name):
    """What the index has of that name: None, or the metadata of its newest release, {} if nobody can read it without building it."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    said = subprocess.run([*pip, "index", "versions", "-vv", name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, timeout=600).stdout
    page = re.search(rf"(?m)^ *Fetched page \S+/{re.escape(normal(name))}/? ", said)
    if not page:
        if re.search(rf"(?m)^ *Could not fetch URL \S+/{re.escape(normal(name))}/?: 404 ", said):
            return None
        sys.exit(f"release: error: pip's package index did not say whether it has {name}; pip's last lines:\n" + "\n".join(said.splitlines()[-5:]))
    done = ran(*pip, "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--ignore-requires-python", "--only-binary", ":all:",
               "--report", "-", name)
    return json.loads(done.stdout)["install"][0]["metadata"] if done.returncode == 0 else {}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def is_ours(metadata, own):
    """Whether the index's metadata has our author, and our home page where we have one."""
    pages = [metadata.get("home_page"), *(each.partition(", ")[2] for each in metadata.get("project_url", []))]
    home = own.get("urls", {}).get("Homepage")
    return metadata.get("author") == own["authors"][0]["name"] and (home is None or home in pages)


def fault_of_name(own, look=in_index):
    name = own["name"]
    remedy = "Choose another name in client/python/pyproject.toml (the import stays amem), and run deploy/place.py --write"
    metadata = look(name)
    if metadata is not None:
        if is_ours(metadata, own):
            return None
        whose = ", ".join(f"{field} {metadata[field]}" for field in ("version", "author", "author_email", "summary") if metadata.get(field))
        return f"the name {name} belongs to others in the package index ({whose or 'it has no wheel to read'}). {remedy}"
    for similar in SIMILAR:
        if alike(similar) == alike(name) and look(similar) is not None:
            return f"the package index has {similar}, which it does not tell from {name}: it refuses {name}. {remedy}"
    return None


def ran(*command):
    return subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300)


def output(*command):
    done = ran(*command)
    if done.returncode:
        sys.exit(f"release: error: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def member(archive, name):
    with tarfile.open(archive) as opened:
        return opened.extractfile(name).read().decode()


def faults_of_deb(path, version, home):
    name, has, page = (output("dpkg-deb", "-f", path, field).strip() for field in ("Package", "Version", "Homepage"))
    if not has.startswith(f"{version}-"):
        yield f"{path.name} has version {has}"
    if page != home:
        yield f"{path.name} has the home page {page or 'none'}, not {home or 'none'}"
    if path.name.split("_")[0] != name:
        yield f"{path.name} is the package {name}"


def faults_of_rpm(path, version, home):
    if not shutil.which("rpm"):
        print(f"release: {path.name}: there is no rpm here, so nothing has looked into it")
        return
    has, page = output("rpm", "--query", "--package", "--queryformat", "%{VERSION}\n%{URL}\n", path).splitlines()
    if has != version:
        yield f"{path.name} has version {has}"
    if page.replace("(none)", "") != home:
        yield f"{path.name} has the home page {page}, not {home or 'none'}"


def faults_of_wheel(path, version, home, names):
    with zipfile.ZipFile(path) as archive:
        [about] = [each for each in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)]
        metadata = Parser().parsestr(archive.read(about).decode())
    name = normal(metadata["Name"])
    if name not in names:
        yield f"{path.name} is of the distribution {name}"
    if metadata["Version"] != version and not metadata["Version"].endswith(f"+amem{version}"):
        yield f"{path.name} has version {metadata['Version']}"
    pages = [each.partition(", ")[2] for each in metadata.get_all("Project-URL", [])]
    if pages != [home][:bool(home)]:
        yield f"{path.name} has the home page {', '.join(pages) or 'none'}, not {home or 'none'}"


def faults_of_packed_chart(path, version):
    with tarfile.open(path) as archive:
        for each in archive:
            if not re.match(r"amem(/|$)", each.name) or not (each.isfile() or each.isdir()):
                yield f"{path.name}: {each.name} is not a file or folder of amem/"
        yield from (f"{path.name}: {fault}" for fault in faults_of_chart(archive.extractfile("amem/Chart.yaml").read().decode(), version))


def faults_of_image(path, version):
    with tarfile.open(path) as archive:
        [image] = json.load(archive.extractfile("manifest.json"))
        config = json.load(archive.extractfile(image["Config"]))
    labels = config.get("config", {}).get("Labels") or {}
    if labels.get("org.opencontainers.image.version") != version or not all(tag.endswith(f":{version}") for tag in image["RepoTags"] or [""]):
        yield f"{path.name} is {image['RepoTags']}, version {labels.get('org.opencontainers.image.version')}"


def faults_of_sums(folder):
    """SHA256SUMS names each file but itself and its signature, with its checksum."""
    file = folder / "SHA256SUMS"
    if not file.exists():
        yield "there is no SHA256SUMS"
        return
    lines = file.read_text(encoding="utf-8").splitlines()
    yield from (f"SHA256SUMS has a line that is no checksum: {line}" for line in lines if not re.match(r"[0-9a-f]{64}  [^/]+$", line))
    listed = dict(reversed(line.split("  ", 1)) for line in lines if "  " in line)
    there = {path.name for path in folder.iterdir()} - {"SHA256SUMS", "SHA256SUMS.asc"}
    yield from (f"{name} is not in SHA256SUMS" for name in sorted(there - set(listed)))
    for name, digest in sorted(listed.items()):
        if name not in there:
            yield f"{name} is missing"
        elif hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            yield f"{name} has another checksum than SHA256SUMS says"


def fault_of_signature(folder, fingerprint, key):
    """fingerprint: of the key that must have signed. key: a file with it; none: gpg has it."""
    fingerprint = fingerprint.replace(" ", "").upper()
    if not re.fullmatch("[0-9A-F]{40}", fingerprint):
        return f"--fingerprint: {fingerprint} is not 40 hexadecimal digits. Keys with the same last digits can be made to order"
    if not (folder / "SHA256SUMS.asc").exists():
        return "SHA256SUMS.asc is missing: the release is not signed"
    for tool in "gpg", "sqv":
        if not shutil.which(tool):
            return f"there is no {tool} here to verify the signature; deploy/deps.sh installs it"
    with tempfile.TemporaryDirectory() as scratch:
        gpg = ["gpg", "--batch", "--quiet", *(["--homedir", scratch, "--no-autostart"] if key else [])]
        if key:
            ran(*gpg, "--import", key)
        # sqv asks whether the key was good when the signature says that it was made, and a thief writes any date. It must be good now, too.
        found = re.findall(r"(?m)^[ps]ub:(.).*\nfpr:+(\w+):", ran(*gpg, "--with-colons", "--list-keys", fingerprint).stdout)  # with its subkeys
        if not found or found[0][1] != fingerprint:
            return f"{key} has no key {fingerprint}" if key else f"gpg has no key {fingerprint}: name its file with --key"
        if found[0][0] in STATES:
            return f"the key {fingerprint} {STATES[found[0][0]]}: get the present key and its fingerprint from where they are published (SECURITY.md)"
        ring = f"{scratch}/ring"
        output(*gpg, "--output", ring, "--export", *(f"{each}!" for state, each in found if state not in STATES))
        done = ran("sqv", "--keyring", ring, folder / "SHA256SUMS.asc", folder / "SHA256SUMS")
    if done.returncode:
        return f"SHA256SUMS.asc is no valid signature of SHA256SUMS by {fingerprint}:\n{done.stderr.strip()}"
    print(f"release: signed by {fingerprint}")
    return None


def the_one(folder, pattern):
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"release: error: {folder} must have one {pattern}, not {[path.name for path in found]}")
    return found[0]


def faults_of_release(folder):
    """Of each file's content. What a release is called is what its source has in VERSION."""
    source = the_one(folder, "amem-*.tar.gz")
    top = source.name.removesuffix(".tar.gz")
    version = member(source, f"{top}/VERSION").strip()
    home = next((line for line in member(source, f"{top}/deploy/download.url").splitlines() if line.startswith("https://")), "")
    own = normal(tomllib.loads(member(source, f"{top}/client/python/pyproject.toml"))["project"]["name"])
    if top != f"amem-{version}":
        yield f"{source.name} has version {version}"
    yield from (f"{source.name}: {fault}" for fault in faults_of_changelog(member(source, f"{top}/CHANGELOG.md"), version))
    yield from faults_of_packed_chart(the_one(folder, "amem-*.tgz"), version)
    with tarfile.open(the_one(folder, "amem_site-*.tar.gz")) as site:
        if f"{version}/index.html" not in site.getnames():
            yield f"the site has no {version}/index.html"
    sbom = json.loads(the_one(folder, "amem-*.cdx.json").read_text(encoding="utf-8"))
    if sbom["metadata"]["component"]["version"] != version:
        yield f"the SBOM is of version {sbom['metadata']['component']['version']}"
    listed = {each["value"] for part in sbom["components"] for each in part["properties"] if each["name"] == "amem:file"}
    for path in sorted(each for each in folder.iterdir() if each.suffix in (".deb", ".rpm", ".whl")):
        if path.name not in listed:
            yield f"the SBOM does not list {path.name}"
    packages = {path.name.split("_")[0] for path in folder.glob("*.deb")}
    yield from (f"there is no package {name}" for name in sorted(PACKAGES - packages))
    wheels = {normal(path.name.split("-")[0]) for path in folder.glob("*.whl")}
    yield from (f"there is no wheel of {name}" for name in sorted({own, "torch-memory-saver"} - wheels))
    for path in sorted(folder.iterdir()):
        if path.suffix == ".deb":
            yield from faults_of_deb(path, version, home)
        elif path.suffix == ".rpm":
            yield from faults_of_rpm(path, version, home)
        elif path.suffix == ".whl":
            yield from faults_of_wheel(path, version, home, {own, "torch-memory-saver"})
        elif path.name.startswith("amem_image-"):
            yield from faults_of_image(path, version)


def verify(folder, fingerprint, key):
    """Reads files only when they are what was made and signed."""
    found = list(faults_of_sums(folder))
    if fingerprint:
        found += filter(None, [fault_of_signature(folder, fingerprint, key)])
    return found or list(faults_of_release(folder))


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in "ready", "name":
        commands.add_parser(name).add_argument("tree", type=pathlib.Path)
    more = commands.add_parser("verify")
    more.add_argument("folder", type=pathlib.Path)
    whose = more.add_mutually_exclusive_group()
    whose.add_argument("--unsigned", action="store_true")
    whose.add_argument("--fingerprint")
    more.add_argument("--key", type=pathlib.Path)
    options = parser.parse_args(arguments)
    if options.command == "ready":
        faults = list(faults_of_tree(options.tree.resolve()))
    elif options.command == "name":
        faults = [fault for fault in [fault_of_name(project(options.tree))] if fault]
    else:
        if not options.unsigned and not options.fingerprint:
            sys.exit("release: error: whose signature? Give --fingerprint with the fingerprint that amem publishes (SECURITY.md says where), or --unsigned")
        faults = verify(options.folder, options.fingerprint, options.key)
    for fault in faults:
        print(f"release: error: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
