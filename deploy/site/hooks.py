"""What mkdocs is told of this source tree: links that leave docs/, and pages that are made of files outside it."""
import os
import pathlib
import posixpath
import re
import subprocess
import sys
import tempfile

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPOSITORY = os.environ.get("AMEM_SITE_REPOSITORY", "").rstrip("/")
COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "deploy/site/python.md": "reference/python.md"}
REFERENCE = {
    "reference/c.md": ("C API", "client/include/amem/amem.h"),
    "reference/grpc.md": ("gRPC API", "proto/amem/v1/broker.proto"),
}
PLACE = ROOT / "deploy" / "place.py"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_made = tempfile.TemporaryDirectory(prefix="amem-site-")  # lives as long as the build


def reference(title, source):
    """The file as it is, in parts: each is a comment at the margin and what it is about."""
    lines = [f"# {title}", "", f"Made of `{source}`.", ""]
    parts = re.split(r"\n\s*\n", (ROOT / source).read_text())
    for part in parts:
        lines += ["```" + ("c" if source.endswith(".h") else "proto"), part.strip("\n"), "```", ""]
    return "\n".join(lines)


def lists(markdown):
    """Lists and tables as Python-Markdown reads them: with an empty line in front, and four blanks before what is in an item. The pages have
    them as GitHub reads them, with none, and with as many blanks as the item's text begins at."""
    made, items, fence = [], [], ""  # the columns at which the texts of the open items begin

    def apart():
        if made and made[-1].strip():
            made.append("")

    for line in markdown.split("\n"):
        mark = re.match(r"( *)(```+|~~~+)", line)
        if fence:
            made.append("    " * len(items) + line[min(items[-1] if items else 0, len(line) - len(line.lstrip())):])
            if mark and line.strip() == fence:
                fence = ""
                made += [""] if items else []
            continue
        if not line.strip():
            made.append(line)
            continue
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("|") and made and not made[-1].lstrip().startswith("|"):
            apart()
        item = re.match(r" *(?:[-*+]|\d+\.) +(?=\S)", line)
        if item and not items and made and made[-1].strip() and re.match(r" *(?!1\.)\d", line):
            item = None  # text whose line begins with a number
        if item or mark or not made or not made[-1].strip() or line.startswith("#"):
            while items and indent < items[-1]:
                items.pop()
        if item:
            if not items and not re.match(r" *(?:[-*+]|\d+\.) ", made[-1] if made else ""):
                apart()
            made.append("    " * len(items) + line.strip())
            items.append(len(item[0]))
        elif mark:
            fence = mark[2]
            if items:
                apart()
            made.append("    " * len(items) + line[items[-1] if items else 0:])
        else:
            made.append("    " * len(items) + line[min(items[-1], indent):] if items else line)
    return "\n".join(made)


def on_config(config):
    """Where the site lies, and where the theme's link leads to, if deploy/download.url says a place."""
    url, site = (subprocess.run([sys.executable, "-B", str(PLACE), "--print", what], stdout=subprocess.PIPE, text=True, check=True,
                                timeout=60).stdout.strip() for what in ("url", "site"))
    config["site_url"] = site + "/" if site else None
    config["repo_url"] = REPOSITORY or url or None
    config["repo_name"] = "amem" if config["repo_url"] else None
    return config


def on_files(files, config):
    made = {page: reference(*what) for page, what in REFERENCE.items()}
    made |= {page: (ROOT / source).read_text() for source, page in COPIED.items()}
    for page, text in made.items():
        path = pathlib.Path(_made.name) / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        files.append(File(page, _made.name, config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown, page, **_):
    here = page.file.src_uri
    came_from = next((source for source, made in COPIED.items() if made == here), "docs/" + here)

    def rewrite(match):
        text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(came_from), path))
        anchor = "#" + anchor if anchor else ""
        inside = COPIED.get(path) or (path[5:] if path.startswith("docs/") and path[5:] else None)
        if inside and not (ROOT / path).is_dir():
            return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(here) or '.')}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # strict mode says that it is broken
        return f"[{text}]({REPOSITORY}/{path}{anchor})" if REPOSITORY else text

    return LINK.sub(rewrite, lists(markdown))
