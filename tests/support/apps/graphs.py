"""A worker process that runs a graph, as an async and as a sync handler. Its configuration is JSON in GRAPHS."""

from __future__ import annotations

import json
import logging
import os
import sys

from graphs.made import split

from runqueue import RunQueue, Settings, Worker
from runqueue_plugins.langgraph import graph_handler, sync_graph_handler
from support.effects import Effects

CONFIG = json.loads(os.environ["GRAPHS"])


def main() -> int:
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    graph = split(Effects(CONFIG["url"]))
    queue = RunQueue(CONFIG["url"], settings=Settings(**CONFIG["settings"]))
    queue.handler("async")(graph_handler(graph))
    queue.handler("sync")(sync_graph_handler(graph))
    Worker(queue, concurrency=4).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
