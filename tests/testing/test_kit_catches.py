"""Each rule of each suite is broken by some plugin, and the suite says so: these tests of it fail, and no others."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import pytest

from runqueue import testing
from runqueue.testing import PluginSuite
from runqueue.testing.server import DSN

WRONG = Path(__file__).parent / "wrong"
FILES = sorted(x for x in WRONG.glob("*.py") if x.stem != "__init__")
INI = "[pytest]\nfilterwarnings = error\npython_files = *.py\n"


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


def run(path, folder, server):
    """The tests that failed, by class, in a process of their own that knows nothing of this project's settings."""
    (folder / "pytest.ini").write_text(INI)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", folder / "pytest.ini", "--rootdir", folder, "--noconftest",
               "-p", "runqueue.testing.fixtures", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:xdist",
               "-p", "no:langsmith_plugin", "--import-mode=importlib", "--junitxml", report, "-q", path]  # fmt: skip
    done = subprocess.run(
        [str(x) for x in command],
        cwd=folder,
        env=os.environ | {DSN: server},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    failed = defaultdict(set)
    for case in ET.parse(report).iter("testcase"):
        name = case.get("classname").rpartition(".")[2]
        failed[name] |= {case.get("name").partition("[")[0]} if case.find("failure") is not None or case.find("error") is not None else set()  # noqa: E501  # fmt: skip
    return failed, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", FILES, ids=lambda x: x.stem)
def test_what_is_wrong_is_caught(path, tmp_path, server_url):
    failed, said = run(path, tmp_path, server_url)
    expected = {name: set(x.fails) for name, x in classes(path).items()}
    assert set(failed) == set(expected)
    for name, fails in expected.items():
        assert failed[name] == fails, f"{name}: {said}"
