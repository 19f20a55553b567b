"""Messages over a pipe."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from hfta_nb.workers.processes import frames
from tests.polling import eventually


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reading end, writing end; the reading end is closed afterwards."""
    read, write = os.pipe()
    yield read, write
    os.close(read)


@pytest.mark.parametrize("size", [1, 3, 11, 12, 13, 1000])
def test_messages_are_whole_however_they_are_cut(size: int) -> None:
    sent = [({"a": 1}, b""), ({}, b"\x00\xff"), ({"text": "ü\n"}, bytes(500)), ({"last": None}, b"")]
    data = b"".join(frames.pack(*message) for message in sent)
    unpacker = frames.Unpacker()
    got = [m for i in range(0, len(data), size) for m in unpacker.feed(data[i : i + size])]
    assert got == sent


def test_what_is_not_json_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        frames.pack({"loss": float("nan")})
    with pytest.raises(TypeError, match="not JSON serializable"):
        frames.pack({"loss": object()})


def test_much_passes_in_order(pipe: tuple[int, int]) -> None:
    read, write = pipe
    sender = frames.Sender(write, "test", limit=8)
    blob = os.urandom(3_000_000)

    def put() -> None:
        for i in range(2000):
            sender.put({"i": i}, blob if i == 1000 else b"")
        sender.close()

    threading.Thread(target=put).start()
    got = list(frames.read(read))
    assert [message["i"] for message, _ in got] == list(range(2000))
    assert got[1000][1] == blob


def test_who_has_something_to_say_does_not_wait_for_the_other_end(pipe: tuple[int, int]) -> None:
    _, write = pipe
    sender = frames.Sender(write, "test")

    def put() -> None:
        for _ in range(50):
            sender.put({}, bytes(100_000))  # 5 MB, where a pipe holds 64 kB and nobody reads

    putting = threading.Thread(target=put, daemon=True)  # one that waits must not keep the tests from ending
    putting.start()
    eventually(lambda: not putting.is_alive(), "all to be said")


def test_what_nobody_reads_any_more_is_dropped() -> None:
    read, write = os.pipe()
    os.close(read)
    sender = frames.Sender(write, "test of a broken pipe", limit=2)
    for i in range(100):
        sender.put({"i": i})
    sender.close()
    eventually(lambda: "test of a broken pipe" not in {t.name for t in threading.enumerate()}, "the thread's end")
