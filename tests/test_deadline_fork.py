"""A child made by fork keeps its hands off the calls that were under way in the parent."""

from __future__ import annotations

import os
import socket
from typing import NoReturn

import pytest

from runqueue.deadline import Deadlines


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_cuts_no_call_of_its_parent() -> None:
    deadlines = Deadlines()
    ours, other = socket.socketpair()
    with ours, other:
        with deadlines.guard_socket(ours.fileno(), 0.5):
            child = os.fork()
            if child == 0:
                _cut_a_later_call(deadlines)
        assert os.waitpid(child, 0)[1] == 0, "the child's own deadlines do not work"
        ours.send(b"still there")
        assert other.recv(20) == b"still there"


def _cut_a_later_call(deadlines: Deadlines) -> NoReturn:
    left = 1
    try:
        mine, peer = socket.socketpair()
        peer.settimeout(20)
        with deadlines.guard_socket(mine.fileno(), 1.0):
            left = len(peer.recv(1))  # an end, once this call is cut, and the parent's would have been
    finally:
        os._exit(left)
