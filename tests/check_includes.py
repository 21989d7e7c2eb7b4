#!/usr/bin/env python3
"""Checks the folders of the source tree: check_includes.py [ROOT]. Exit status 0 when there is no fault; a line for each otherwise.

tests/floors.txt lists the parts of each folder from top to bottom. A part includes itself and what stands below it. Add-ons know nothing
of each other. An add-on's tests stand beside tests.
"""

import fnmatch
import itertools
import pathlib
import re
import sys

CODE = {".c", ".cpp", ".cu", ".h", ".hpp", ".inc"}
SOURCES = CODE | {".py", ".sh"}
LIST = "tests/floors.txt"
INCLUDE_FOLDERS = ("", "client/include")
PUBLIC_API = "client/include/"  # its names are not ours to choose any more; users have it in a namespace by itself


class Tree:
    """The sources under a folder, by their paths from there, and who includes whom."""

    def __init__(self, root):
        self.root = root
        self.parts = self.read_parts()
        tops = [entry.split(",") for entry in reversed(self.parts["."])]
        self.floors = {top: floor for floor, names in enumerate(tops) for top in names}
        self.files = sorted(
            path for top in self.floors for path in (root / top).rglob("*")
            if path.suffix in SOURCES and path.is_file() and "__pycache__" not in path.parts)
        self.text = {self.name(path): path.read_text(encoding="utf-8") for path in self.files}
        self.folders = {}  # every folder with sources: those directly in it
        for name in self.text:
            self.folders.setdefault(name.rpartition("/")[0], []).append(name)
        self.includes = {}  # file: {file that it includes: line}
        self.misspelt = []  # file, line, include, what it should be
        for name, text in self.text.items():
            if pathlib.PurePath(name).suffix in CODE:
                self.includes[name] = dict(self.read_includes(name, text))

    def name(self, path):
        return path.relative_to(self.root).as_posix()

    def read_includes(self, name, text):
        for number, line in enumerate(text.splitlines(), 1):
            found = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line)
            if not found:
                continue
            candidates = (str(pathlib.PurePosixPath(folder, found[1])) for folder in INCLUDE_FOLDERS)
            target = next((each for each in candidates if each in self.text), None)
            near = (self.root / name).parent / found[1]
            if target is None and near.is_file():
                target = self.name(near.resolve())
                self.misspelt.append((name, number, found[1], target))
            if target is not None:
                yield target, number

    def subfolders(self, folder):
        """Folders directly in the folder: those of its sub-folders that hold sources at any depth."""
        prefix = folder + "/"
        return {each[len(prefix):].partition("/")[0] for each in self.folders if each.startswith(prefix)}

    def readme(self, folder):
        path = self.root / folder / "README.md"
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else None

    def read_parts(self):
        """{folder: its parts from top to bottom}; a folder among them ends with '/'."""
        text = re.sub(r" *#.*", "", (self.root / LIST).read_text(encoding="utf-8")).replace("\n ", " ")
        return {folder: entries.split() for folder, entries in re.findall(r"^(\S+):(.*)$", text, re.MULTILINE)}


def find_circle(edges):
    """The nodes of one circle of the graph {node: nodes}, the first of them also last; None: there is none."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        found = next(filter(None, map(visit, sorted(edges.get(node, ())))), None)
        path.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(edges))), None)


def part(name):
    """The part of the tree that a file belongs to: its top folder, an add-on, or tests."""
    words = name.split("/")
    if words[0] == "addons" and len(words) > 2:
        return "tests" if words[2] == "tests" else "/".join(words[:2])
    return words[0]


def floor_faults(tree):
    for name, included in tree.includes.items():
        for target, line in included.items():
            top, below = part(name), part(target)
            if top != below and tree.floors[below.partition("/")[0]] >= tree.floors[top.partition("/")[0]]:
                yield f"{name}:{line}: includes {target}: {top}/ includes nothing of {below}/"


def spelling_faults(tree):
    for name, line, written, meant in tree.misspelt:
        yield f'{name}:{line}: includes "{written}": write it from the top of the tree, "{meant}"'


def depth_in_tests(folder):
    """How deep below tests/, whose folders end at tests/FOLDER/FOLDER: what is below mirrors the product's folders."""
    return folder.count("/") if folder.startswith("tests") else 0


def folder_faults(tree):
    """In every folder that has subfolders, or files beside one."""
    parents = {parent for folder in tree.folders for parent in map(str, pathlib.PurePosixPath(folder).parents)} - {"."}
    for folder in sorted(each for each in parents if depth_in_tests(each) < 2):
        order = tree.parts.get(folder, [])
        beside = [name.rpartition("/")[2] for name in tree.folders.get(folder, ()) if name in tree.includes]

        def place(name, order=order):
            return next((at for at, entry in enumerate(order) if fnmatch.fnmatch(name, entry)), -1)

        subfolders = [subfolder + "/" for subfolder in sorted(tree.subfolders(folder))]
        for subfolder in subfolders if len(subfolders) + len(beside) > 1 else ():
            if place(subfolder) < 0:
                yield f"{folder}/{subfolder}: {LIST} does not say where in {folder} it stands"
        for entry in order:
            if not fnmatch.filter(subfolders + beside, entry):
                yield f"{LIST}: {folder} has no {entry}, or no sources there"
        edges = {}
        for name, target, line in inside(tree, folder):
            edges.setdefault(name, set()).add(target)
            if place(target) < place(name):
                yield f"{line}: {folder}/{name} includes {folder}/{target}, which stands above it in {LIST}"
        circle = find_circle(edges)
        if circle:
            yield f"{folder}: a circle of folders: {' -> '.join(circle)}"


def inside(tree, folder):
    """Includes between two subfolders of a folder, or files beside them: (includer, included, the line with its file)."""
    prefix = folder + "/"

    def subfolder(name):
        first, slash, _ = name[len(prefix):].partition("/")
        return first + slash

    for name, included in tree.includes.items():
        for target, line in included.items():
            within = name.startswith(prefix) and target.startswith(prefix) and part(name) == part(target)
            if within and subfolder(name) != subfolder(target):
                if "/" in subfolder(name) + subfolder(target):
                    yield subfolder(name), subfolder(target), f"{name}:{line}: includes {target}"


def circle_faults(tree):
    circle = find_circle({name: set(included) for name, included in tree.includes.items()})
    if circle:
        yield f"{circle[0]}: a circle of includes: {' -> '.join(circle)}"


def readme_faults(tree):
    """Each top folder and each add-on has one. Others have one where the headers of their files do not tell enough."""
    for folder in {part(name) for name in tree.text}:
        if tree.readme(folder) is None:
            yield f"{folder}: has no README.md that says what lives there"


def name_faults(tree):
    """A README names types of its folder, unless the line names a path."""
    for folder in tree.folders:
        if folder.startswith("tests") or "python" in folder:
            continue
        code = "\n".join(text for name, text in tree.text.items() if name.startswith(folder + "/"))
        for number, line in enumerate(tree.readme(folder) or [], 1):
            for name in re.findall(r"`([A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*)`", line):
                if "/" not in line and not re.search(rf"\b{name}\b", code):
                    yield f"{folder}/README.md:{number}: names {name}, which no file of the folder has"


def bare(text):
    """C++ without comments, literals and preprocessor lines; lines stay where they are."""
    pattern = (r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"(?P<mark>[^(]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
               r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*")
    return re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)


NAMESPACE = re.compile(r"\bnamespace\s+([\w:]*)\s*\{|\bnamespace\s*\{")
TYPE = re.compile(r"\b(enum\s+class|enum\s+struct|enum|class|struct|union)\b(?:\s|\[\[[^\]]*\]\]|alignas\([^)]*\))*"
                  r"([A-Za-z_]\w*)\s*(?:final\s*)?(?::(?!:)[^{};]*)?\{")


def types(text):
    """Every type that the text (bare) defines: its scopes, name and line. A scope: a namespace's name ("" without one), or
    None for a class or a function."""
    opened = {}
    for found in NAMESPACE.finditer(text):
        opened[found.end() - 1] = found[1] or ""
    heads = {found.end() - 1: found for found in TYPE.finditer(text)}
    scopes, starts = [], []
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            starts.append((brace.start(), list(scopes)))
            scopes.append(opened.get(brace.start()))
        elif starts:
            scopes.pop()
            start, around = starts.pop()
            if start in heads:
                head = heads[start]
                yield around, head[2], text.count("\n", 0, head.start()) + 1


def class_faults(tree):
    known = {}
    for name, text in tree.text.items():
        if name not in tree.includes or name.partition("/")[0] not in ("addons", "client", "common", "daemon", "shim"):
            continue
        for scopes, type_name, line in types(bare(text)):
            where = f"{name}:{line}"
            # Those inside a class or a function, and the public API's, are told apart by where they stand.
            if None not in scopes and not name.startswith(PUBLIC_API):
                known.setdefault(type_name, []).append((where, "" in scopes))
    for type_name, places in sorted(known.items()):
        # One that only its file knows (in an unnamed namespace) may be named as one of another file that also only that file knows.
        for (where, local), (other, other_local) in itertools.combinations(places, 2):
            if not (local and other_local):
                yield f"{where}: {type_name} is also the name of a type in {other}"


RULES = (floor_faults, spelling_faults, folder_faults, circle_faults, readme_faults, name_faults, class_faults)


def faults(root):
    tree = Tree(pathlib.Path(root).resolve())
    return [fault for rule in RULES for fault in rule(tree)]


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent
    found = faults(root)
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
