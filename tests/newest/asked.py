"""What the package client/python/amem asks of frameworks, read from its sources by ast: what it hooks, replaces, assigns and calls.

The reader follows imports, constants, loops over them and arguments within a file, and takes each condition as true."""
import ast
import collections
import itertools
import re

# `owner`: the name of a class, or of a module with dots.
Asked = collections.namedtuple("Asked", "framework owner name parameters where")

_ROUNDS = 3  # a call tells a function that stands before it what it is given, from one round to the next
_PLACE = re.compile(r"\w+(\.\w+)*\.[A-Z]\w*\.\w+")  # of a class's function, as a text


def _is_class(place):
    return place.rpartition(".")[2][:1].isupper()


class _Reader(ast.NodeVisitor):
    """A value is what Python would have, with lists for tuples and dotted names for modules and classes. None: nobody knows."""

    def __init__(self, file, frameworks):
        self.file, self.frameworks = file, frameworks
        self.names, self.base, self.given, self.calls = {}, None, {}, {}
        self.asked, self.unread = set(), set()

    def read(self, tree):
        for _ in range(_ROUNDS):
            self.asked, self.unread, self.given, self.calls = set(), set(), self.calls, {}
            self.visit(tree)

    # ---- values ----
    def value(self, node):
        read = getattr(self, f"_value_{type(node).__name__}", None)
        return None if read is None else read(node)

    def _value_Constant(self, node):
        return node.value

    def _value_Name(self, node):
        return self.names.get(node.id)

    def _value_Attribute(self, node):
        owner = self.value(node.value)
        return f"{owner}.{node.attr}" if isinstance(owner, str) else None

    def _value_Tuple(self, node):
        found = []
        for each in node.elts:
            found += self._elements(self.value(each.value)) if isinstance(each, ast.Starred) else [self.value(each)]
        return found

    _value_List = _value_Set = _value_Tuple

    def _value_Dict(self, node):
        keys = [key and self.value(key) for key in node.keys]
        return dict(zip(keys, map(self.value, node.values))) if all(isinstance(key, str) for key in keys) else None

    def _value_JoinedStr(self, node):
        parts = [self.value(each.value if isinstance(each, ast.FormattedValue) else each) for each in node.values]
        return "".join(parts) if all(isinstance(each, str) for each in parts) else None

    def _value_BinOp(self, node):
        left, right = self.value(node.left), self.value(node.right)
        return left + right if isinstance(node.op, ast.Add) and type(left) is type(right) and type(left) in (str, list) else None

    def _value_Subscript(self, node):
        owner, name = self.value(node.value), self.value(node.slice)
        if owner == "sys.modules":
            return name
        return f"{owner}.{name}" if isinstance(owner, str) and isinstance(name, str) else None  # vars(module)[name]

    def _value_GeneratorExp(self, node):
        found, outer = [], dict(self.names)
        parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)

        def enter(generators):
            if not generators:
                found.append([self.visit(each) or self.value(each) for each in parts][-1])
                return
            self.visit(generators[0].iter)
            for each in self._elements(self.value(generators[0].iter)):
                self._bind(generators[0].target, each)
                for condition in generators[0].ifs:
                    self.visit(condition)
                enter(generators[1:])

        enter(node.generators)
        self.names = outer
        return None if isinstance(node, ast.DictComp) else found

    _value_ListComp = _value_SetComp = _value_GeneratorExp

    def _value_Call(self, node):
        function, given = self.value(node.func), [self.value(each) for each in node.args]
        if isinstance(node.func, ast.Name) and function is None:
            if node.func.id == "super":
                return self.base
            if node.func.id == "vars":
                return given[0] if given else None
            if node.func.id == "zip":
                return [list(each) for each in itertools.zip_longest(*map(self._elements, given))]
            if node.func.id == "next":
                return self._elements(given[0])[0]
        if function in ("sys.modules.get", "importlib.import_module"):
            return given[0] if given else None
        owner = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if isinstance(owner, dict) and node.func.attr == "items":
            return [list(each) for each in owner.items()]
        if isinstance(owner, str) and node.func.attr == "format" and all(isinstance(each, str) for each in given):
            return owner.format(*given)
        return None

    @staticmethod
    def _elements(value):
        return list(value) if isinstance(value, (list, dict)) and value else [None]

    # ---- names ----
    def _bind(self, target, value):
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value if isinstance(value, list) and len(value) == len(target.elts) else [None] * len(target.elts)
            for each, part in zip(target.elts, parts):
                self._bind(each, part)
        elif isinstance(target, ast.Subscript):
            self._forget(target.value)

    def _forget(self, node):
        """What a program changes later: a loop over it binds what nobody knows."""
        value = self.value(node)
        if isinstance(value, (list, dict)):
            value.clear()

    def visit_Import(self, node):
        for each in node.names:
            top = each.name.partition(".")[0]
            self.names[each.asname or top] = each.name if each.asname else top

    def visit_ImportFrom(self, node):
        for each in node.names:
            self.names[each.asname or each.name] = f"{node.module}.{each.name}"

    def visit_Assign(self, node):
        self.generic_visit(node)
        for target in node.targets:
            self._bind(target, self.value(node.value))

    def visit_AnnAssign(self, node):
        self.generic_visit(node)
        self._bind(node.target, node.value and self.value(node.value))

    def visit_AugAssign(self, node):
        self.generic_visit(node)
        self._forget(node.target)
        self._bind(node.target, None)

    def visit_For(self, node):
        self.visit(node.iter)
        for each in self._elements(self.value(node.iter)):
            self._bind(node.target, each)
            for statement in node.body:
                self.visit(statement)
        for statement in node.orelse:
            self.visit(statement)

    visit_AsyncFor = visit_For

    def visit_GeneratorExp(self, node):
        self._value_GeneratorExp(node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp

    def visit_FunctionDef(self, node):
        for each in [*getattr(node, "decorator_list", ()), *node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(each)
        positional = [*node.args.posonlyargs, *node.args.args]
        others = [*node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg))]
        outer, name = self.names, getattr(node, "name", None)
        for given in self.given.get(name) or [[]]:
            self.names = {**outer, name: None, **{each.arg: None for each in positional + others}}
            self.names.update((each.arg, value) for each, value in zip(positional, given))
            for each in node.body if isinstance(node.body, list) else [node.body]:
                self.visit(each)
        self.names = outer
        self.names[name] = None

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_ClassDef(self, node):
        outer = self.names, self.base
        self.names, self.base = dict(self.names), self.value(node.bases[0]) if node.bases else None
        self.generic_visit(node)
        self.names, self.base = outer

    # ---- what is asked for ----
    def _ask(self, node, owner, name, parameters=()):
        where = f"{self.file}:{node.lineno}"
        if not all(isinstance(each, str) for each in (owner, name, *parameters)):
            self.unread.add(where)
            return
        short = owner.rpartition(".")[2] if _is_class(owner) else owner
        self.asked.add(Asked(owner.partition(".")[0], short, name, tuple(parameters), where))

    def _is_framework(self, place):
        return isinstance(place, str) and place.partition(".")[0] in self.frameworks

    def visit_Attribute(self, node):
        owner = self.value(node.value)
        if self._is_framework(owner) and (_is_class(owner) or not isinstance(node.ctx, ast.Load)):
            self._ask(node, owner, node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node):
        text = self.value(node)
        if self._is_framework(text) and _PLACE.fullmatch(text):
            self._ask(node, *text.rsplit(".", 1))

    def visit_JoinedStr(self, node):
        self.visit_Constant(node)
        self.generic_visit(node)

    def visit_Call(self, node):
        self.generic_visit(node)
        function = self.value(node.func)
        called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if isinstance(node.func, ast.Attribute) and called not in ("get", "items", "keys", "values"):
            self._forget(node.func.value)
        given = self._value_Tuple(ast.Tuple(node.args))
        owner, name, *more = [*given, *[None] * (2 - len(given))]
        if called == "hook" or function == "amem.frameworks.hook":
            self._ask(node, owner, name, more)
        elif function in ("amem.frameworks.replace", "amem.frameworks.phases.reads") or called == "setattr":
            if not self.file.startswith("frameworks/"):  # which replace what they are given
                self._ask(node, owner, name)
        elif called == "getattr" and self._is_framework(owner):
            self._ask(node, owner, name)
        elif isinstance(node.func, ast.Name) and given not in self.calls.setdefault(called, []):
            self.calls[called].append(given)


def read(folder, frameworks):
    """What the Python files of a folder ask for, and where ("FILE:LINE") it cannot be read."""
    asked, unread = set(), set()
    for path in sorted(folder.rglob("*.py")):
        reader = _Reader(str(path.relative_to(folder)), frameworks)
        reader.read(ast.parse(path.read_text(encoding="utf-8")))
        asked |= reader.asked
        unread |= reader.unread
    return asked, unread
