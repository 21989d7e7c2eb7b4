#!/usr/bin/env python3
"""What amem would meet in versions that it was not written for: check.py [PACKAGE[==VERSION] ...] [--unpacked PACKAGE=FOLDER ...]

Reads the newest release of each project that amem has hooks in (hooks.py), or those that are named, from the Python package index:
metadata, source files, and names of driver calls in binaries. Prints a table. Nothing is imported or run. The index does not have slime
and Miles: of these the table says that they are not read, and --unpacked reads a checkout.

Exit status 0: amem knows all of it. 1: a hook is gone or takes other parameters, so that amem would refuse this version, or a driver
call has no row, so that it is hidden. 2: something could not be read, such as a project that is named and that the index does not have."""
import argparse
import ast
import re
import sys

import declarations
import hooks
import wheels

LARGEST = 96 << 20  # of a binary, in the wheel, that --quick reads
# What NCCL calls variables of its own, and the ends of names of types.
_NO_CALLS = re.compile(r"cuMem(GdrSupport|LocType|Support)$|.*_t$")
# A whole string of a binary that looks like a driver call.
_NAME = re.compile(rb"(?<=\x00)cu[A-Z][a-z][A-Za-z0-9_]{2,62}(?=\x00)")
_OVERLAP = 80


class Report:
    def __init__(self):
        self.lines, self.faults = [], []

    def row(self, package, version, what, found):
        self.lines.append((package, version, what, found))

    def fault(self, package, version, what, found):
        self.row(package, version, what, found)
        self.faults.append(f"{package} {version}: {what}: {found}")

    def table(self):
        head = ("package", "version", "what", "found")
        widths = [max(len(line[i]) for line in [head, *self.lines]) for i in range(4)]
        shape = "| " + " | ".join(f"{{:{width}}}" for width in widths) + " |"
        return "\n".join([shape.format(*head), shape.format(*("-" * width for width in widths)), *(shape.format(*line) for line in self.lines)])


def function_of(wheel, file, owner, name):
    """The parameters of a function that a file has, or imports from another of the wheel; of a value, none. Nothing: it is not there."""
    scope = ast.parse(wheel.read(file)).body
    if owner is not None:
        scope = next((node.body for node in scope if isinstance(node, ast.ClassDef) and node.name == owner), [])
    for node in scope:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return tuple(argument.arg for argument in [*node.args.posonlyargs, *node.args.args])
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
            return ()
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if (alias.asname or alias.name) == name:
                source = source_of(wheel, file, node)
                return None if source is None else function_of(wheel, source, None, alias.name)
    return None


def source_of(wheel, file, node):
    """The wheel's file that an import reads; nothing: it has none."""
    parts = [*(file.split("/")[:-node.level] if node.level else ()), *(node.module.split(".") if node.module else ())]
    return next((each for each in ("/".join(parts) + ".py", "/".join([*parts, "__init__.py"])) if each in wheel.names()), None)


def check_hooks(report, project, wheel):
    names = wheel.names()
    for hook in project.hooks:
        what = ".".join(filter(None, (hook.owner, hook.name)))
        if hook.file not in names and not hook.optional:
            report.fault(project.package, wheel.version, what, f"gone: there is no {hook.file}")
            continue
        found = function_of(wheel, hook.file, hook.owner, hook.name) if hook.file in names else None
        if found is None and hook.optional:
            report.row(project.package, wheel.version, what, "not there: amem does without")
        elif found is None:
            report.fault(project.package, wheel.version, what, f"gone from {hook.file}")
        elif found[:len(hook.parameters)] != hook.parameters:
            report.fault(project.package, wheel.version, what, f"changed: takes ({', '.join(found)}), not ({', '.join(hook.parameters)})")
        else:
            report.row(project.package, wheel.version, what, "found")


def check_version(report, project, wheel):
    window = hooks.window(project)
    if window is None:
        return
    oldest, newest = window
    numbers = tuple(int(each) for each in re.findall(r"\d+", wheel.version)[:len(oldest)])
    taken = " to ".join(".".join(map(str, each)) for each in dict.fromkeys(window))
    if not numbers:  # unpacked, so nobody says which it is
        report.row(project.package, wheel.version, "version", f"amem was tried with {taken}")
    elif oldest <= numbers <= newest:
        report.row(project.package, wheel.version, "version", f"known: amem was tried with {taken}")
    else:
        report.row(project.package, wheel.version, "version", f"new: amem was tried with {taken}, and warns")


def names_in(pieces):
    """Whole strings of a binary that look like driver calls."""
    found, end = set(), b"\0"
    for piece in pieces:
        text = end + piece
        found |= {match.decode() for match in _NAME.findall(text)}
        end = text[-_OVERLAP:]
    return found


def family(name):
    return re.match(r"cu[A-Z][a-z]+", name)[0]


def without_row(names):
    """Of names in a binary: driver calls that no row has, and what may be one, of a family that the table does not have."""
    symbols = {symbol for _, symbol in declarations.rows()}
    known = symbols | {declarations.base(symbol) for symbol in symbols}
    families = {family(symbol) for symbol in symbols if re.match(r"cu[A-Z][a-z]", symbol)}
    # A beginning of a known name is a piece of a message, or what NCCL makes a name of.
    unknown = {name for name in names - known if not any(symbol.startswith(name) for symbol in known)}
    unknown = {name for name in unknown if not _NO_CALLS.match(name)}
    calls = {name for name in unknown if family(name) in families}
    return calls, unknown - calls


def check_binaries(report, project, wheel, quick):
    names, read = set(), 0
    for file, size in sorted(wheel.names().items()):
        if not re.search(r"\.so(\.\d+)*$", file):
            continue
        if size > LARGEST and quick:
            report.row(project.package, wheel.version, file.rpartition("/")[2], f"not read: {size >> 20} MiB (--quick)")
            continue
        names |= names_in(wheel.pieces(file))
        read += 1
    calls, others = without_row(names)
    for name in sorted(calls):
        report.fault(project.package, wheel.version, name, "driver call without a row")
    for name in sorted(others):
        report.row(project.package, wheel.version, name, "no header declares it; hidden if the driver has it")
    hidden = sorted(names & {symbol for kind, symbol in declarations.rows() if kind == "HIDDEN"})
    if hidden:
        report.row(project.package, wheel.version, "driver calls", f"{len(hidden)} are hidden, such as {hidden[0]}")
    report.row(project.package, wheel.version, "driver calls", f"{len(names)} names in {read} libraries were looked at")


def check_headers(report, project, wheel):
    symbols = {}
    for name in wheel.names():
        if name.rpartition("/")[2] in declarations.HEADERS and "/include/" in "/" + name:
            symbols |= declarations.parse(wheel.read(name).decode("utf-8", "replace"))
    if not symbols:
        report.fault(project.package, wheel.version, "headers", "none")
        return
    known = {symbol for _, symbol in declarations.rows()}
    for symbol in sorted(set(symbols) - known):
        report.fault(project.package, wheel.version, symbol, "driver call without a row")
    report.row(project.package, wheel.version, "driver calls", f"{len(set(symbols) & known)} of {len(symbols)} have a row")


def check(report, project, wheel, quick=False):
    if not project.hooks and project.taken_by is None and not project.binaries and not project.headers:
        report.row(project.package, wheel.version, "version", "amem has no hook in it")
    check_version(report, project, wheel)
    check_hooks(report, project, wheel)
    if project.binaries:
        check_binaries(report, project, wheel, quick)
    if project.headers:
        check_headers(report, project, wheel)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE[==VERSION]")
    parser.add_argument("--unpacked", action="append", default=[], metavar="PACKAGE=FOLDER", help="an unpacked wheel instead of the index's")
    parser.add_argument("--quick", action="store_true", help="leave binaries of more than 96 MiB out")
    options = parser.parse_args(arguments)
    projects = {project.package: project for project in hooks.PROJECTS}
    unpacked = dict(each.split("=", 1) for each in options.unpacked)
    wanted = dict((each.split("==") + [None])[:2] for each in options.packages)
    strangers = sorted((set(unpacked) | set(wanted)) - set(projects))
    if strangers:
        parser.error(f"amem has nothing to look for in {', '.join(strangers)}; it knows {', '.join(projects)}")
    if not unpacked and not wanted:
        wanted = dict.fromkeys(projects)
    report, unread = Report(), []
    for package, folder in unpacked.items():
        check(report, projects[package], wheels.Folder(folder), options.quick)
    for package, version in wanted.items():
        if projects[package].repository:
            said = f"not read: no package index has it; --unpacked {package}=CHECKOUT reads {projects[package].repository}"
            report.row(package, "-", "hooks", said)
            if options.packages:
                unread.append(f"{package}: {said}")
            continue
        try:
            with wheels.newest(package, version) as wheel:
                check(report, projects[package], wheel, options.quick)
        except wheels.Missing as missing:
            unread.append(str(missing))
    print(report.table())
    for line in [*report.faults, *unread]:
        print(f"check: {line}", file=sys.stderr)
    return 1 if report.faults else 2 if unread else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
