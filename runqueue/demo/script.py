"""The models of the agents: scripts instead of a network. Each looks at what the tools said, and says what is next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

THINKING = 0.25
"""Seconds that a model takes to answer; a real one takes longer."""

Said = list[tuple[str, Any]]
"""Name and answer of the tools that were called so far."""


def scripted(script: Callable[[str, Said], ToolCallPart | TextPart]) -> FunctionModel:
    """A model that follows a script, which gets the task and what was said."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        await asyncio.sleep(THINKING)
        parts = [part for message in messages for part in message.parts]
        said = [(part.tool_name, part.content) for part in parts if isinstance(part, ToolReturnPart)]
        return ModelResponse(parts=[script(str(getattr(parts[0], "content", "")), said)])

    return FunctionModel(answer)


def review(task: str, said: Said) -> ToolCallPart | TextPart:
    """List the files of a package, read and measure each, report."""
    if not said:
        package, most = task.split()
        return ToolCallPart("list_files", {"package": package, "most": int(most)})
    paths, done = said[0][1], len(said) - 1
    if done < 2 * len(paths):
        return ToolCallPart("measure" if done % 2 else "read_file", {"path": paths[done // 2]})
    functions = sum(answer for name, answer in said if name == "measure")
    return TextPart(f"{len(paths)} files define {functions} functions; the largest is {paths[0]}, {said[1][1]}")


def audit(task: str, said: Said) -> ToolCallPart | TextPart:
    """List what runqueue needs, ask for the version of each, report."""
    del task
    if not said:
        return ToolCallPart("list_requirements", {})
    packages, done = said[0][1], len(said) - 1
    if done < len(packages):
        return ToolCallPart("find_version", {"package": packages[done]})
    versions = [f"{package} {answer}" for package, (_, answer) in zip(packages, said[1:], strict=True)]
    return TextPart(f"{len(versions)} packages: {', '.join(versions)}")


def poison(task: str, said: Said) -> ToolCallPart | TextPart:
    """One harmless step, and then the one that no worker survives."""
    del task
    return ToolCallPart("crash", {}) if said else ToolCallPart("list_requirements", {})
