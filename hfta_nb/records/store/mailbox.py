"""Requests of other processes to the one that runs a study: facts that it takes out again."""

from __future__ import annotations

import json
import time
import uuid

from hfta_nb.errors import EventError
from hfta_nb.records.events import Request, from_json, to_json
from hfta_nb.records.store import database, facts
from hfta_nb.records.store.connections import Access

_KIND = "request"


class Requests:
    """The requests that lie in a study's database.

    Args:
        access: to the database.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def post(self, request: Request) -> None:
        """Leave a request for the process that runs the study, which takes it within about half a second."""
        body = json.loads(json.dumps({"request": to_json(request)}))
        with self._access.writing() as connection:
            facts.put(connection, _KIND, f"{time.time_ns():020d} {uuid.uuid4().hex}", body)

    def take(self) -> list[Request]:
        """All requests, oldest first, which are not there after that; damaged and unknown ones are dropped. To be
        called by the process that runs the study."""
        found: list[Request] = []
        with self._access.writer() as connection:
            if connection.execute("SELECT 1 FROM facts WHERE kind = ? LIMIT 1", (_KIND,)).fetchone() is None:
                return found
            with database.transaction(connection, lasting=False):
                for _, body in list(facts.all_of(connection, _KIND)):
                    try:
                        request = None if body is None else from_json(body["request"])
                    except (EventError, KeyError):
                        continue
                    if isinstance(request, Request):
                        found.append(request)
                connection.execute("DELETE FROM facts WHERE kind = ?", (_KIND,))
        return found
