"""The leaderboard alone in a Chromium: a page with the part of a widget's model that it uses, without Jupyter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from front_end import open_page
from run_events import folded, whole_run

from hfta_nb import events as ev
from hfta_nb.ui.front_end import source
from hfta_nb.ui.leaderboard import Leaderboard, table_of
from hfta_nb.ui.steer import actions

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror=\"document.title='run'\">"
MODEL = """
async ({ esm, css, traits }) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const listeners = {};
  window.model = {
    sent: [],
    get: (name) => traits[name],
    set(name, value) { traits[name] = value; (listeners["change:" + name] ?? []).forEach((f) => f()); },
    save_changes() {},
    send: (message) => model.sent.push(message),
    on: (name, f) => (listeners[name] ??= []).push(f),
    off: (name, f) => { listeners[name] = (listeners[name] ?? []).filter((g) => g !== f); },
  };
  const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const root = document.getElementById("root");
  root.className = "hfta-workbench";
  module.default.render({ model, el: root });
}
"""


def table(axes: dict[str, Any], state: str = ev.RUNNING) -> dict[str, Any]:
    """The leaderboard of a made-up run in which member 1 diverges; the best is the one that learnt most."""
    history = folded(list(whole_run(axes, epochs=10)))
    for member in history.members.values():
        losses = [v for v in member.curves["val_loss"].values if v == v]
        member.best_epoch, member.best_value = member.curves["val_loss"].values.index(min(losses)) + 1, min(losses)
    history.state = state
    return table_of(history) | {"actions": actions(state == ev.RUNNING)}


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages with a leaderboard; in the end none of them may have had an error."""
    pages = []

    def make(shown: dict[str, Any], **traits: Any) -> Any:
        page = open_page(browser)
        pages.append(page)
        defaults = {"selected": [], "sort_by": "rank", "descending": False, "query": "", "arranged": {}}
        arguments = {"esm": Leaderboard._esm, "css": source("style.css")}
        page.evaluate(MODEL, arguments | {"traits": {"table": shown, **defaults, **traits}})
        return page

    yield make
    errors = [error for page in pages for error in page.errors]
    for page in pages:
        page.close()
    assert errors == []


def order(page: Any) -> list[int]:
    return [
        int(i) for i in page.eval_on_selector_all("tbody tr[data-member]", "rows => rows.map(r => r.dataset.member)")
    ]


def trait(page: Any, name: str) -> Any:
    return page.evaluate("name => model.get(name)", name)


AXES = {"lr": [1e-3, 1e-2], "act": ["relu", EVIL]}


def test_the_best_row_stands_out(opened: Callable[..., Any]) -> None:
    page = opened(table(AXES))
    best = page.locator("tbody tr[data-best=true]")
    assert best.count() == 1
    assert int(best.get_attribute("data-member")) == order(page)[0]


def test_rows_are_sorted_by_their_heads(opened: Callable[..., Any]) -> None:
    shown = table(AXES)
    page = opened(shown)
    assert order(page) == [row["id"] for row in shown["rows"]]
    head = page.locator("th[data-key='member']")
    head.get_by_role("button").click()
    assert order(page) == [0, 1, 2, 3]
    assert head.get_attribute("aria-sort") == "ascending"
    assert page.locator("th[data-key='rank']").get_attribute("aria-sort") == "none"
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert order(page) == [3, 2, 1, 0]
    assert (trait(page, "sort_by"), trait(page, "descending")) == ("member", True)


def test_what_is_missing_comes_last_whichever_way(opened: Callable[..., Any]) -> None:
    shown = table(AXES)
    for row in shown["rows"]:
        if row["id"] == 2:
            row["keys"][[c["key"] for c in shown["columns"]].index("metric:val_loss")] = None
    page = opened(shown)
    head = page.locator("th[data-key='metric:val_loss'] button")
    head.click()
    assert order(page)[-1] == 2
    head.click()
    assert order(page)[-1] == 2


def test_names_are_text(opened: Callable[..., Any]) -> None:
    page = opened(table(AXES))
    assert page.locator("tbody td", has_text=EVIL).count() == 2
    assert page.locator("tbody img").count() == 0
    assert page.title() == ""


def test_the_filter_wants_all_words(opened: Callable[..., Any]) -> None:
    page = opened(table(AXES))
    page.locator(".hfta-filter").fill("RELU 0.01")
    assert order(page) == [2]
    assert page.locator(".hfta-count").inner_text() == "1 of 4 members"
    for query, members in [("lr=0.01", [2, 3]), ("lr=1e-2, act=relu", [2]), ("act=rel", []), ("member=#3", [3])]:
        page.locator(".hfta-filter").fill(query)
        assert sorted(order(page)) == members
    for query, members in [("lr>0.001 state:running", [2, 3]), ("act in relu,gelu lr<=0.001", [0])]:
        page.locator(".hfta-filter").fill(query)
        assert sorted(order(page)) == members
    page.locator(".hfta-filter").fill("nobody")
    assert page.locator(".hfta-count").inner_text() == "none of 4 members"
    page.locator(".hfta-filter").fill("deph=2")
    assert page.locator(".hfta-count").inner_text().startswith("none of 4 members: no column deph; there are rank, ")
    page.locator(".hfta-filter").fill("")
    assert len(order(page)) == 4


def columns(page: Any) -> list[str]:
    return list(page.eval_on_selector_all("th[data-key]", "heads => heads.map(h => h.dataset.key)"))


def test_what_varies_comes_first_and_constants_are_in_the_menu(opened: Callable[..., Any]) -> None:
    page = opened(table({"lr": [1e-3, 1e-2], "width": [8]}))
    assert columns(page)[:5] == ["rank", "member", "axis:lr", "metric:val_loss", "best_epoch"]
    assert "axis:width" not in columns(page)
    page.locator(".hfta-filter").fill("width=8")  # also of what is hidden
    assert len(order(page)) == 2
    menu = page.locator(".hfta-columns")
    menu.get_by_text("columns (1 hidden)").click()
    menu.get_by_label("width").check()
    menu.get_by_label("rank").uncheck()
    assert (columns(page)[0], columns(page)[-1]) == ("member", "axis:width")
    assert page.locator("tbody tr").nth(0).locator("td").last.inner_text() == "8"
    page.keyboard.press("Escape")
    assert menu.get_attribute("open") is None
    menu.get_by_text("columns (1 hidden)").click()
    menu.get_by_role("button", name="as at first").click()
    assert trait(page, "arranged") == {}
    assert columns(page)[0] == "rank"


def test_columns_are_moved_widened_and_hidden_by_pointer_and_by_keys(opened: Callable[..., Any]) -> None:
    page = opened(table(AXES))
    head = page.locator("th[data-key='axis:act']")
    head.drag_to(page.locator("th[data-key='rank']"))
    assert columns(page)[:3] == ["axis:act", "rank", "member"]
    button = head.get_by_role("button")
    button.focus()
    page.keyboard.press("Shift+ArrowRight")
    assert columns(page)[:3] == ["rank", "axis:act", "member"]
    assert button.evaluate("b => b === document.activeElement"), "the focus goes with the column"
    edge = head.locator(".hfta-edge").bounding_box()
    page.mouse.move(edge["x"] + 3, edge["y"] + 5)
    page.mouse.down()
    page.mouse.move(edge["x"] + 3 - 60, edge["y"] + 5)
    page.mouse.up()
    width = trait(page, "arranged")["widths"]["axis:act"]
    assert abs(head.bounding_box()["width"] - width) < 2
    button.focus()
    page.keyboard.press("+")
    assert trait(page, "arranged")["widths"]["axis:act"] == pytest.approx(width + 16, abs=1)
    page.keyboard.press("Delete")
    assert "axis:act" not in columns(page)
    # A column that comes later has its place, whatever was arranged before.
    more = table({**AXES, "width": [8, 16]})
    page.evaluate("table => model.set('table', table)", more)
    assert "axis:width" in columns(page)


def test_no_column_is_cut_off_at_1000_pixels(opened: Callable[..., Any]) -> None:
    page = opened(table({"lr": [1e-3, 1e-2], "width": [8, 16], "dropout": [0.0, 0.2]}))
    page.set_viewport_size({"width": 820, "height": 600})  # what JupyterLab leaves of a window of 1000
    frame = page.locator(".hfta-board-frame")
    assert frame.evaluate("f => f.scrollWidth - f.clientWidth") == 0


def test_rows_are_selected_by_pointer_and_keyboard(opened: Callable[..., Any]) -> None:
    page = opened(table(AXES), sort_by="member")
    rows = page.locator("tbody tr[data-member]")
    rows.nth(1).locator("td").first.click()
    assert trait(page, "selected") == [1]
    assert rows.nth(1).get_attribute("aria-selected") == "true"
    rows.nth(3).locator("td").first.click(modifiers=["Shift"])
    assert trait(page, "selected") == [1, 3]
    rows.nth(3).focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    assert trait(page, "selected") == [2]
    page.keyboard.press("Home")
    page.keyboard.press("Control+Enter")
    assert trait(page, "selected") == [2, 0]
    page.evaluate("model.set('selected', [3])")  # the curves select
    assert [r.get_attribute("aria-selected") for r in rows.all()] == ["false", "false", "false", "true"]
    page.get_by_role("button", name="clear selection").click()
    assert trait(page, "selected") == []
    assert page.evaluate("document.querySelectorAll('tbody tr[tabindex=\"0\"]').length") == 1


def test_the_tools_of_the_selected_rows_stand_below_them_and_ask_for_them(opened: Callable[..., Any]) -> None:
    page = opened(table(AXES))
    tools = page.locator(".hfta-row-tools")
    assert tools.count() == 0
    page.locator("tr[data-member='2']").click()
    assert page.evaluate("document.querySelector('tr[data-member=\"2\"]').nextSibling.className") == "hfta-row-tools"
    page.get_by_role("button", name="take #2 home").click()
    page.get_by_label("values").fill("lr=2e-3")
    page.get_by_role("button", name="clone with weights").click()
    page.locator("tr[data-member='3']").click(modifiers=["Shift"])
    assert tools.locator("b").inner_text() in ("#2, #3", "#3, #2")
    assert page.get_by_role("button", name="take home").is_disabled()
    assert page.get_by_role("button", name="resume").is_disabled()
    page.get_by_role("button", name="pause").click()
    assert page.evaluate("model.sent") == [
        {"kind": "take", "id": 2},
        {"kind": "steer", "name": "warm", "members": [2], "text": "lr=2e-3"},
        {"kind": "steer", "name": "pause", "members": [2, 3], "text": ""},
    ]
    page.get_by_label("values").focus()
    page.evaluate("table => model.set('table', table)", {**table(AXES), "rows": table(AXES)["rows"][::-1]})
    assert page.evaluate("document.activeElement.value") == "lr=2e-3"
    page.keyboard.press("Escape")
    page.keyboard.press("Control+a")
    assert sorted(trait(page, "selected")) == [0, 1, 2, 3]
    page.evaluate("table => model.set('table', table)", table(AXES, ev.COMPLETE))
    assert page.get_by_role("button", name="pause").count() == 0
    page.keyboard.press("Escape")
    assert tools.count() == 0


def test_delete_asks(opened: Callable[..., Any]) -> None:
    page = opened(table(AXES))
    page.locator("tr[data-member='2']").click()
    question = page.get_by_role("alert")
    for way in ("keep", "Escape", "another member"):
        page.get_by_role("button", name="delete", exact=True).click()
        assert question.inner_text().startswith("Delete #")
        assert page.get_by_role("button", name="pause").count() == 0
        if way == "keep":
            page.get_by_role("button", name="keep").click()
        elif way == "Escape":
            page.keyboard.press("Escape")
        else:
            page.locator("tr[data-member='3']").click()
        assert question.count() == 0
        assert page.get_by_role("button", name="pause").is_visible()
    assert page.evaluate("model.sent") == []
    page.get_by_role("button", name="delete", exact=True).click()
    question.get_by_role("button", name="delete", exact=True).click()
    assert page.evaluate("model.sent") == [{"kind": "steer", "name": "delete", "members": [3], "text": ""}]


def test_a_diverged_member_is_marked_with_its_reason(opened: Callable[..., Any]) -> None:
    page = opened(table(AXES))
    row = page.locator("tr[data-member='1']")
    assert row.get_attribute("data-state") == "DIVERGED"
    assert "not finite" in row.get_attribute("title")


def test_rows_keep_their_places_under_the_pointer_and_the_focus(opened: Callable[..., Any]) -> None:
    shown = table(AXES)
    page = opened(shown)
    before = order(page)
    page.locator("tbody tr").nth(0).hover()
    turned = {**shown, "rows": [dict(row, keys=[4 - row["keys"][0], *row["keys"][1:]]) for row in shown["rows"]]}
    page.evaluate("table => model.set('table', table)", turned)
    assert order(page) == before
    page.locator("tbody tr").nth(1).focus()
    page.mouse.move(0, 0)
    assert order(page) == before[::-1]
    assert page.evaluate("document.activeElement.dataset.member") == str(before[1])  # moved, and still focused


def test_many_rows_are_shown_on_request(opened: Callable[..., Any]) -> None:
    page = opened(table({"lr": [i * 1e-4 for i in range(1, 301)]}))
    assert len(order(page)) == 200
    page.get_by_role("button", name="show all 300").click()
    assert len(order(page)) == 300
