"""Every hook has its section in the documentation: its signature, what it may rely on, and an example that runs.

The examples themselves are run by test_docs.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from runqueue.hooks import specs
from runqueue.hooks.loading import installed

DOCUMENT = Path(__file__).parent.parent / "docs" / "plugins.md"
HOOKS = {x: y for x, y in vars(specs).items() if x.startswith("runqueue_")}
LABELS = ("When", "Transaction", "Thread", "Merge", "Exception")


def signature(hook):
    """As it is written: annotations are texts there."""
    return hook.__name__ + str(inspect.signature(hook)).replace("'", "")


def sections():
    found = re.split(r"^### (.+)$", DOCUMENT.read_text().partition("\n## Hooks\n")[2].partition("\n## ")[0], flags=re.M)
    return dict(zip(found[1::2], found[2::2], strict=True))


def examples(section):
    return re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)


def test_there_is_a_section_for_each_hook_in_their_order_and_for_nothing_else():
    assert list(sections()) == [signature(x) for x in HOOKS.values()]


@pytest.mark.parametrize("name", HOOKS)
def test_a_section_says_all_that_an_author_must_know(name):
    section = sections()[signature(HOOKS[name])]
    told = re.findall(r"\*\*(\w+)\*\*: ", section)
    assert told == list(LABELS)


@pytest.mark.parametrize("name", HOOKS)
def test_a_section_has_an_example_that_is_run_and_looks_at_what_came_of_it(name):
    section = sections()[signature(HOOKS[name])]
    assert any(f"def {name}(" in x for x in examples(section)), "no example, or one that is not run"
    assert "assert " in section


@pytest.mark.parametrize("name", HOOKS)
def test_the_hook_says_the_same_as_its_section(name):
    """The docstring has the same five answers."""
    told = re.findall(rf"\b({'|'.join(LABELS)}):\s", inspect.getdoc(HOOKS[name]))
    assert sorted(told) == sorted(LABELS)


def test_every_bundled_plugin_is_in_the_table():
    rows = re.findall(r"^\| `(\w+)` \| (?:by default|when named) \|", DOCUMENT.read_text(), re.M)
    assert sorted(rows) == sorted(x.name for x in installed() if x.dist and x.dist.name == "runqueue")
