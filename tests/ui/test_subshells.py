"""Messages of widgets go to the subshell that the page names."""

from __future__ import annotations

import pytest

from hfta_nb.ui.live_view import LiveView


def test_a_message_goes_where_its_page_says_whoever_the_widget_was_updated_for() -> None:
    comm = pytest.importorskip("ipykernel.comm.comm").BaseComm(primary=False)
    if not hasattr(comm, "_reply_subshell_for"):
        pytest.skip("this ipykernel goes by the message")
    LiveView()
    comm._reply_subshell_id = "of a page that is gone"
    comm._reply_subshell_ids["question"] = "that waits"
    assert comm._reply_subshell_for({"kind": "hello"}, "of the page") == "of the page"
    assert comm._reply_subshell_for({"content": {"id": "question"}}, "of the page") == "that waits"
