from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house import sources

UNSAFE_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "torch",
}
UNSAFE_CALLS = {
    "eval", "exec", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "torch.load", "builtins.eval", "builtins.exec",
}  # fmt: skip
UNSAFE_KEYWORDS = {"allow_pickle", "shell"}


def unsafe(tree: ast.AST) -> Iterator[str]:
    """Yield what could run code that came in as data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            yield from [f"{node.lineno}: {called}"] if called in UNSAFE_CALLS else []
            for keyword in node.keywords:
                safe = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                yield from (
                    [f"{node.lineno}: {keyword.arg}"] if keyword.arg in UNSAFE_KEYWORDS and not safe else []
                )
            continue
        else:
            continue
        yield from (f"{node.lineno}: {name}" for name in names if name.split(".")[0] in UNSAFE_MODULES)


@pytest.mark.parametrize(
    "snippet",
    [
        "import pickle",
        "from dill import loads",
        "import cloudpickle as c",
        "from torch.serialization import load",
        "import marshal, json",
        "import shelve",
        "def f(x):\n    return eval(x)",
        "exec('1')",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "yaml.load(text, Loader=yaml.Loader)",
        "torch.load(path)",
        "subprocess.run(line, shell=True)",
        "__import__('os').system('x')",
    ],
)
def test_c79_scan_sees_what_is_unsafe(snippet: str) -> None:
    assert len(list(unsafe(ast.parse(snippet)))) >= 1


def test_c79_scan_accepts_what_is_safe() -> None:
    snippet = (
        "np.load(path, allow_pickle=False)\nyaml.safe_load(text)\nast.literal_eval(text)\nmodel.eval_step()"
    )
    assert list(unsafe(ast.parse(snippet))) == []


def test_c79_package_never_runs_data_as_code() -> None:
    found = {module.name: list(unsafe(module.tree)) for module in sources.modules()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_package_binds_to_no_open_address() -> None:
    open_address = ".".join("0000")
    literals = {
        module.name: node.value
        for module in sources.modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and node.value in (open_address, "::")
    }
    assert literals == {}


def test_package_is_finished() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    unfinished = [module.name for module in sources.modules() if words.search(module.path.read_text())]
    assert unfinished == []


def test_no_file_names_a_registry_or_a_private_path() -> None:
    # Spelled in pieces, so that this file is no hit itself.
    hosts = [
        ("pypi", "org"),
        ("python" + "hosted", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("deb", "debian", "org"),
    ]
    patterns = [re.escape(".".join(host)) for host in hosts]
    patterns += [r"(?<![\w.])/" + folder + r"/\w" for folder in ("wo" + "rk", "ro" + "ot", "home", "opt")]
    pattern = re.compile("|".join(patterns))
    texts = {path: sources.text_of(path) for path in sources.tracked_files()}
    hits = [
        f"{path.relative_to(sources.ROOT)}: {match[0]}"
        for path, text in texts.items()
        if text is not None
        for match in pattern.finditer(text)
    ]
    assert hits == []


def test_locks_are_hashed_and_carry_no_address() -> None:
    for path in sorted((sources.ROOT / "requirements").glob("*.txt")):
        text = path.read_text()
        assert "://" not in text
        assert "index-url" not in text
        pins = [line for line in text.splitlines() if line and line[0] not in " #"]
        assert len(pins) >= 1
        assert [line for line in pins if "==" not in line or not line.endswith("\\")] == []
        assert text.count("--hash=sha256:") >= len(pins)


def test_locks_agree_with_one_another() -> None:
    versions: dict[str, set[str]] = {}
    for path in sorted((sources.ROOT / "requirements").glob("*.txt")):
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE):
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
    assert len(versions["jax"]) == 1


def test_tests_use_no_mocks() -> None:
    pattern = re.compile(r"^\s*(import|from) (unittest\.)?mock\b|\bMagicMock\(", re.MULTILINE)
    tests = [path for path in sources.tracked_files() if path.suffix == ".py" and "tests" in path.parts]
    hits = [path.name for path in tests if pattern.search(path.read_text()) and path.name != "test_safety.py"]
    assert hits == []
