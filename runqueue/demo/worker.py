"""One worker process of the demo: `python -m runqueue.demo.worker QUEUE CONCURRENCY`."""

from __future__ import annotations

import logging
import os
import sys
import threading

from runqueue import Worker


def main(name: str, concurrency: str) -> None:
    """Work on a queue until SIGTERM."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.basicConfig(format=f"%(asctime)s {os.getpid()} %(levelname)s %(message)s")

    from runqueue.demo import agents

    Worker(agents.queue(), queues=[name], concurrency=int(concurrency)).run()


def _end_with_parent() -> None:
    """The demo holds the other end of our stdin: when it is gone, however that came, nobody needs us."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
