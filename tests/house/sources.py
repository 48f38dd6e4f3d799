"""The source tree as values: modules, definitions, tracked files. Read as text: nothing is imported."""

from __future__ import annotations

import ast
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "forebay"
DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Module:
    """One parsed file of the package."""

    path: Path
    tree: ast.Module
    num_lines: int

    @property
    def name(self) -> str:
        """Dotted name; that of the package for an `__init__`."""
        parts = self.path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_public(self) -> bool:
        """Whether no part of the dotted name starts with an underscore."""
        return not any(part.startswith("_") for part in self.name.split("."))

    @property
    def summary(self) -> str:
        """First line of the docstring, without its period."""
        return (ast.get_docstring(self.tree) or "").split("\n")[0].rstrip(".")


@dataclass(frozen=True)
class Definition:
    """A class or function with its dotted name inside the module."""

    module: Module
    qualname: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

    @property
    def label(self) -> str:
        """Name by which a test reports it."""
        return f"{self.module.name}:{self.qualname}"

    @property
    def num_lines(self) -> int:
        """Lines from `def` or `class` to the last one."""
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1

    @property
    def num_code_lines(self) -> int:
        """Lines without the docstring."""
        first = self.node.body[0]
        if ast.get_docstring(self.node) is None:
            return self.num_lines
        return self.num_lines - ((first.end_lineno or first.lineno) - first.lineno + 1)


@cache
def modules() -> tuple[Module, ...]:
    """Parse every file of the package, in the order of their paths."""
    return tuple(parse(path) for path in sorted(PACKAGE.rglob("*.py")))


def parse(path: Path) -> Module:
    """Parse one file."""
    text = path.read_text()
    return Module(path, ast.parse(text, str(path)), len(text.splitlines()))


def definitions(module: Module) -> Iterator[Definition]:
    """Yield the classes, functions and methods of a module; not what is defined inside a function."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[Definition]:
        for node in body:
            if isinstance(node, DEFINITION):
                yield Definition(module, f"{prefix}{node.name}", node)
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If):
                yield from walk([*node.body, *node.orelse], prefix)

    yield from walk(module.tree.body, "")


def find(path: Path, qualname: str) -> str:
    """Return the source text of one definition, without its indentation."""
    module = parse(path)
    for definition in definitions(module):
        if definition.qualname == qualname:
            lines = path.read_text().splitlines()
            first = min([definition.node.lineno, *(item.lineno for item in definition.node.decorator_list)])
            return textwrap.dedent("\n".join(lines[first - 1 : definition.node.end_lineno]))
    raise LookupError(f"{path} defines no {qualname}")


def public_names(module: Module) -> list[str]:
    """List `__all__`, or else the names without underscore that the module itself defines."""
    names: list[str] = []
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned = [target.id for target in targets if isinstance(target, ast.Name)]
            if assigned == ["__all__"] and node.value is not None:
                return sorted(ast.literal_eval(node.value))
            names += assigned
        elif isinstance(node, DEFINITION):
            names.append(node.name)
    return sorted({name for name in names if not name.startswith("_")})


def tracked_files() -> list[Path]:
    """List what git tracks; without git, everything that is not hidden."""
    command = ["git", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listing.returncode == 0 and listing.stdout:
        candidates = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        candidates = [path for path in ROOT.rglob("*") if not _is_hidden(path.relative_to(ROOT))]
    return sorted(path for path in candidates if path.is_file())


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def text_of(path: Path) -> str | None:
    """Return the text of a file, or None when it is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
