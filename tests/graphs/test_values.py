"""What graph state may hold: all that LangGraph's serializer takes, and nothing by pickle; metadata may be anything."""

from __future__ import annotations

import dataclasses
import math
import pickle
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from graphs.made import chain
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from sqlalchemy import text

from runqueue import RunQueue, Worker
from runqueue_plugins.langgraph import GraphSaver, Held, graph_handler, sync_graph_handler
from runqueue_plugins.langgraph.plan import jsonable

CONFIG: Any = {"configurable": {"thread_id": "a"}}
TYPES = "select type from runqueue.agent_graph_values union select type from runqueue.agent_graph_writes"
BODIES = """
select body from runqueue.agent_graph_values where body is not null
union all select body from runqueue.agent_graph_writes
"""


@pytest.fixture
def held(queue: RunQueue) -> Any:
    """A run in hand, done after the test."""
    queue.enqueue("graph", tenant_id="acme")
    [claimed] = queue.claim("test", lease=60)
    yield Held(queue, claimed)
    queue.complete(claimed.lease)


def test_state_comes_back_as_it_was(held: Held) -> None:
    value = {
        "text": "a\0b\ud800".encode("utf-16", "surrogatepass"), "when": datetime.now(UTC), "id": UUID(int=7),
        "nan": math.inf, "set": {1, 2}, "message": AIMessage("hi", id="m"), 5: "int key", "deep": [[[{}]]],
    }  # fmt: skip
    saver = GraphSaver(held)
    checkpoint = empty_checkpoint() | {
        "channel_values": {"x": value, "nul\n": "a\0b"},
        "channel_versions": {"x": "1", "nul\n": 2},
    }
    stored = saver.put(CONFIG, checkpoint, {"source": "loop"}, {"x": "1", "nul\n": 2})  # type: ignore[arg-type]
    found = saver.get_tuple(stored)
    assert found is not None
    assert found.checkpoint == checkpoint


def test_odd_metadata_does_not_stop_a_graph(held: Held) -> None:
    odd: Any = {"source": "loop", "nan": math.nan, "nul": ["a\0b", {"\0k": "\ud800"}], "thing": object, "big": 10**40}
    saver = GraphSaver(held)
    found = saver.get_tuple(saver.put(CONFIG, empty_checkpoint(), odd, {}))
    assert found is not None
    metadata: Any = found.metadata
    assert metadata["nul"] == ["ab", {"k": "?"}]
    assert (metadata["nan"], metadata["big"]) == ("nan", 10**40)


class OnlyByPickle:
    """LangGraph's serializer has no form for it, pickle has."""


@pytest.mark.parametrize("handler", [graph_handler, sync_graph_handler])
def test_nothing_is_pickled(handler: Any, queue: RunQueue) -> None:
    assert pickle.dumps(OnlyByPickle())
    queue.handler("graph")(handler(chain(("make", lambda state: {"done": [OnlyByPickle()]})).compile()))
    run = queue.enqueue("graph", {}, tenant_id="acme", max_attempts=1)
    Worker(queue).drain(20)
    assert (queue.get(run.id).status, queue.get(run.id).error_code) == ("dead", "TypeError")
    with queue.engine.connect() as connection:
        types = connection.execute(text(TYPES)).scalars().all()
    assert set(types) <= {"msgpack", "null", "empty", "bytes", "bytearray"}


def test_a_serializer_that_encrypts_leaves_nothing_readable(queue: RunQueue) -> None:
    class Flip:
        def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
            return "flip", bytes(x ^ 255 for x in plaintext)

        def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
            return bytes(x ^ 255 for x in ciphertext)

    graph = chain(("say", lambda state: {"done": ["a secret"]})).compile()
    queue.handler("graph")(
        graph_handler(graph, serde=EncryptedSerializer(Flip()), result=lambda output: len(output["done"]))
    )
    run = queue.enqueue("graph", {}, tenant_id="acme")
    Worker(queue).drain(20)
    assert queue.get(run.id).result == 1
    with queue.engine.connect() as connection:
        bodies = connection.execute(text(BODIES)).scalars().all()
    assert bodies
    assert not any(b"a secret" in bytes(body) for body in bodies)


def test_output_becomes_json(queue: RunQueue) -> None:
    @dataclasses.dataclass
    class Point:
        x: int

    output = {
        "done": [
            AIMessage("hi", id="m"),
            Point(1),
            datetime(2026, 1, 2, tzinfo=UTC),
            {
                1,
            },
            b"\xff",
            math.nan,
            object,
        ]
    }
    [message, *rest] = jsonable(output)["done"]
    assert (message["content"], message["type"]) == ("hi", "ai")
    assert rest[:5] == [{"x": 1}, "2026-01-02T00:00:00Z", [1], "_w==", "NaN"]
    assert rest[5] == "<class 'object'>"
