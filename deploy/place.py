#!/usr/bin/env python3
"""Checks that all files name the place for downloads of deploy/download.url, and the distribution of client/python/pyproject.toml.

place.py            prints what differs, and files that name another place; exit status 1 if there is any
place.py --write    changes the files; --root FOLDER: of that tree
place.py --print WHAT   url: the place, or nothing; files: where this version's files lie; site: where its documentation lies;
                        image: the image without its tag; distribution: what the wheel is called in a package index
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
URL = re.compile(r"https://([a-z0-9.-]+\.[a-z]{2,}(?::\d+)?(?:/[a-z0-9._-]+)*/amem)")


class Place:
    """What the files of a tree must say."""

    def __init__(self, root):
        lines = [line.strip() for line in (root / "deploy" / "download.url").read_text(encoding="utf-8").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if len(lines) > 1 or lines and not URL.fullmatch(lines[0]):
            sys.exit(f"deploy/download.url must have one line such as https://HOST/PATH/amem in small letters, or none; it has {lines}")
        self.version = (root / "VERSION").read_text(encoding="utf-8").strip()
        self.url = lines[0] if lines else ""
        self.files = f"{self.url}/{self.version}" if self.url else ""
        self.site = f"{self.url}/docs/{self.version}" if self.url else ""
        self.image = self.url.removeprefix("https://") or "amem"
        self.distribution = re.search(r'(?m)^name = "([^"]+)"', (root / "client" / "python" / "pyproject.toml").read_text(encoding="utf-8"))[1]
        self.wheel = re.sub(r"[-_.]+", "_", self.distribution).lower()  # as it begins the wheel's name


NO_DOWNLOAD = "There is no download yet. You build both from a checkout."
BUILD_IMAGE = "deploy/image/build.sh registry.example/amem:{version}      # with docker, podman or buildah\ndocker push registry.example/amem:{version}\n"


def home(form):
    """A line that is there when the place is known, after one that always is."""
    return lambda place, found: found[1] + (form.format(url=place.url) if place.url else "")


# (files, what is replaced, its text by the place and the match). Each file has at least one match.
RULES = (
    (("docs/getting-started.md", "docs/python.md", "docs/ray.md"),
     r"(?:\./|https://\S+?/)amem\w*-[\d.]+(-py3-none-manylinux_\d+_\d+_x86_64\.whl)",
     lambda place, found: f"{place.files or '.'}/{place.wheel}-{place.version}{found[1]}"),
    (("README.md", "docs/frameworks.md", "docs/packages.md", "docs/rl-frameworks.md", "docs/torch_memory_saver.md",
      "client/python/amem/_later.py", "client/python/amem/ray/__main__.py", "client/python/dropin/torch_memory_saver/__init__.py"),
     r"(?<![\w-])amem(?:_\w+)?-([*…]\.whl)", lambda place, found: f"{place.wheel}-{found[1]}"),
    (("client/python/about.md",), r"(?m)^\| `amem[\w-]*((?:\[\w+\])?)` \|", lambda place, found: f"| `{place.distribution}{found[1]}` |"),
    (("docs/getting-started.md",), rf"{re.escape(NO_DOWNLOAD)}|\[Download both\]\(https://[^)]+\), or build them from a checkout\.",
     lambda place, found: f"[Download both]({place.files}/), or build them from a checkout." if place.url else NO_DOWNLOAD),
    (("docs/kubernetes.md",),
     re.escape(BUILD_IMAGE).replace(re.escape("{version}"), r"[\d.]+") + r"|docker pull \S+/amem:[\d.]+\n",
     lambda place, found: f"docker pull {place.image}:{place.version}\n" if place.url else BUILD_IMAGE.format(version=place.version)),
    (("docs/kubernetes.md",), r"(?<= )(?!registry\.example/)(?:[\w.:-]+/)*amem:\d[\d.]*(?= amem)",
     lambda place, found: f"{place.image}:{place.version}"),
    (("deploy/kubernetes/amem.yaml", "deploy/kubernetes/examples/jobset.yaml", "deploy/kubernetes/examples/sidecar.yaml"),
     r"(?m)(?<=image: )(?:[\w.:-]+/)*amem:[\d.]+$", lambda place, found: f"{place.image}:{place.version}"),
    (("deploy/kubernetes/amem/values.yaml",), r"(?m)(?<=^  repository: )(?:[\w.:-]+/)*amem( .*)?$",
     lambda place, found: place.image if place.url else "amem             # where you have pushed it"),
    (("deploy/kubernetes/amem/values.yaml",), r"(?m)(?<=^    runbooks: )\S+", lambda place, found: runbooks(place)),
    (("deploy/grafana/alerts.yaml",), r'(?<=runbook_url: ")[^#"]*', lambda place, found: runbooks(place)),
    (("deploy/kubernetes/amem/Chart.yaml",), r"(?m)^(type: application\n)(?:home: .*\n)?", home("home: {url}\n")),
    (("client/python/pyproject.toml", "client/python/dropin/pyproject.toml"), r'(?m)^(license = "Apache-2\.0"\n)(?:urls = .*\n)?',
     home('urls = {{Homepage = "{url}"}}\n')),
)

# What names a place: an address whose last part is amem, and where commands and fields have an address.
NAMES = re.compile(r"(?<![\w.@-])(?:[a-z]+://)?([\w-]+(?:\.[\w-]+)*\.[a-z]{2,}(?::\d+)?/(?:[\w.~-]+/)*amem)(?![\w.-]*\w)")
TAKES = re.compile(r"(?:git clone|helm repo add|helm pull|helm install|docker pull|podman pull|curl|wget|--(?:extra-)?index-url|--find-links"
                   r"|\b(?:[Hh]omepage|home|site_url|repo_url|runbook_url|Vcs-\w+|[Uu][Rr][Ll]|image\.(?:url|source|documentation))\"? ?[:=])"
                   r"[^\n]*?\b(?:https?|oci|git)://([^\s\"'<>)`]+)")
NOBODYS = re.compile(r"(?:[\w-]+\.)*(?:example(?:\.(?:com|org|net))?|localhost|127\.0\.0\.1)(?::[^/]*)?(?:/|$)")
NOT_READ = re.compile(r"^(?:tests/|docs/history/|docs/peers\.md|deploy/download\.url|deploy/place\.py|.*\.(?:svg|png|gz|c|h|cpp|hpp|cu|json))")


def runbooks(place):
    return f"{place.site}/runbooks.html" if place.site else "docs/runbooks.md"


def wanted(root, place):
    """{file: (its text, the text that it must have)}, of files that the rules are about."""
    texts = {}
    for files, pattern, text in RULES:
        for name in files:
            own, new = texts.get(name) or [(root / name).read_text(encoding="utf-8")] * 2
            new, count = re.subn(pattern, lambda found, text=text: text(place, found), new)
            if count == 0:
                sys.exit(f"place.py: {name} has nothing like {pattern}: change the rule in deploy/place.py")
            texts[name] = own, new
    return texts


def others(text, place):
    """The places of a text that are not ours, nor nobody's."""
    ours = place.url.removeprefix("https://")
    for pattern in NAMES, TAKES:
        for found in pattern.finditer(text):
            if not NOBODYS.match(found[1]) and not (ours and (found[1] + "/").startswith(ours + "/") or ours and found[1].startswith(ours + ":")):
                yield text.count("\n", 0, found.start()) + 1, found[1]


def tracked(root):
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], stdout=subprocess.PIPE, check=True, timeout=60).stdout.decode()
    return [name for name in listed.split("\0") if name and not NOT_READ.match(name) and (root / name).is_file()]


def faults(root, place):
    for name, (own, new) in wanted(root, place).items():
        for number, (is_there, must) in enumerate(zip(own.splitlines(), new.splitlines()), 1):
            if is_there != must:
                yield f"{name}:{number}: must be: {must.strip()}"
                break
        else:
            if own != new:
                yield f"{name}: its end differs"
    for name in tracked(root):
        for number, other in others((root / name).read_text(encoding="utf-8"), place):
            yield f"{name}:{number}: names {other}, which is not the place of deploy/download.url ({place.url or 'none'})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true")
    what.add_argument("--print", choices=("url", "files", "site", "image", "distribution", "wheel"), dest="name")
    options = parser.parse_args()
    root = options.root.resolve()
    place = Place(root)
    if options.name:
        print(getattr(place, options.name))
        return 0
    if options.write:
        for name, (own, new) in wanted(root, place).items():
            if own != new:
                (root / name).write_text(new, encoding="utf-8")
                print(f"place.py: {name}")
    found = list(faults(root, place))
    for fault in found:
        print(f"place.py: {fault}", file=sys.stderr)
    if found and not options.write:
        print("place.py: deploy/place.py --write changes what follows from deploy/download.url and the distribution's name", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
