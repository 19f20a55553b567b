"""Whether a Ray cluster may be at an address; Ray itself would wait long, or without end, and print its attempts."""

from __future__ import annotations

import importlib
import os
import re
import socket
import sys
import threading

from hfta_nb.errors import WorkerError
from hfta_nb.workers.pools.foreign import is_foreign

TIMEOUT_S = 8.0
"""How long looking the host up, connecting to it and its answer may take together."""

VARIABLE = "RAY_ADDRESS"
"""Environment variable that Ray reads where no address, or "auto", is given."""

ACCEPTED = '"auto" (the cluster of this node), "host:6379" (a cluster to which this node belongs), "ray://host:10001"'
TLS = "RAY_USE_TLS"
"""Environment variable by which Ray encrypts its connections."""

REMEDY = 'start a cluster there with "ray start --head", or leave address out to start Ray on this machine'
ELSEWHERE = 'give the port of Ray, which "ray start --head" prints, or leave address out to start Ray on this machine'

# Ray's servers speak gRPC, and so HTTP/2: a client begins with these words and a frame of settings, a server with a
# frame of settings. The fourth byte of a frame is its type.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_FRAME_BYTES = 9
_SETTINGS = 4
_KNOWN = {
    b"HTTP/": "an HTTP server",
    b"<!DOCTYPE": "an HTTP server",
    b"<html": "an HTTP server",
    b"SSH-": "an SSH server",
    b"-": "a Redis server",
    b"\x15\x03": "a server that expects TLS",
}
_SHOWN_BYTES = 40
_HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<port>\d+)(?:/.*)?")


def check_address(address: str | None, timeout_s: float = TIMEOUT_S) -> None:
    """Connect to the address of a cluster, see that what is there may be Ray, and close the connection again.

    Args:
        address: as `ray.init` takes it; None for the one in the environment.
        timeout_s: how long that may take.

    Raises:
        WorkerError: it is no address, its host is unknown, nothing answers, or something that is not Ray.
    """
    where = "address"
    if address in (None, "auto") and os.environ.get(VARIABLE):
        where, address = VARIABLE, os.environ[VARIABLE]
    if address in (None, "auto", "local"):
        return  # Ray looks for the cluster of this node, which it does quickly, or starts one
    assert address is not None
    scheme, apart, _ = address.partition("://")
    if apart and scheme != "ray":  # a Ray service has a module of this name
        if not _is_service(scheme):
            raise WorkerError("no address of this kind leads to Ray", where=where, got=address, accepted=ACCEPTED)
        return
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise WorkerError("not the address of a Ray cluster", where=where, got=address, accepted=ACCEPTED)
    host, port = found["host"].strip("[]"), int(found["port"])
    wrong = _tried(host, port, timeout_s)
    client = address.startswith("ray://")
    if wrong is None and not _encrypted() and is_foreign(host, port, client):
        wrong = (
            f"the gRPC server there is not {'one for Ray clients' if client else 'the head of a cluster'}",
            ELSEWHERE,
        )
    if wrong is not None:
        what, remedy = wrong
        raise WorkerError(f"Ray can't be reached ({what})", where=where, got=address, accepted=ACCEPTED, remedy=remedy)


def _tried(host: str, port: int, timeout_s: float) -> tuple[str, str] | None:
    """What is wrong with a server, and what to do; None if nothing is."""
    failures: list[tuple[str, str] | None] = []
    connected = threading.Event()

    def attempt() -> None:
        try:
            with socket.create_connection((host, port), timeout_s) as connection:
                connected.set()
                what = _spoken(connection)
                failures.append((what, ELSEWHERE) if what else None)
        except socket.gaierror as error:
            failures.append((f"the host {host!r} is not known: {error.strerror}", REMEDY))
        except OSError as error:
            failures.append((f"{error.strerror or error}", REMEDY))

    # On a thread: looking a name up has no timeout.
    thread = threading.Thread(target=attempt, name="hfta_nb address", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failures:
        return failures[0]
    if connected.is_set():
        return f"what listens there says nothing in {timeout_s:g} s", ELSEWHERE
    return f"no answer in {timeout_s:g} s", REMEDY


def _spoken(connection: socket.socket) -> str:
    """What a server that is not Ray seems to be; empty if it may be Ray."""
    if _encrypted():
        return ""  # it says nothing before the connection is encrypted
    said = b""
    try:
        connection.sendall(_HELLO)
        while len(said) < _SHOWN_BYTES and not _is_settings(said):
            part = connection.recv(_SHOWN_BYTES)
            if not part:
                break
            said += part
    except TimeoutError:
        if not said:
            return f"what listens there says nothing in {connection.gettimeout():g} s"
    except ConnectionError:
        pass  # it is closed at once; what it has said until then tells what it is
    if _is_settings(said):
        return ""
    if not said:
        return "what listens there closes the connection"
    kind = next((kind for start, kind in _KNOWN.items() if said.lstrip().startswith(start)), "something else")
    return f"{kind} listens there, which says {said[:_SHOWN_BYTES]!r}"


def _is_service(scheme: str) -> bool:
    """Whether Ray finds a module for addresses of this kind, as `ray.init` does."""
    if not scheme.isidentifier() or scheme in sys.stdlib_module_names:
        return False
    try:
        return hasattr(importlib.import_module(scheme), "ClientBuilder")
    except Exception:  # whatever importing it makes of it
        return False


def _encrypted() -> bool:
    return os.environ.get(TLS, "0").lower() in ("1", "true")


def _is_settings(said: bytes) -> bool:
    return len(said) >= _FRAME_BYTES and said[3] == _SETTINGS and said[5:_FRAME_BYTES] == bytes(4)
