"""deploy/release.sh: what it refuses before it builds, what it makes with small parts in place of the builds, what its --verify finds, and that
what is built is what the lock files name."""
import functools
import hashlib
import http.server
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = "7.8.9"
CHANGELOG = f"# Changes\n\n## [Unreleased]\n\n## [{VERSION}] - 2030-02-03\n### Added\n- Something.\n"
spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
release = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(release)

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg-deb, which reads packages")

# Each part that takes minutes: files of the same names and metadata.
STUBS = {
    "deploy/packages.sh": """#!/bin/bash -e
[[ $1 != --for ]] || { echo "packages for $2"; exit 0; }
echo packages >>"$TMPDIR/built"
for name in amemd libamem-shim libamem-client0 libamem-client-dev python3-amem amem-sim-driver; do
  mkdir -p "$TMPDIR/$name/DEBIAN"
  printf 'Package: %s\\nVersion: %s-1~deb12\\nArchitecture: all\\nMaintainer: %s\\nDescription: x\\n' $name "$(<"$(dirname "$0")/../VERSION")" "$AMEM_MAINTAINER" \\
    >"$TMPDIR/$name/DEBIAN/control"
  dpkg-deb --root-owner-group --build "$TMPDIR/$name" "$1/${name}_1_all.deb" >/dev/null
done
""",
    "deploy/wheel.sh": """#!/bin/bash -e
[[ $1 != --static ]] || { shift; echo "static wheel with ${AMEM_STATIC##*/}"; }
python3 - "$1" "$(<"$(dirname "$0")/../VERSION")" <<'PYTHON'
import sys, zipfile
for name, version in ("amem", sys.argv[2]), ("torch_memory_saver", "0.0.10+amem" + sys.argv[2]):
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}-{version}-py3-none-manylinux_2_35_x86_64.whl", "w") as wheel:
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
PYTHON
""",
    "deploy/site.sh": '#!/bin/bash -e\nmkdir -p "$2/$(<"$(dirname "$0")/../VERSION")"\necho x >"$2/$(<"$(dirname "$0")/../VERSION")/index.html"\n',
    "deploy/sbom.py": """import json, pathlib, sys
parts = [{"properties": [{"name": "amem:file", "value": pathlib.Path(each).name}]} for each in sys.argv if "/out/" in each and not each.endswith(".json")]
pathlib.Path(sys.argv[sys.argv.index("--output") + 1]).write_text(json.dumps({"metadata": {"component": {"version": "7.8.9"}}, "components": parts}))
""",
    "deploy/place.py": "#!/usr/bin/env python3\nprint('', end='')\n",
    "deploy/image/build.sh": "#!/bin/bash\necho 'build.sh: there is none'\nexit 77\n",
    "deploy/image/base": "# A base.\nx.test/debian:12-slim\n",
    "deploy/deps.sh": '#!/bin/bash\necho "headers fetched: $1"\n',
    "deploy/static.sh": '#!/bin/bash\necho "static libraries in ${1##*/}"\n[[ $1 != */changed ]]\n',
    "deploy/kubernetes/check.sh": '#!/bin/bash\n[[ -f $2 ]]\n',
    "deploy/kubernetes/amem/Chart.yaml": f"name: amem\nversion: {VERSION}\nappVersion: {VERSION}  # likewise\n",
    "deploy/download.url": "# none\n",
    "client/python/pyproject.toml": f'[project]\nname = "amem"\nversion = "{VERSION}"\nauthors = [{{name = "the authors of amem"}}]\n',
    "client/python/dropin/pyproject.toml": f'[project]\nname = "torch_memory_saver"\nversion = "0.0.10+amem{VERSION}"\n',
    "SECURITY.md": "No key yet.\n",
    "VERSION": f"{VERSION}\n",
    "CHANGELOG.md": CHANGELOG,
    ".gitignore": "/dist/\n",
}


def git(tree, *arguments):
    return subprocess.run(["git", "-C", tree, "-c", "user.name=A", "-c", "user.email=a@b.test", *arguments], stdout=subprocess.PIPE, text=True,
                          check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Puts wheels into a package index, and has its address."""
    folder = tmp_path_factory.mktemp("index")

    def add(name, author="others", version="1.0", files=()):
        """With a line that locks it."""
        (folder / "simple" / name).mkdir(parents=True, exist_ok=True)
        file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        with zipfile.ZipFile(folder / "simple" / name / file, "w") as wheel:
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nAuthor: {author}\nProvides-Extra: json-validation\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
            for path, text in dict(files).items():
                member = zipfile.ZipInfo(path)
                member.external_attr = 0o100755 << 16
                wheel.writestr(member, text)
        (folder / "simple" / name / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{file}">{file}</a></body></html>')
        return f"{name}=={version} --hash=sha256:{hashlib.sha256((folder / 'simple' / name / file).read_bytes()).hexdigest()}\n"

    add.sbom = add("cyclonedx-python-lib")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        add.url = f"http://127.0.0.1:{server.server_port}/simple"
        add.remove = lambda name: shutil.rmtree(folder / "simple" / name)
        yield add
        server.shutdown()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run(["/usr/bin/python3", "-m", "venv", folder], check=True, timeout=120)
    return folder


@pytest.fixture
def tree(tmp_path, index, environment):
    """A checkout with release.sh, and small parts. It copies a virtual environment, which is faster than to make one."""
    made = tmp_path / "checkout"
    for name, text in {**STUBS, "deploy/locks/sbom.txt": index.sbom}.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
        (made / name).chmod(0o755 if text.startswith("#!") else 0o644)
    for name in "release.sh", "release.py", "locks/install.sh":
        shutil.copy(ROOT / "deploy" / name, made / "deploy" / name)
    script, makes = made / "deploy" / "release.sh", '/usr/bin/python3 -m venv "$work/tools"'
    assert makes in script.read_text()
    script.write_text(script.read_text().replace(makes, f'cp -a {environment} "$work/tools"'))
    subprocess.run(["git", "init", "-q", made], check=True, timeout=60)
    commit(made)
    return made


def commit(tree):
    git(tree, "add", "--all")
    git(tree, "commit", "-q", "-m", "x")


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """lintian and mkdocs are asked for, and not used by small parts."""
    folder = tmp_path_factory.mktemp("tools")
    for name in "lintian", "mkdocs":
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def make(tree, index, tools, tmp_path):
    """What release.sh says, and whether it got as far as to build."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def make(*arguments, status=0, **more):
        env = {**{name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "PIP_"))}, "TMPDIR": str(scratch),
               "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b.test", "PATH": f"{tools}:{os.environ['PATH']}", "PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull, **more}
        done = subprocess.run([tree / "deploy" / "release.sh", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=env, timeout=300, check=False)
        assert done.returncode == status, done.stdout
        built = (scratch / "built").exists()
        (scratch / "built").unlink(missing_ok=True)
        return done.stdout, built

    return make


class Keys:
    """Secret keys in a home of their own, by name: .of(NAME) is a fingerprint."""

    def __init__(self, home):
        self.home = home

    def gpg(self, *arguments, at=None, text=None):
        done = subprocess.run(["gpg", "--batch", "--yes", *(["--faked-system-time", f"{at}T000000!"] if at else []), *map(str, arguments)], input=text,
                              capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add(self, name, *lifetime, at=None):
        self.gpg("--passphrase", "", "--quick-generate-key", f"Re {name} <{name}@b.test>", "ed25519", "sign", *lifetime, at=at)
        return self.of(name)

    def of(self, name):
        return next(line.split(":")[9] for line in self.gpg("--with-colons", "--list-keys", f"{name}@b.test").splitlines() if line.startswith("fpr:"))

    def revoke(self, name, reason):
        """reason: as gpg numbers them; 1: it is stolen, 3: it is no longer used."""
        certificate = self.home / f"{name}.rev"
        subprocess.run(["gpg", "--no-tty", "--command-fd", "0", "--output", certificate, "--gen-revoke", self.of(name)], input=f"y\n{reason}\n\ny\n",
                       capture_output=True, text=True, timeout=120, check=True)
        self.gpg("--import", certificate)

    def file(self, *names):
        path = self.home / "-".join([*names, "public"])
        self.gpg("--armor", "--output", path, "--export", *map(self.of, names))
        return path

    def sign(self, folder, *names, at=None):
        users = [each for name in names for each in ("--local-user", f"{name}@b.test")]
        self.gpg("--armor", *users, "--output", folder / "SHA256SUMS.asc", "--detach-sign", folder / "SHA256SUMS", at=at)


@pytest.fixture
def keys(tmp_path_factory, monkeypatch):
    for tool in "gpg", "gpg-agent", "sqv":
        if not shutil.which(tool):
            pytest.skip(f"needs {tool} (deploy/deps.sh installs it)")
    home = tmp_path_factory.mktemp("g")
    home.chmod(0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    yield Keys(home)
    subprocess.run(["gpgconf", "--kill", "all"], check=False, timeout=60)


@pytest.fixture
def key(keys, tree):
    """The fingerprint of a key that the tree publishes."""
    fingerprint = keys.add("leaser")
    (tree / "SECURITY.md").write_text(f"Releases are signed by {fingerprint[:20]} {fingerprint[20:]}.\n")
    commit(tree)
    return fingerprint


def test_a_release_is_whole_signed_and_tagged_at_the_end(make, tree, key):
    shutil.copy(ROOT / "deploy" / "release.sh", tree / "deploy" / "release.sh")  # as it is
    commit(tree)
    said, _ = make("--tag", AMEM_SIGN_KEY=key)
    made = tree / "dist" / f"amem-{VERSION}"
    names = {path.name for path in made.iterdir()}
    assert {f"amem-{VERSION}.tar.gz", f"amem-{VERSION}.tgz", f"amem_site-{VERSION}.tar.gz", f"amem-{VERSION}.cdx.json", "SHA256SUMS", "SHA256SUMS.asc"} <= names
    assert len([name for name in names if name.endswith(".deb")]) == 6 and len([name for name in names if name.endswith(".whl")]) == 2
    assert f"signed by {key}" in said and "no image: build.sh: there is none" in said and "no packages for other distributions" in said
    assert git(tree, "rev-parse", f"v{VERSION}^{{commit}}") == git(tree, "rev-parse", "HEAD")
    git(tree, "verify-tag", f"v{VERSION}")
    maintainer = subprocess.run(["dpkg-deb", "-f", made / "amemd_1_all.deb", "Maintainer"], stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    assert maintainer == "Re leaser <leaser@b.test>\n"


def test_only_the_key_that_is_named_and_good_now_may_have_signed(make, tree, keys, monkeypatch, capsys):
    make("--candidate")
    made = tree / "dist" / f"amem-{VERSION}"
    for name in "good", "other", "stolen", "retired", "subkeys":
        keys.add(name, "never", at="20240101")
    for name in "expired", "lapsed":
        keys.add(name, "2024-06-01", at="20240101")

    def verify(words, name, *signers, fingerprint=None, file=None):
        if signers:
            keys.sign(made, *signers, at="20240501")
        assert words in (release.fault_of_signature(made, fingerprint or keys.of(name), file) or capsys.readouterr().out)

    good, fingerprint = keys.file("good"), keys.of("good")
    spaced = " ".join(fingerprint[at:at + 4] for at in range(0, 40, 4)).lower()
    for file in None, good, keys.file("good", "other"):
        verify(f"signed by {fingerprint}", "good", "good", file=file)
        verify(f"signed by {fingerprint}", "good", file=file, fingerprint=spaced)
        for shorter in fingerprint[-16:], fingerprint[-8:], "0x" + fingerprint, "good@b.test", fingerprint + "0":
            verify("is not 40 hexadecimal digits", "good", file=file, fingerprint=shorter)
        verify(f"signed by {fingerprint}", "good", "other", "good", file=file)
        verify(f"no valid signature of SHA256SUMS by {fingerprint}", "good", "other", file=file)
    verify(f"good-public has no key {keys.of('other')}", "other", file=good)
    verify(f"gpg has no key {'0' * 40}", "good", fingerprint="0" * 40)
    good.write_text("no key\n")
    verify(f"good-public has no key {fingerprint}", "good", file=good)
    # Whose time is over. At the date of the signature it was not yet; sqv alone takes all but the first.
    for name, reason in ("stolen", 1), ("retired", 3):
        verify(f"signed by {keys.of(name)}", name, name, file=keys.file(name))
        keys.revoke(name, reason)
        for file in None, keys.file(name):
            verify(f"the key {keys.of(name)} is revoked", name, file=file)
    for file in None, keys.file("expired"):
        verify("has expired", "expired", "expired", file=file)
    # gpg does not sign with a key that has expired, so the key is renewed for that.
    before = keys.file("lapsed")
    keys.gpg("--quick-set-expire", keys.of("lapsed"), "0", at="20240501")
    keys.sign(made, "lapsed")
    verify("has expired", "lapsed", file=before)
    verify("signed by", "lapsed", file=keys.file("lapsed"))
    # A subkey that has expired or is still good, of a key that is good.
    subkeys = keys.of("subkeys")
    keys.gpg("--passphrase", "", "--quick-add-key", subkeys, "ed25519", "sign", "2024-06-01", at="20240201")
    verify(f"no valid signature of SHA256SUMS by {subkeys}", "subkeys", "subkeys")
    keys.gpg("--passphrase", "", "--quick-add-key", subkeys, "ed25519", "sign", "never", at="20240301")
    verify(f"signed by {subkeys}", "subkeys", "subkeys")
    part = keys.gpg("--with-colons", "--list-keys", subkeys).split("fpr:::::::::")[2][:40]
    verify(f"gpg has no key {part}", "subkeys", fingerprint=part)
    for arguments in (), ("--key", good):
        assert "Give --fingerprint" in make("--verify", *arguments, made, status=1)[0]
    assert "not allowed with" in make("--verify", "--unsigned", "--fingerprint", fingerprint, made, status=1)[0]
    assert f"the key {keys.of('stolen')} is revoked" in make("--verify", "--fingerprint", keys.of("stolen"), "--key", keys.file("stolen"), made, status=1)[0]
    with monkeypatch.context() as without:
        without.setenv("PATH", "/nowhere")
        verify("there is no gpg here", "good", fingerprint=fingerprint)


def test_what_was_not_signed_is_found(make, tree, keys):
    make("--candidate")
    made = tree / "dist" / f"amem-{VERSION}"
    keys.add("good")
    keys.sign(made, "good")
    arguments = "--verify", "--fingerprint", keys.of("good"), made
    assert "is as it must be" in make(*arguments)[0]
    sums = (made / "SHA256SUMS").read_text()

    def refused(words):
        assert words in make(*arguments, status=1)[0]

    (made / "more").touch()
    refused("more is not in SHA256SUMS")
    (made / "more").unlink()
    package = made / "amemd_1_all.deb"
    kept = package.read_bytes()
    package.unlink()
    refused("amemd_1_all.deb is missing")
    package.write_bytes(b"others'")
    refused("amemd_1_all.deb has another checksum")
    changed = hashlib.sha256(b"others'").hexdigest() + "  amemd_1_all.deb\n"
    (made / "SHA256SUMS").write_text("".join(changed if "amemd_1_all.deb" in line else line for line in sums.splitlines(True)))
    refused("is no valid signature of SHA256SUMS")
    package.write_bytes(kept)
    (made / "SHA256SUMS").write_text(sums + "a line\n")
    refused("SHA256SUMS has a line that is no checksum: a line")
    (made / "SHA256SUMS").write_text(sums)
    (made / "SHA256SUMS.asc").write_text("no signature\n")
    refused("is no valid signature of SHA256SUMS")
    (made / "SHA256SUMS.asc").unlink()
    refused("SHA256SUMS.asc is missing")


def test_a_candidate_needs_no_key_and_only_warns(make, tree):
    (tree / "CHANGELOG.md").write_text("# Changes\n\n## [Unreleased]\n- Something.\n")
    said, built = make("--candidate")
    assert built and "warning: a release would not be made" in said and "CHANGELOG.md" not in said, "it is of the commit"
    commit(tree)
    shutil.rmtree(tree / "dist")
    assert "packages for rhel9" not in said
    said, built = make("--candidate", "--static")
    assert built and "CHANGELOG.md has entries below [Unreleased]" in said
    assert "headers fetched: --headers\nstatic libraries in static\n" in said
    assert "packages for rhel9\npackages for ubuntu22.04\nstatic wheel with static\n" in said
    assert "SHA256SUMS.asc is missing" in make("--verify", "--fingerprint", "0" * 40, tree / "dist" / f"amem-{VERSION}", status=1)[0]


def test_what_is_wrong_is_refused_before_the_build(make, tree, keys, key, index):
    def refused(words, *arguments, **more):
        said, built = make(*arguments, status=1, **{"AMEM_SIGN_KEY": key, **more})
        assert words in said and not built, said

    refused("AMEM_SIGN_KEY does not name", AMEM_SIGN_KEY="")
    refused("gpg has no secret key nobody@b.test", AMEM_SIGN_KEY="nobody@b.test")
    refused("--tag is for a release", "--candidate", "--tag")
    refused(f"SECURITY.md does not name the key that signs: put its fingerprint {keys.add('other')} there", AMEM_SIGN_KEY="other@b.test")
    (tree / "deploy" / "image" / "build.sh").write_text("#!/bin/bash\necho docker\n")
    commit(tree)
    refused("deploy/image/base has no digest of the base image")
    (tree / "more").touch()
    refused("the checkout has changes that are not committed")
    (tree / "more").unlink()
    refused("did not say whether it has amem", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    index("amem")
    refused("the name amem belongs to others in the package index (version 1.0, author others)")
    index.remove("amem")
    index("a-mem")
    refused("the package index has a-mem, which it does not tell from amem")
    index.remove("a-mem")
    git(tree, "tag", f"v{VERSION}")
    (tree / "CHANGELOG.md").write_text(CHANGELOG.replace("## [Unreleased]\n", "## [Unreleased]\n- More.\n"))
    commit(tree)
    refused(f"the tag v{VERSION} is of ")
    git(tree, "tag", "--delete", f"v{VERSION}")
    refused("CHANGELOG.md has entries below [Unreleased]")


def test_a_name_that_is_ours_is_no_fault(index, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    index("amem", author="the authors of amem", version="0.0.1")
    own = tmp_path / "client" / "python" / "pyproject.toml"
    own.parent.mkdir(parents=True)
    own.write_text(STUBS["client/python/pyproject.toml"])
    command = [tmp_path / "venv" / "bin" / "python", "-B", ROOT / "deploy" / "release.py", "name", tmp_path]
    done = subprocess.run(command, env={"PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True, timeout=120, check=False)
    index.remove("amem")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text, words", [
    (CHANGELOG, ""),
    (CHANGELOG.replace("## [Unreleased]\n\n", ""), ""),
    (CHANGELOG.replace("## [Unreleased]\n", "## [Unreleased]\n### Fixed\n"), ""),
    (CHANGELOG.replace("## [Unreleased]\n", "## [Unreleased]\n### Fixed\n- It.\n"), "below [Unreleased]"),
    (CHANGELOG.replace(f"[{VERSION}] - 2030-02-03", f"[{VERSION}]"), "no date"),
    (CHANGELOG.replace(f"[{VERSION}]", "[7.8.8]"), "but 7.8.8"),
    (CHANGELOG.replace(f"[{VERSION}]", f"[{VERSION}0]"), f"but {VERSION}0"),
    (CHANGELOG.replace("- Something.\n", ""), "says nothing"),
    ("# Changes\n", "but none"),
])
def test_changelog(text, words):
    found = list(release.faults_of_changelog(text, VERSION))
    assert found == [] if not words else len(found) == 1 and words in found[0]


def test_ours_is_that_with_our_author_and_our_page():
    own = {"name": "amem", "authors": [{"name": "A"}]}
    page = {**own, "urls": {"Homepage": "https://x.test/amem"}}
    assert release.is_ours({"author": "A"}, own) and not release.is_ours({"author": "B"}, own) and not release.is_ours({}, own)
    assert release.is_ours({"author": "A", "project_url": ["Homepage, https://x.test/amem"]}, page)
    assert not release.is_ours({"author": "A", "project_url": ["Homepage, https://y.test/amem"]}, page)
    assert release.fault_of_name(own, {"amem": None, "a-mem": None}.get) is None
    assert "a-mem" in release.fault_of_name(own, {"amem": None, "a-mem": {}}.get)
    assert release.fault_of_name({**own, "name": "amem-x"}, {"a-mem": {}}.get) is None


def test_what_an_index_does_not_tell_apart():
    assert release.alike("a-mem") == release.alike("AMem") == release.alike("a_m.em") != release.alike("amem-gpu")
    assert release.alike("lib") == release.alike("1ib") and release.alike("one") == release.alike("0ne")


def test_a_release_of_mixed_versions_is_found(make, tree):
    make("--candidate")
    made = tree / "dist" / f"amem-{VERSION}"
    (made / "amem_more-1.whl").touch()
    (made / f"amem-{VERSION}-py3-none-manylinux_2_35_x86_64.whl").unlink()
    with zipfile.ZipFile(made / "amem_more-1.whl", "w") as wheel:
        wheel.writestr("amem-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: amem-more\nVersion: 7.8.8\nProject-URL: Homepage, https://x.test\n")
    with zipfile.ZipFile(made / "torch_memory_saver-8.whl", "w") as wheel:
        wheel.writestr("x-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: torch-memory-saver\nVersion: {VERSION}\n")
    (made / "python3-amem_1_all.deb").unlink()
    said, _ = make("--verify", "--unsigned", made, status=1)
    assert "amem_more-1.whl is not in SHA256SUMS" in said and "python3-amem_1_all.deb is missing" in said and "there is no" not in said, said
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made.iterdir() if path.name != "SHA256SUMS"]
    (made / "SHA256SUMS").write_text("".join(sums))
    said, _ = make("--verify", "--unsigned", made, status=1)
    for words in ("there is no package python3-amem", "there is no wheel of amem", "amem_more-1.whl is of the distribution amem-more", "amem_more-1.whl has version 7.8.8",
                  "amem_more-1.whl has the home page https://x.test, not none", "the SBOM does not list amem_more-1.whl"):
        assert words in said, said
    assert "torch_memory_saver-8.whl has" not in said


def test_the_versions_of_a_tree(tree):
    assert list(release.faults_of_tree(tree)) == []
    for name, words in {"client/python/pyproject.toml": "client/python/pyproject.toml has version 7.8.8",
                        "client/python/dropin/pyproject.toml": "does not end in +amem7.8.9",
                        "deploy/kubernetes/amem/Chart.yaml": "Chart.yaml has appVersion 7.8.8"}.items():
        (tree / name).write_text(STUBS[name].replace(VERSION, "7.8.8"))
        assert any(words in fault for fault in release.faults_of_tree(tree)), name
        (tree / name).write_text(STUBS[name])
    (tree / "deploy" / "place.py").write_text("raise SystemExit('another place')")
    assert list(release.faults_of_tree(tree)) == ["another place"]


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_release_is_only_of_what_the_lock_files_name(make, tree, index):
    def stopped(words, *arguments, **more):
        said, built = make("--candidate", *arguments, status=1, **more)
        assert words in said, said
        return built

    assert not stopped("static libraries in changed", "--static", AMEM_STATIC="/nowhere/changed")
    lock = tree / "deploy" / "locks" / "sbom.txt"
    change(lock, "--hash=sha256:", "--hash=sha256:" + "0" * 64 + " #")
    commit(tree)
    assert "cyclonedx-python-lib" in index.sbom and stopped("deploy/locks/sbom.txt names")
    lock.write_text("cyclonedx-python-lib==1.0\n")
    commit(tree)
    stopped("Hashes are required in --require-hashes mode")
    lock.write_text(index.sbom)
    (tree / "deploy" / "image" / "build.sh").write_text('#!/bin/bash\n[[ $1 == --builder ]] && echo docker\n')
    change(tree / "deploy" / "image" / "base", "12-slim", "12-slim sha256:" + "1" * 64)
    commit(tree)
    assert "has no digest" not in make("--candidate", status=1)[0]  # this image does not get built


def test_headers_are_those_of_the_lock_files(tmp_path, index):
    for name in "deploy/deps.sh", "cmake/cuda_headers.txt":
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    names = [line for line in (ROOT / "cmake" / "cuda_headers.txt").read_text().splitlines() if not line.startswith("#")]
    headers = {f"nvidia/cu13/include/{name}": "#define CUDA_VERSION 13000\n" for name in names}
    locks = tmp_path / "deploy" / "locks"
    locks.mkdir()
    (locks / "cuda.txt").write_text(index("nvidia-cuda-runtime", version="13.0.1", files=headers))
    (locks / "nccl.txt").write_text(index("nvidia-nccl-cu13", version="2.28.1", files={
        "nvidia/nccl/include/nccl.h": "#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n"}))

    def fetch():
        return subprocess.run([tmp_path / "deploy" / "deps.sh", "--headers"], env={**os.environ, "PIP_INDEX_URL": index.url, "PIP_CONFIG_FILE": os.devnull},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)

    said = fetch()
    assert said.returncode == 0 and "nvidia-cuda-runtime==13.0.1 nvidia-nccl-cu13==2.28.1" in said.stdout, said.stdout
    fetched = tmp_path / "build" / "headers" / "nvidia" / "cu13" / "include" / "cuda.h"
    assert f"headers: CUDA in {fetched.parent}" in said.stdout
    fetched.write_text("changed since")
    assert fetch().returncode == 0 and fetched.read_text() == "#define CUDA_VERSION 13000\n"
    change(locks / "cuda.txt", "sha256:", "sha256:" + "0" * 64 + " #")
    said = fetch()
    assert said.returncode == 1 and "nvidia-cuda-runtime" in said.stdout and "DO NOT MATCH THE HASHES" in said.stdout


# A builder that knows one image, by a digest.
BUILDER = """#!/bin/bash
echo "$@" >>"$0.log"
[[ $1 != image ]] || echo "docker.io/library/debian@sha256:DIGEST"
"""


def test_the_image_is_built_on_the_digest_that_was_locked(tmp_path):
    tree, builder = tmp_path / "tree", tmp_path / "docker"
    shutil.copytree(ROOT / "deploy" / "image", tree / "deploy" / "image")
    (tree / "deploy" / "place.py").write_text("#!/bin/sh\n")
    (tree / "deploy" / "place.py").chmod(0o755)
    (tree / "VERSION").write_text("1\n")
    (tree / ".gitignore").write_text("/build/\n")
    (tree / "deploy" / "image" / "base").write_text("# A base.\nx.test:5000/debian:12-slim\n")
    subprocess.run(["git", "init", "-q", tree], check=True, timeout=60)

    def build(*arguments, status=0):
        commit(tree)
        log = tmp_path / "docker.log"
        log.unlink(missing_ok=True)
        done = subprocess.run([tree / "deploy" / "image" / "build.sh", *arguments], env={**os.environ, "AMEM_BUILDER": str(builder)}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        assert done.returncode == status, done.stdout
        (tree / "x").write_text(done.stdout + log.read_text())  # each commit has a change
        return done.stdout + log.read_text()

    builder.write_text(BUILDER)
    builder.chmod(0o755)
    said = build("amem:1")
    assert "warning: deploy/image/base has no digest" in said and "BASE=x.test:5000/debian:12-slim " in said
    assert "does not say which digest x.test:5000/debian:12-slim has, but: sha256:DIGEST" in build("--lock", status=1)
    builder.write_text(BUILDER.replace("DIGEST", "ab" * 32))
    said = build("--lock")
    assert "pull --quiet x.test:5000/debian:12-slim" in said and f"as sha256:{'ab' * 32} now" in said
    assert (tree / "deploy" / "image" / "base").read_text() == f"# A base.\nx.test:5000/debian:12-slim sha256:{'ab' * 32}\n"
    said = build("amem:1")
    assert f"BASE=x.test:5000/debian@sha256:{'ab' * 32} " in said and "warning" not in said
    assert "BASE=mine " in build("--base", "mine", "amem:1")
    builder.write_text('#!/bin/sh\necho no registry | tee "$0.log"\nexit 1\n')
    kept = (tree / "deploy" / "image" / "base").read_text()
    assert "there is no x.test:5000/debian:12-slim from here" in build("--lock", status=1)
    assert (tree / "deploy" / "image" / "base").read_text() == kept


# What stands in for Debian's archive, a build system and a compiler.
TOOLS = {
    "apt-get": """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 != -o ]] || shift; shift; done
case $1 in
  source) name=${2%%=*}; cp "$ARCHIVE/${name}_${2##*[=:]}".* . ;;
  download) cp "$ARCHIVE/${2%%=*}_${2##*[=:]}_all.deb" . ;;
esac
""",
    "apt-cache": """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 != -o ]] || shift; shift; done
cat "$ARCHIVE/$2.$1"
""",
    "cmake": "#!/bin/sh\n", "ninja": "#!/bin/sh\n", "protoc": "#!/bin/sh\necho libprotoc 1.0\n",
}
COMPILER = {
    "ziglang/zig": "#!/bin/sh\necho VERSION\n",
    "ziglang/LICENSE": "MIT\n",
    "ziglang/lib/libcxx/LICENSE.TXT": "Apache\n",
    "ziglang/lib/libcxx/include/__config": "#  define _LIBCPP_VERSION 170006\n",
}


class Static:
    """A checkout with static.sh, and an archive with sources of zlib and protobuf, and a package."""

    def __init__(self, folder, index):
        self.root, self.archive, self.tools, self.index = folder / "tree", folder / "archive", folder / "tools", index
        for name in "static.sh", "locks/install.sh", "static/compiler.sh", "static/toolchain.cmake", "static/glibc":
            (self.root / "deploy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "deploy" / name, self.root / "deploy" / name)
        self.tools.mkdir()
        for name, text in TOOLS.items():
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)
        self.archive.mkdir()
        self.compiler("0.1")
        self.lock = self.root / "deploy" / "static" / "lock"
        lines = [self.source("zlib", "1:1.0"), self.source("protobuf", "1.0"), self.package("libcli11-dev", "1.0")]
        self.lock.write_text("# Of what it builds.\n" + "".join(lines))

    def compiler(self, version):
        files = {path: text.replace("VERSION", version) if path.endswith("zig") else text for path, text in COMPILER.items()}
        (self.root / "deploy" / "locks" / "zig.txt").write_text(self.index("ziglang", version=version, files=files))

    def add_version(self, name, version, listing, file):
        path = self.archive / f"{name}.{listing}"
        path.write_text((path.read_text() if path.exists() else "") + f"Package: {name}\nVersion: {version}\n")
        return f"{'source' if listing == 'showsrc' else 'package'} {name} {version} {hashlib.sha256(file.read_bytes()).hexdigest()}\n"

    def source(self, name, version):
        plain = version.split(":")[-1]
        folder = self.archive / f"{name}-{plain}"
        (folder / "debian" / "source").mkdir(parents=True)
        (folder / "debian" / "source" / "format").write_text("3.0 (native)\n")
        (folder / "debian" / "copyright").write_text("Files: *\nLicense: Zlib\n")
        (folder / "debian" / "control").write_text(f"Source: {name}\nMaintainer: A <a@b.test>\n\nPackage: {name}\nArchitecture: any\nDescription: x\n")
        (folder / "debian" / "changelog").write_text(f"{name} ({version}) x; urgency=low\n\n  * X.\n\n -- A <a@b.test>  Sat, 02 Mar 2030 00:00:00 +0000\n")
        (folder / "configure").write_text('#!/bin/sh\nprefix=${2#*=}\nprintf "CC=%s\\nCFLAGS=%s\\nPREFIX=%s\\n" "$CC" "$CFLAGS" "$prefix" >values\n')
        (folder / "configure").chmod(0o755)
        (folder / "Makefile").write_text(f"include values\ninstall:\n\tmkdir $(PREFIX)/lib\n\techo {version} $(CC) $(CFLAGS) $$SOURCE_DATE_EPOCH >$(PREFIX)/lib/libz.a\n")
        subprocess.run(["dpkg-source", "-b", folder.name], cwd=self.archive, check=True, capture_output=True, timeout=60)
        return self.add_version(name, version, "showsrc", self.archive / f"{name}_{plain}.dsc")

    def package(self, name, version):
        folder = self.archive / name
        for path, text in {"DEBIAN/control": f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@b.test>\nDescription: x\n",
                           f"usr/share/doc/{name}/copyright": "Files: *\nLicense: BSD\n", "usr/include/CLI.hpp": version}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        file = self.archive / f"{name}_{version}_all.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", folder, file], check=True, capture_output=True, timeout=60)
        return self.add_version(name, version, "show", file)

    def build(self, folder, *options, status=0, **more):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("AMEM_", "PIP_")) and name != "SOURCE_DATE_EPOCH"}
        env |= {"PATH": f"{self.tools}:{os.environ['PATH']}", "ARCHIVE": str(self.archive), "PIP_INDEX_URL": self.index.url, "PIP_CONFIG_FILE": os.devnull}
        done = subprocess.run([self.root / "deploy" / "static.sh", *options, folder], env={**env, **more}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
        assert done.returncode == status, done.stdout
        return done.stdout


@pytest.fixture
def static(tmp_path, index):
    return Static(tmp_path, index)


def test_static_libraries_are_the_same_bytes_in_any_folder(static, tmp_path):
    first, second = tmp_path / "first", tmp_path / "a-folder-with-a-longer-name"
    said = static.build(first)
    assert "static: zlib 1:1.0\n" in said and "static: libcli11-dev 1.0\n" in said and "is complete" in said
    static.build(second, TZ="Pacific/Auckland", SOURCE_DATE_EPOCH="1")
    for path in "zlib/lib/libz.a", "zlib/VERSION", "zlib/copyright", "zlib/ARCHITECTURE", "libcli11-dev/include/CLI.hpp", "llvm-libcxx/VERSION":
        assert (first / "packages" / path).read_bytes() == (second / "packages" / path).read_bytes(), path
    assert (first / "packages" / "zlib" / "lib" / "libz.a").read_text().endswith("1898640000\n"), "the date of Debian's change"
    assert (first / "packages" / "libcli11-dev" / "ARCHITECTURE").read_text() == "all\n"
    assert static.build(first) == f"static: {first} is complete\n"


def test_a_static_build_that_the_lock_file_does_not_name_is_not_taken(static, tmp_path):
    built = tmp_path / "built"
    static.build(built)
    old = static.lock.read_text()
    static.lock.write_text(old.replace(old.splitlines(True)[1], static.source("zlib", "1:1.1")).replace(old.splitlines(True)[3], ""))
    said = static.build(built)
    assert "static: zlib 1:1.1\n" in said and "static: protobuf 1.0\n" in said, "built with another one before it"
    assert (built / "packages" / "zlib" / "lib" / "libz.a").read_text().startswith("1:1.1 ")
    assert not (built / "packages" / "libcli11-dev").exists(), "toolchain.cmake would find it"
    static.compiler("0.2")
    said = static.build(built)
    assert "fetching the compiler" in said and "static: zlib 1:1.1\n" in said
    assert (built / "packages" / "zig-compiler-rt" / "VERSION").read_text() == "0.2\n"
    change(static.root / "deploy" / "locks" / "zig.txt", "sha256:", "sha256:" + "0" * 64 + " #")
    said = static.build(built, status=1)
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in said and "ziglang" in said and "deploy/locks/zig.txt" in said


def test_files_that_are_not_those_of_the_lock_file_are_refused_by_name(static, tmp_path):
    built = tmp_path / "built"
    lock = static.lock.read_text()

    def refused(*words):
        said = static.build(built, status=1)
        assert all(each in said for each in words), said
        assert "is complete" not in said

    for kind, name, version, digest in [line.split() for line in lock.splitlines()[1:]]:
        static.lock.write_text(lock.replace(digest, "0" * 64))
        file = f"{built}/sources/{name}_{version.split(':')[-1]}.{'deb' if kind == 'package' else 'dsc'}"
        refused(f"{file} is not what deploy/static/lock names, whose SHA-256 is {'0' * 64}")
        static.lock.write_text(lock)
        pathlib.Path(file).write_text("others'\n")
        refused(f"{file} is not what deploy/static/lock names, whose SHA-256 is {digest}")
        pathlib.Path(file).unlink()
    static.build(built)
    archive = built / "sources" / "zlib_1.0.tar.xz"
    kept = archive.read_bytes()
    archive.write_bytes(kept + b"more")
    refused("zlib_1.0.tar.xz: FAILED", f"files of {built}/sources/zlib_1.0.dsc are not what it names")
    archive.unlink()
    refused("zlib_1.0.tar.xz", f"files of {built}/sources/zlib_1.0.dsc are not what it names")
    archive.write_bytes(kept)
    assert static.build(built) == f"static: {built} is complete\n"
    static.lock.write_text(lock + "binary x 1.0 0\n")
    refused("deploy/static/lock: binary is neither source nor package")


def test_a_version_that_the_archive_has_no_longer(static, tmp_path):
    built = tmp_path / "built"
    gone = tmp_path / "gone"
    gone.mkdir()
    for path in static.archive.glob("zlib_1.0.*"):
        path.rename(gone / path.name)
    said = static.build(built, status=1)
    assert "no source zlib 1:1.0, which deploy/static/lock names" in said and "snapshot.debian.org" in said and f"into {built}/sources, this one as zlib_1.0.dsc" in said
    for path in gone.iterdir():
        shutil.copy(path, built / "sources")
    assert "is complete" in static.build(built)


def test_a_new_lock_file_has_the_newest_whole_versions(static, tmp_path):
    old = static.lock.read_text()
    newer = static.source("zlib", "1:1.2"), static.package("libcli11-dev", "1.10")
    static.source("zlib", "1:1.10")
    (static.archive / "zlib_1.10.dsc").unlink()
    (static.archive / "zlib_1.10.tar.xz").unlink()
    said = static.build(tmp_path / "built", "--lock")
    assert "the archive lacks a part of zlib 1:1.10" in said and "Read its changes" in said
    lines = old.splitlines(True)
    assert static.lock.read_text() == "".join([lines[0], newer[0], lines[2], newer[1]])
    assert "static: zlib 1:1.2\n" in static.build(tmp_path / "built")
