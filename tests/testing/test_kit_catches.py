"""Each rule of each suite is broken by some plugin, and the suite says so: these tests of it fail, and no others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.kit import failures

from runqueue import testing
from runqueue.testing import PluginSuite

WRONG = Path(__file__).parent / "wrong"
FILES = sorted(x for x in WRONG.glob("*.py") if x.stem != "__init__")


def classes(path):
    spec = importlib.util.spec_from_file_location(f"wrong_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {x: y for x, y in vars(module).items() if x.startswith("Test") and hasattr(y, "fails")}


def rules(suite):
    return {x for x in dir(suite) if x.startswith("test_")}


SUITES = [getattr(testing, x) for x in testing.__all__ if x.endswith("Suite") and x != "PluginSuite"]


def test_every_suite_is_here():
    assert len(SUITES) == 6
    assert all(issubclass(x, PluginSuite) for x in SUITES)


@pytest.mark.parametrize("suite", SUITES, ids=lambda x: x.__name__)
def test_every_rule_is_broken_by_somebody_and_every_suite_passes_somebody(suite):
    found = [y for path in FILES for y in classes(path).values() if issubclass(y, suite)]
    assert {rule for x in found for rule in x.fails} == rules(suite)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", FILES, ids=lambda x: x.stem)
def test_what_is_wrong_is_caught(path, tmp_path, server_url):
    assert failures(path, tmp_path, server_url) == {name: set(x.fails) for name, x in classes(path).items()}
