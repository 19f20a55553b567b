"""Messages of widgets are handled in the kernel where the page asks for it.

JupyterLab names a subshell of the kernel in each message of a widget, so that its controls work while a cell runs.
ipykernel 7.4 prefers the subshell, or the main shell, of the message for which the widget was last updated. A widget
that was made in a cell is then dead until the cell that runs ends; and one that a thread updates while a page reloads
(the kernel's last message is then the page's request for all widgets, whose subshell ends with the request) loses
everything that the new page says: "Unknown subshell_id".

A page that is opened while a cell runs, such as one that waits for a run, shows no widget before the kernel has said
what it is and what widgets there are. JupyterLab asks this of the main shell, as it does not know yet that there are
others, and would wait until the cell ends.
"""

from __future__ import annotations

import logging
import sys
import weakref
from typing import Any

_logger = logging.getLogger("hfta_nb")


class _Never:
    """An attribute that can be set and is never there."""

    def __get__(self, comm: Any, kind: type) -> Any:
        raise AttributeError

    def __set__(self, comm: Any, value: Any) -> None:
        pass


def follow_page() -> None:
    """Let ipykernel forget for whom a widget was last updated; answers that are awaited by an id keep their way."""
    comm = getattr(sys.modules.get("ipykernel.comm.comm"), "BaseComm", None)
    if comm is not None:  # else there is no kernel
        comm._reply_subshell_id = _Never()


def greet_pages() -> None:
    """Let a subshell answer what a new page asks first, while a cell runs; where the kernel has subshells."""
    kernel: Any = getattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel", None)
    thread = getattr(kernel, "shell_channel_thread", None)
    if thread is not None and kernel not in _greeted:
        _greeted.add(kernel)
        thread.io_loop.add_callback(kernel.shell_stream.on_recv, _Reception(kernel).hear, copy=False)


_greeted: weakref.WeakSet[Any] = weakref.WeakSet()


class _Reception:
    """Hears all messages to the shells of a kernel, on the thread that receives them."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._comms: set[str] = set()
        self._subshell = ""

    async def hear(self, message: list[Any]) -> None:
        """Pass a message on, to where it says, or to a subshell."""
        if self._kernel._main_asyncio_lock.locked():  # a cell runs
            try:
                if self._passed(message):
                    return
            except Exception:
                _logger.debug("a message is left to the kernel", exc_info=True)
        await self._kernel.shell_channel_thread_main(message)

    def _passed(self, message: list[Any]) -> bool:
        """Pass a message to a subshell, if it is to the main shell and from a new page; returns whether it is."""
        session, manager = self._kernel.session, self._kernel.shell_channel_thread.manager
        sender, frames = session.feed_identities(message, copy=False)
        # With its content, it would be refused where it is read again.
        found = session.deserialize(frames, content=False, copy=False)
        header = found["header"]
        if header.get("subshell_id") or not self._is_first(header["msg_type"], session.unpack(found["content"])):
            return False
        self._subshell = self._subshell or manager._create_subshell()
        header["subshell_id"] = self._subshell
        addressed = [*session.serialize(found, sender), *found["buffers"]]
        manager.get_shell_channel_to_subshell_socket(self._subshell).send_multipart(addressed)
        return True

    def _is_first(self, kind: str, content: dict[str, Any]) -> bool:
        """Whether a page asks this to find widgets; messages of widgets wait for the cell, as ever."""
        if kind == "comm_open" and content["target_name"] == "jupyter.widget.control":
            self._comms.add(content["comm_id"])
        return kind in ("kernel_info_request", "comm_info_request") or content.get("comm_id") in self._comms
