"""Addresses of Ray clusters: one at which nothing answers is told at once, before a run begins."""

from __future__ import annotations

import contextlib
import http.server
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb.cli import main
from hfta_nb.errors import WorkerError
from hfta_nb.workers.pools import addresses
from hfta_nb.workers.pools.addresses import check_address


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(addresses.VARIABLE, raising=False)


@pytest.fixture
def closed() -> Iterator[int]:
    """A port of this machine at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, so that nobody else gets it, but not listening
        yield held.getsockname()[1]


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_port_at_which_nobody_listens(closed: int, scheme: str) -> None:
    with pytest.raises(WorkerError, match="Connection refused") as found:
        check_address(f"{scheme}127.0.0.1:{closed}")
    assert found.value.where == "address"
    assert f"127.0.0.1:{closed}" in found.value.got
    assert '"auto"' in found.value.accepted
    assert "ray start --head" in found.value.remedy


SETTINGS = b"\0\0\6\4\0\0\0\0\0\0\3\0\0\0d"
"""The frame with which an HTTP/2 server begins."""


@contextlib.contextmanager
def server(say: Callable[[socket.socket], object]) -> Iterator[str]:
    """The address of a server that does something with its one connection, and then closes it."""

    def serve() -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as connection:
            say(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    thread.join()


@pytest.fixture
def _not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of these tests take one connection each, and gRPC would wait for a second one."""
    monkeypatch.setattr(addresses, "is_foreign", lambda *given, **more: False)


@pytest.mark.usefixtures("_not_called")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_server_of_grpc(scheme: str) -> None:
    with server(lambda connection: [connection.sendall(SETTINGS), connection.recv(99)]) as address:
        check_address(f"{scheme}{address}")


@pytest.mark.parametrize(("scheme", "what"), [("", "the head of a cluster"), ("ray://", "one for Ray clients")])
def test_a_server_of_grpc_that_is_not_ray(scheme: str, what: str) -> None:
    """Ray itself takes half a minute to say so, or two and then ends the process."""
    grpc = pytest.importorskip("grpc")
    with ThreadPoolExecutor(1) as pool:
        foreign = grpc.server(pool)
        address = f"{scheme}127.0.0.1:{foreign.add_insecure_port('127.0.0.1:0')}"
        foreign.start()
        with pytest.raises(WorkerError, match=f"the gRPC server there is not {what}") as found:
            check_address(address)
        foreign.stop(None).wait()
    assert found.value.got == repr(address)
    assert "port of Ray" in found.value.remedy


@pytest.mark.usefixtures("_not_called")
def test_the_settings_come_in_parts() -> None:
    sent = threading.Event()

    def say(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(SETTINGS[:5])
        connection.recv(99)  # what the client says first
        sent.set()
        connection.sendall(SETTINGS[5:])

    with server(say) as address:
        check_address(address)
    assert sent.is_set()


@pytest.mark.parametrize(
    ("says", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server listens there"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH server listens there"),
        (b"-ERR unknown command 'PRI'\r\n", "a Redis server listens there"),
        (b"\x15\x03\x03\0\2\2F", "a server that expects TLS listens there"),
        (b"220 welcome\r\n", r"something else listens there, which says b'220 welcome"),
        (b"", "what listens there closes the connection"),
    ],
    ids=["http", "ssh", "redis", "tls", "other", "closing"],
)
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_server_that_is_not_ray(says: bytes, what: str, scheme: str) -> None:
    with (
        server(lambda connection: [connection.recv(99), connection.sendall(says)]) as address,
        pytest.raises(WorkerError, match=what) as found,
    ):
        check_address(f"{scheme}{address}")
    assert found.value.got == repr(f"{scheme}{address}")
    assert "port of Ray" in found.value.remedy


def test_a_web_server() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as served:
        thread = threading.Thread(target=served.handle_request)
        thread.start()
        with pytest.raises(WorkerError, match="an HTTP server listens there"):
            check_address(f"127.0.0.1:{served.server_port}")
        thread.join()


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_server_that_says_nothing(scheme: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(WorkerError, match=r"what listens there says nothing in 0\.2 s"),
    ):
        check_address(f"{scheme}127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)


def test_encrypted_connections_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(addresses.TLS, "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        check_address(f"127.0.0.1:{silent.getsockname()[1]}")


def test_a_host_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*given: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(WorkerError, match="the host 'nowhere' is not known: Name or service not known"):
        check_address("nowhere:1")


def test_looking_a_host_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def slow(*given: Any) -> None:
        never.wait()
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", slow)
    with pytest.raises(WorkerError, match=r"no answer in 0\.01 s"):
        check_address("nowhere:1", timeout_s=0.01)
    never.set()


@pytest.mark.parametrize("address", ["head", "head:", "head:a", ":6379", "head:66000", "ray://head"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(WorkerError, match="not the address of a Ray cluster"):
        check_address(address)


def test_what_ray_finds_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(*given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(socket, "create_connection", tried)
    service = types.ModuleType("service_of_ray")
    service.ClientBuilder = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "service_of_ray", service)
    for address in (None, "auto", "local", "service_of_ray://cluster"):
        check_address(address)


@pytest.mark.parametrize("scheme", ["http", "https", "tcp", "rya", "redis", "json", "math", "a-b", "", "Ray", "ray "])
def test_what_leads_nowhere_begins_no_run(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # another test's
    monkeypatch.setattr(ray, "init", lambda *given, **more: pytest.fail("Ray is asked"))
    study = hfta.Study("mlp", {"lr": [0.1]}, "iris", epochs=1, device="cpu", directory=tmp_path / "run")
    with pytest.raises(WorkerError, match=r"no address of this kind|not the address of a Ray cluster"):
        study.run(executor="ray", address=f"{scheme}://127.0.0.1:10001")
    assert not study.directory.exists()


@pytest.mark.parametrize("words", ["GCS is not there", "Version mismatch: The cluster was started with: Ray: 2.0"])
def test_a_cluster_that_can_not_be_joined_leaves_no_run(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Ray says only when it is asked."""
    ray = pytest.importorskip("ray")

    def refused(*given: Any, **more: Any) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # another test's
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", refused)
    study = hfta.Study("mlp", {"lr": [0.1]}, "iris", epochs=1, device="cpu", directory=tmp_path / "run")
    remedy = "install the versions" if "ersion" in words else "start a cluster"
    with pytest.raises(WorkerError, match=f"can't be reached .{words}.*{remedy}"):
        next(study.run(executor="ray", address="auto"))
    assert not study.store.has_events
    assert study.history.state == "WAITING"
    assert [type(event).__name__ for event in study.run()][-1] == "RunChanged"


def test_the_address_in_the_environment(closed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray reads it where none is given."""
    monkeypatch.setenv(addresses.VARIABLE, f"127.0.0.1:{closed}")
    for address in (None, "auto"):
        with pytest.raises(WorkerError, match=addresses.VARIABLE):
            check_address(address)


def test_the_command_says_so_in_a_line_and_begins_nothing(
    closed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # another test's
    monkeypatch.setattr(ray, "init", lambda *given, **more: pytest.fail("Ray is asked"))
    monkeypatch.chdir(tmp_path)
    where = ("--executor", "ray", "--address", f"127.0.0.1:{closed}")
    assert main(["run", "--family", "mlp", "--data", "iris", "--output", "made", *where]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert f"Ray can't be reached (Connection refused); got '127.0.0.1:{closed}'; accepted: " in line
    assert not (tmp_path / "made").exists()
