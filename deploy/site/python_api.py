"""The Python API as a page: what each module makes public, with its signatures and docstrings. Read from the sources; nothing is
imported."""
import ast
import inspect

# In the order of the page. Of `amem` itself: what its __all__ names, wherever it is defined.
MODULES = ("amem", "amem.broker", "amem.cluster", "amem.messages", "amem.errors", "amem.nccl", "amem.compat", "amem.vllm", "amem.ray")


def _parse(root, module):
    path = root.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _public(tree):
    """The names of __all__; without one, what is defined without an underscore."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and not node.name.startswith("_")]


def _origins(tree):
    """Where imported names come from, those for type checkers included."""
    return {name.asname or name.name: (node.module, name.name) for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module for name in node.names}


def _signature(node):
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}" + (f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else "")
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{word} {node.name}({ast.unparse(node.args)}){result}"


def _is_overload(node):
    return any(ast.unparse(each).endswith("overload") for each in getattr(node, "decorator_list", ()))


def _text(node):
    """The docstring; what is indented in it is code in Markdown too."""
    return inspect.cleandoc(ast.get_docstring(node) or "")


def _fields(source, node):
    """The lines of a class that are its data, with their comments."""
    lines = source.splitlines()
    return [lines[each.lineno - 1].strip() for each in node.body if isinstance(each, (ast.AnnAssign, ast.Assign))]


def _entry(source, node, level):
    lines = ["#" * level + f" {node.name}", "", "```python", _signature(node)]
    if isinstance(node, ast.ClassDef):
        lines += ["    " + each for each in _fields(source, node)]
    lines += ["```", "", _text(node), ""]
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            named = isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _is_overload(each)
            if named and (not each.name.startswith("_") or (each.name == "__init__" and ast.get_docstring(each))):
                lines += _entry(source, each, level + 1)
    return lines


def _definition(root, module, name):
    """The source and the definition; no definition: a value, or the module is made by the build."""
    file = root.joinpath(*module.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    if not file.exists():
        return "", None
    source = file.read_text(encoding="utf-8")
    found = [each for each in ast.parse(source).body if getattr(each, "name", "") == name and not _is_overload(each)]
    return source, found[-1] if found else None


def page(root):
    """`root`: the directory that holds the package."""
    lines = ["# Python API", "", "Made of the package's sources. [The guide](../python.md) says how it is used.", ""]
    for module in MODULES:
        tree = _parse(root, module)
        lines += [f"## {module}", "", _text(tree), ""]
        origins = _origins(tree)
        elsewhere = {}
        for name in _public(tree):
            where, original = origins.get(name, (module, name))
            source, definition = _definition(root, where, original)
            if where != module and where in MODULES:
                elsewhere.setdefault(where, []).append(f"`{name}`")
            elif definition is not None:
                lines += _entry(source, definition, 3)
        for where, names in elsewhere.items():
            lines += [f"Also here, from [{where}](#{where.replace('.', '')}): {', '.join(names)}.", ""]
    return "\n".join(lines)
