from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import forebay.chat

PROGRAM = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([name for name in ("tokenizers", "jinja2") if name in sys.modules]))
"""


@pytest.mark.parametrize(
    ("module", "loads"),
    [("forebay.envs.worker_main", []), ("forebay.chat.rendering", ["tokenizers", "jinja2"])],
)
def test_workers_of_environments_need_no_tokenizer_and_no_template_engine(
    module: str, loads: list[str]
) -> None:
    command = [sys.executable, "-c", PROGRAM, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == loads


def test_every_name_of_the_package_comes_from_where_it_lives() -> None:
    homes = ("messages", "template", "rendering", "conversation", "small")
    modules = [importlib.import_module(f"forebay.chat.{home}") for home in homes]
    for name in forebay.chat.__all__:
        # Through the package first: what a module imports from elsewhere is the same object there.
        value = getattr(forebay.chat, name)
        assert any(getattr(module, name, None) is value for module in modules), name
    with pytest.raises(AttributeError, match=r"'forebay\.chat' has no attribute 'chatt'"):
        forebay.chat.chatt  # noqa: B018  the look-up is what is tested
