#!/usr/bin/env python3
"""Looks at each link and anchor inside a built site, and for tables that are still text: links.py DIRECTORY. Ends with 1, and says where,
when one is broken."""
import html.parser
import pathlib
import re
import sys
import urllib.parse

CODE = ("pre", "code", "script")


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.prose, self.code = {""}, [], "", 0
        self.feed(text)

    def handle_data(self, data):
        if not self.code:
            self.prose += data

    def handle_endtag(self, tag):
        self.code -= tag in CODE

    def handle_starttag(self, tag, attrs):
        self.code += tag in CODE
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def broken(site):
    # 404.html has links from the root of whatever host serves it.
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    if not pages:
        yield f"{site}: has no pages"
    for path, page in pages.items():
        for text in re.findall(r"(?m)^.*\n(?=\| *:?---)", page.prose):
            yield f"{path.relative_to(site)}: {text.strip()}: a table that is shown as text"
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists():
                yield f"{path.relative_to(site)}: {link}: no such file"
            elif target in pages and anchor not in pages[target].anchors:
                yield f"{path.relative_to(site)}: {link}: no such anchor"


if __name__ == "__main__":
    found = list(broken(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(found) or "links: all lead somewhere")
    sys.exit(1 if found else 0)
