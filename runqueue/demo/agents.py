"""The application of the demo, and an example of yours: agents, and the handlers that make durable runs of them.

A worker process loads `queue`. A run ends up in whichever worker has room, and continues in another one if that dies:
after each step of the agent its conversation is the run's checkpoint.
"""

from __future__ import annotations

import os
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ToolReturnPart
from sqlalchemy import insert

from runqueue import RunContext, RunQueue
from runqueue.demo import script, tools
from runqueue.demo.install import SETTINGS, steps

reviewer = Agent(script.scripted(script.review), tools=[tools.list_files, tools.read_file, tools.measure])
auditor = Agent(script.scripted(script.audit), tools=[tools.list_requirements, tools.find_version])
crasher = Agent(script.scripted(script.poison), tools=[tools.list_requirements, tools.crash])


def queue() -> RunQueue:
    """The queue with its handlers."""
    queue = RunQueue(os.environ["RUNQUEUE_DATABASE_URL"], settings=SETTINGS)

    @queue.handler("review", timeout=120)
    async def review(run: RunContext) -> dict[str, Any]:
        return await work(run, reviewer)

    @queue.handler("audit", timeout=60)
    async def audit(run: RunContext) -> dict[str, Any]:
        return await work(run, auditor)

    @queue.handler("poison", timeout=60)
    async def poison(run: RunContext) -> dict[str, Any]:
        return await work(run, crasher)

    return queue


async def work(run: RunContext, agent: Agent[object, str]) -> dict[str, Any]:
    """Run an agent from its beginning, or from where an earlier attempt committed its last step."""
    await run.emit("started", {"attempt": run.attempt, "pid": os.getpid()})
    messages = ModelMessagesTypeAdapter.validate_python(run.checkpoint or [])
    done = count_steps(messages)
    task = None if messages else run.input["task"]
    async with agent.iter(task, message_history=messages) as conversation:
        async for node in conversation:
            run.raise_if_cancelled()
            if Agent.is_model_request_node(node):  # the tools have answered, the model is about to be asked again
                messages = [*conversation.all_messages(), node.request]
                if count_steps(messages) > done:
                    done = count_steps(messages)
                    await commit_step(run, done, messages)
    assert conversation.result is not None
    return {"answer": conversation.result.output, "steps": done}


async def commit_step(run: RunContext, step: int, messages: list[ModelMessage]) -> None:
    """A row of our own, an event and the checkpoint: all of them or none, and only while this worker holds the run."""
    did = ", ".join(part.tool_name for part in messages[-1].parts if isinstance(part, ToolReturnPart))
    async with run.transaction() as tx:
        row = {"run_id": run.id, "step": step, "attempt": run.attempt, "pid": os.getpid(), "did": did}
        await tx.connection.execute(insert(steps).values(row))
        await tx.emit("step", {"step": step, "did": did})
        await tx.save_checkpoint(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


def count_steps(messages: list[ModelMessage]) -> int:
    """How often tools have answered: every request to the model but the first brings their answers."""
    return max(0, sum(isinstance(message, ModelRequest) for message in messages) - 1)
