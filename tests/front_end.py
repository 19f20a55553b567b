"""A front end without Jupyter, which reads the messages of a LiveView in Python or in a page of a real browser."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from hfta_nb.records.history import Curve
from hfta_nb.ui.live_view import LiveView


class FrontEnd:
    """Takes a view's messages and puts the curves together again, the way `ui/front/store.js` does."""

    def __init__(self, view: LiveView) -> None:
        self.view = view
        self.messages: list[tuple[dict[str, Any], list[bytes]]] = []
        self.curves: dict[tuple[int, str], Curve] = {}
        self.states: dict[int, tuple[str, str]] = {}
        view.send = self._take

    def hello(self) -> None:
        """What a front end says when it has no state."""
        self.view._handle_custom_msg({"kind": "hello"}, [])

    def _take(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        buffers = buffers or []
        self.messages.append((content, buffers))
        if content["kind"] == "nothing":
            return
        if content["full"]:
            self.curves.clear()
            self.states.clear()
        self.states |= {i: (state, reason) for i, state, reason in content["states"]}
        columns = [np.frombuffer(b, d) for b, d in zip(buffers, ("<f4", "<f8", "<f8", "<f4"), strict=True)]
        rows = list(zip(*columns, strict=True))
        at = 0
        for owner, name, count in content["curves"]:
            curve = self.curves.setdefault((owner, name), Curve())
            for epoch, step, time_s, value in rows[at : at + count]:
                curve.add(float(epoch), int(step), float(value), float(time_s))
            at += count
        assert at == len(rows)


PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>body {{ margin: 8px; {body} }}</style></head>
<body {attributes}><div id="root"></div></body></html>"""

# As much of a widget's model as the live view uses.
MODEL = """
async ({ esm, css, traits }) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const listeners = {};
  // What is asked is asked again when a test says so, not after a time.
  window.timers = [];
  window.setTimeout = (again, pause) => timers.push({ again, pause });
  window.clearTimeout = (number) => { delete timers[number - 1]; };
  const model = {
    sent: [], saved: [],
    get: (name) => traits[name],
    set(name, value) { traits[name] = value; (listeners["change:" + name] ?? []).slice().forEach((f) => f()); },
    save_changes() { model.saved.push(structuredClone(traits)); },
    send: (message) => model.sent.push(message),
    on: (name, f) => (listeners[name] ??= []).push(f),
    off: (name, f) => { listeners[name] = (listeners[name] ?? []).filter((g) => g !== f); },
    emit: (name, ...values) => (listeners[name] ?? []).slice().forEach((f) => f(...values)),
  };
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  window.module = await import(url);
  const widget = await window.module.default();
  await widget.initialize({ model });
  window.addView = async (el) => {
    const controller = new AbortController();
    await widget.render({ model, el, signal: controller.signal });
    return controller;
  };
  window.model = model;
  window.view = await window.addView(document.getElementById("root"));
  window.take = (messages) => {
    for (const [content, buffers] of messages) {
      const views = buffers.map((text) => {
        // Odd offsets, as in a message of a real kernel.
        const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
        const shifted = new Uint8Array(bytes.length + 3);
        shifted.set(bytes, 3);
        return new DataView(shifted.buffer, 3);
      });
      model.emit("msg:custom", content, views);
    }
  };
  window.settled = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())));
  await window.settled();
}
"""

LIGHT = ""
DARK = (
    "background: #111; --jp-layout-color1: #111111; --jp-layout-color2: #212121; --jp-ui-font-color1: #ffffff; "
    "--jp-ui-font-color2: rgba(255, 255, 255, 0.7); --jp-border-color2: #424242; --jp-brand-color1: #42a5f5;"
)


class BrowserFrontEnd:
    """A LiveView whose messages go to its script in a page, and whose traits come from there."""

    def __init__(self, page: Any, view: LiveView) -> None:
        self.page = page
        self.view = view
        self._held: list[Any] = []
        view.send = self._hold
        names = ("metric", "x_axis", "log_x", "log_y", "smoothing", "split", "color_by", "selected", "running")
        self.traits = {name: getattr(view, name) for name in names}
        page.evaluate(MODEL, {"esm": view._esm, "css": view._css, "traits": self.traits})
        view.observe(self._trait, names=list(names))

    def _hold(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self._held.append([content, [base64.b64encode(b).decode() for b in buffers or []]])

    def _trait(self, change: Any) -> None:
        self.page.evaluate("([name, value]) => model.set(name, value)", [change["name"], change["new"]])

    def hello(self) -> None:
        """What the page says when it has no state, and the answer."""
        self.view._handle_custom_msg({"kind": "hello"}, [])
        self.deliver()

    def deliver(self) -> None:
        """Hand the page what was sent, and wait until it has drawn."""
        held, self._held = self._held, []
        self.page.evaluate("async (messages) => { take(messages); await settled(); }", held)

    def show(self, events: Any) -> None:
        """Let the view take these events, send, and the page draw."""
        for event in events:
            self.view.add(event)
        self.view.flush()
        self.deliver()

    def set(self, **traits: Any) -> None:
        """Set traits in the page, as the kernel would."""
        for name, value in traits.items():
            self.page.evaluate("([name, value]) => model.set(name, value)", [name, value])
        self.page.evaluate("settled()")


def open_page(
    browser: Any, width: int = 1280, height: int = 640, body: str = LIGHT, ratio: float = 1.0, **media: Any
) -> Any:
    """A page of its own that will hold a view; `body` is the style that sets the theme."""
    page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=ratio, **media)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.set_content(PAGE.format(body=body, attributes='data-jp-theme-light="true"'))
    return page
