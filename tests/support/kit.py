"""Runs of the kit in a process of its own, which knows nothing of this project's settings."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

from runqueue.testing.server import DSN

INI = "[pytest]\nfilterwarnings = error\npython_files = *.py\n"
OFF = ("cacheprovider", "asyncio", "xdist", "langsmith_plugin")


def failures(path: Path, folder: Path, server: str) -> dict[str, set[str]]:
    """Run the tests of a file; the names of those that failed, by class, for every class that has tests."""
    (folder / "pytest.ini").write_text(INI)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", folder / "pytest.ini", "--rootdir", folder, "--noconftest", "-q",
               "-p", "runqueue.testing.fixtures", *(x for y in OFF for x in ("-p", f"no:{y}")),
               "--import-mode=importlib", "--junitxml", report, path]  # fmt: skip
    environment = os.environ | {DSN: server}
    told = [str(x) for x in command]
    done = subprocess.run(told, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    failed: dict[str, set[str]] = defaultdict(set)
    for case in ET.parse(report).iter("testcase"):
        of_class = failed[case.attrib["classname"].rpartition(".")[2]]
        if case.find("failure") is not None or case.find("error") is not None:
            of_class.add(case.attrib["name"].partition("[")[0])
    return dict(failed)
