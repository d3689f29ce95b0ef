"""The classes that the documentation shows are tests that pass."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support.kit import failures

DOCUMENT = Path(__file__).parents[2] / "docs" / "plugins.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_shown_passes(tmp_path, server_url):
    text = "\n".join(re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S))
    kept = [x for x in ast.parse(text).body if isinstance(x, ast.Import | ast.ImportFrom | ast.ClassDef)]
    module = tmp_path / "test_mine.py"
    module.write_text(ast.unparse(ast.Module(kept, [])))
    found = failures(module, tmp_path, server_url)
    assert found == {name: set() for name in ("TestOrder", "TestTiers", "TestFreshFirst", "TestOutcomes")}
