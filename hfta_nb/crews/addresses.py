"""Whether anything listens at the address of a Ray cluster; Ray itself would wait long, and print its attempts."""

from __future__ import annotations

import os
import re
import socket
import threading

from hfta_nb.errors import WorkerError

TIMEOUT_S = 5.0
"""How long looking the host up and connecting to it may take together."""

VARIABLE = "RAY_ADDRESS"
"""Environment variable that Ray reads where no address, or "auto", is given."""

ACCEPTED = '"auto" (the cluster of this node), "host:6379" (a cluster to which this node belongs), "ray://host:10001"'
REMEDY = 'start a cluster there with "ray start --head", or leave address out to start Ray on this machine'
_HOST_AND_PORT = re.compile(r"(?:ray://)?(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<port>\d+)(?:/.*)?")


def check_address(address: str | None, timeout_s: float = TIMEOUT_S) -> None:
    """Connect to the address of a cluster, and close the connection again.

    Args:
        address: as `ray.init` takes it; None for the one in the environment.
        timeout_s: how long that may take.

    Raises:
        WorkerError: it is no address, its host is unknown, or nothing answers.
    """
    where = "address"
    if address in (None, "auto") and os.environ.get(VARIABLE):
        where, address = VARIABLE, os.environ[VARIABLE]
    if address in (None, "auto", "local"):
        return  # Ray looks for the cluster of this node, which it does quickly, or starts one
    assert address is not None
    if "://" in address and not address.startswith("ray://"):
        return  # of a Ray service that has an address of its own sort
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise WorkerError("not the address of a Ray cluster", where=where, got=address, accepted=ACCEPTED)
    reason = _unreachable(found["host"].strip("[]"), int(found["port"]), timeout_s)
    if reason:
        raise WorkerError(f"Ray can't be reached ({reason})", where=where, got=address, accepted=ACCEPTED,
                          remedy=REMEDY)  # fmt: skip


def _unreachable(host: str, port: int, timeout_s: float) -> str:
    """Why no connection can be made; empty if one can."""
    told: list[str] = []

    def attempt() -> None:
        try:
            socket.create_connection((host, port), timeout_s).close()
            told.append("")
        except socket.gaierror as error:
            told.append(f"the host {host!r} is not known: {error.strerror}")
        except OSError as error:
            told.append(f"{error.strerror or error}")

    # On a thread: looking a name up has no timeout.
    thread = threading.Thread(target=attempt, name="hfta_nb address", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return told[0] if told else f"no answer in {timeout_s:g} s"
