"""deploy/place.py: one file says where downloads lie and one what the distribution is called; all others follow, and any other place is found."""
import pathlib
import shutil
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
URL = "https://downloads.test:8443/gpu/amem"
VERSION = (ROOT / "VERSION").read_text(encoding="utf-8").strip()


def place(tree, *options):
    return subprocess.run([sys.executable, "-B", ROOT / "deploy" / "place.py", "--root", tree, *options], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, check=False)


@pytest.fixture
def tree(tmp_path):
    """What is tracked, as it is here, without the tests."""
    made = tmp_path / "tree"
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--", ":!tests"], stdout=subprocess.PIPE, check=True, timeout=60).stdout.decode()
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, made / name)
    subprocess.run(["git", "init", "-q", made], check=True, timeout=60)
    subprocess.run(["git", "-C", made, "add", "--all"], check=True, timeout=60)
    return made


def texts(tree):
    return {path.relative_to(tree): path.read_bytes() for path in tree.rglob("*") if path.is_file() and ".git" not in path.parts}


def say(tree, url):
    file = tree / "deploy" / "download.url"
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    file.write_text("\n".join(lines + ([url] if url else [])) + "\n", encoding="utf-8")


def test_this_tree_names_its_place_alone():
    done = place(ROOT)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_place_is_written_everywhere_and_taken_back(tree):
    was = texts(tree)
    say(tree, "")
    place(tree, "--write")
    empty = texts(tree)
    say(tree, URL)
    before = place(tree)
    assert before.returncode == 1 and "docs/python.md" in before.stdout and "deploy/grafana/alerts.yaml" in before.stdout
    written = place(tree, "--write")
    assert written.returncode == 0 and place(tree).stdout == "", written.stdout

    def read(name):
        return (tree / name).read_text(encoding="utf-8")

    image = URL.removeprefix("https://")
    for name, text in {"docs/getting-started.md": f"[Download both]({URL}/{VERSION}/)", "docs/ray.md": f'pip install "{URL}/{VERSION}/',
                       "docs/python.md": f"pip install {URL}/{VERSION}/", "docs/kubernetes.md": f"docker pull {image}:{VERSION}\n",
                       "deploy/kubernetes/amem/values.yaml": f"  repository: {image}\n",
                       "deploy/kubernetes/amem/Chart.yaml": f"\nhome: {URL}\n",
                       "deploy/kubernetes/examples/jobset.yaml": f"image: {image}:{VERSION}\n",
                       "deploy/kubernetes/amem.yaml": f"image: {image}:{VERSION}\n"}.items():
        assert text in read(name), name
    for name in "client/python/pyproject.toml", "client/python/dropin/pyproject.toml":
        assert tomllib.loads(read(name))["project"]["urls"] == {"Homepage": URL}
    assert f'runbook_url: "{URL}/docs/{VERSION}/runbooks.html#amemddown"' in read("deploy/grafana/alerts.yaml")
    assert "There is no download" not in read("docs/getting-started.md") and " ./amem-0" not in read("docs/python.md")

    say(tree, URL + "/another/amem")  # from one to another
    assert place(tree, "--write").returncode == 0 and place(tree).returncode == 0
    say(tree, "")
    assert place(tree, "--write").returncode == 0
    assert texts(tree) == empty
    if not place(ROOT, "--print", "url").stdout.strip():
        assert empty == was


def test_another_version_and_another_name_reach_the_pages(tree):
    (tree / "VERSION").write_text("0.2.10\n", encoding="utf-8")
    project = tree / "client" / "python" / "pyproject.toml"
    name = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["name"]
    project.write_text(project.read_text(encoding="utf-8").replace(f'name = "{name}"', 'name = "amem-other"'), encoding="utf-8")
    assert place(tree, "--write").returncode == 0
    page = (tree / "docs" / "python.md").read_text(encoding="utf-8")
    assert "amem_other-0.2.10-py3-none-manylinux" in page and VERSION not in page
    assert "pip install amem_other-*.whl" in (tree / "README.md").read_text(encoding="utf-8")
    assert "| `amem-other[broker]` |" in (tree / "client" / "python" / "about.md").read_text(encoding="utf-8")
    assert "amem:0.2.10" in (tree / "deploy" / "kubernetes" / "amem.yaml").read_text(encoding="utf-8")
    assert place(tree, "--print", "distribution").stdout == "amem-other\n"


@pytest.mark.parametrize("line", [
    "See https://elsewhere.test/amem.", "docker run ghcr.elsewhere.test/somebody/amem:0.1.0", "git clone https://elsewhere.test/x.git",
    "pip install --index-url https://elsewhere.test/simple amem", "Homepage: https://elsewhere.test", "helm pull oci://elsewhere.test/charts/x"])
def test_another_place_is_found(tree, line):
    page = tree / "docs" / "operating.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text + line + "\n", encoding="utf-8")
    done = place(tree)
    assert done.returncode == 1 and f"docs/operating.md:{text.count(chr(10)) + 1}: names " in done.stdout and "elsewhere.test" in done.stdout


@pytest.mark.parametrize("line", [
    "See https://github.com/others/asystem-amem.", "docker push registry.example/amem:0.1.0", "`/usr/lib/amem/sim`", "curl http://localhost:8000/metrics",
    "https://amem.example/runbooks.html", "[words](words.md) and python3.11/amem"])
def test_what_is_no_place_of_ours_is_let_be(tree, line):
    page = tree / "docs" / "operating.md"
    page.write_text(page.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    assert place(tree).stdout == ""


@pytest.mark.parametrize("url", ["http://downloads.test/amem", "https://downloads.test/", "https://Downloads.test/amem", "downloads.test/amem",
                                 "https://a.test/amem\nhttps://b.test/amem"])
def test_what_is_no_address_is_refused(tree, url):
    say(tree, url)
    done = place(tree, "--print", "url")
    assert done.returncode == 1 and "deploy/download.url must have one line" in done.stdout
