"""A front end without Jupyter: reads what a LiveView sends, in Python or in a page of a real browser."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hfta_nb import events as ev
from hfta_nb.grid import Grid
from hfta_nb.history import Curve
from hfta_nb.ui.live_view import LiveView

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
T0 = 1_700_000_000.0


class FrontEnd:
    """Takes a view's messages and puts the curves together again, the way `live_view.js` does."""

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


def run_started(axes: dict[str, Any], epochs: int = 20, **changes: Any) -> ev.RunStarted:
    """The first event of a run over a grid."""
    grid = Grid(axes)
    variants = tuple(ev.VariantRecord(v.id, v.config, v.seed) for v in grid.variants())
    fields: dict[str, Any] = {
        "run_id": "r1",
        "family": "cnn",
        "data": "digits",
        "device": "cpu",
        "device_name": "a CPU",
        "dtype": "float32",
        "epochs": epochs,
        "threads": 1,
        "directory": "",
        "axes": grid.axes,
        "variants": variants,
        "metrics": ("train_loss", "val_loss", "train_accuracy", "val_accuracy"),
        "monitor": "val_loss",
        "direction": "minimize",
    }
    return ev.RunStarted(T0, **(fields | changes))


def epoch_done(
    epoch: int, members: int, values: Callable[[int, int], float], time_s: float | None = None
) -> ev.EpochDone:
    """An epoch whose validation loss of a member is `values(epoch, member)`; the other metrics follow from it."""
    losses = [values(epoch, m) for m in range(members)]
    metrics = {
        "train_loss": tuple(0.8 * v for v in losses),
        "val_loss": tuple(losses),
        "train_accuracy": tuple(math.exp(-0.7 * v) for v in losses),
        "val_accuracy": tuple(math.exp(-v) for v in losses),
    }
    return ev.EpochDone(
        T0 + 2.0 * epoch if time_s is None else time_s, 0, epoch, 23 * epoch, tuple(range(members)), metrics
    )


def learning(epoch: int, member: int) -> float:
    """A loss that falls, each member in its own way, with some noise that is the same each time."""
    rate = 0.06 + 0.035 * (member * 7 % 11)
    floor = 0.03 + 0.02 * (member % 5)
    return floor + 2.3 * math.exp(-rate * epoch) + 0.03 * math.sin(37.0 * epoch + 11.0 * member)


def gpu_sample(second: float) -> ev.DeviceSampled:
    """A device measured at that second of the run."""
    busy = 1 - math.exp(-second / 3)
    values = {
        "sm_active": busy * (0.92 + 0.05 * math.sin(second)),
        "sm_occupancy": busy * (0.41 + 0.04 * math.sin(second / 2)),
        "tensor_active": busy * (0.18 + 0.03 * math.sin(second / 3)),
        "dram_active": busy * (0.33 + 0.05 * math.cos(second / 2)),
        "memory_bytes": (6 + 35 * busy) * 2**30,
        "memory_total_bytes": 139 * 2**30,
        "power_w": 120 + 290 * busy,
    }
    return ev.DeviceSampled(T0 + second, "cuda:0", values)


def cpu_sample(second: float, cores: int = 2) -> ev.DeviceSampled:
    """Load of some cores at that second of the run."""
    values = {f"core{i}": 0.6 + 0.35 * math.sin(second / (2 + i) + i) for i in range(cores)}
    values |= {"memory_bytes": (5 + 0.05 * second) * 2**30, "process_memory_bytes": (0.8 + 0.01 * second) * 2**30}
    return ev.DeviceSampled(T0 + second, "cpu", values | {"memory_total_bytes": 15.6 * 2**30})


def whole_run(
    axes: dict[str, Any], epochs: int = 20, sample: Any = gpu_sample, pause: bool = True
) -> Iterator[ev.Event]:
    """The events of a run in order: members learn, one diverges, the device is measured, there is a pause."""
    start = run_started(axes, epochs)
    members = len(start.variants)
    yield start
    yield from (ev.MemberChanged(T0, i, ev.RUNNING) for i in range(members))
    shift = 0.0
    for epoch in range(1, epochs + 1):
        if pause and epoch == epochs // 2:
            yield ev.RunChanged(T0 + 2.0 * epoch - 1, ev.PAUSED)
            shift = 7.0
            yield ev.RunChanged(T0 + 2.0 * epoch - 1 + shift, ev.RUNNING)
        for half in (0.0, 0.5, 1.0, 1.5):
            yield sample(2.0 * epoch - 1.9 + half + shift)
        now = T0 + 2.0 * epoch + shift
        losses = tuple(1.1 * learning(epoch, m) for m in range(members))
        yield ev.StepsDone(
            now - 0.1, 0, 23 * epoch - 3, 23 * epochs, epoch - 0.1, 1e5, 2.0 * epoch, 1.0, tuple(range(members)), losses
        )
        yield epoch_done(epoch, members, diverging if members > 2 else learning, now)
        if members > 2 and epoch == 8:
            yield ev.MemberChanged(now, 1, ev.DIVERGED, "the loss is not finite (nan at step 180)")


def diverging(epoch: int, member: int) -> float:
    """As `learning`, but member 1 blows up at epoch 6 and is NaN from epoch 8 on."""
    if member != 1 or epoch < 6:
        return learning(epoch, member)
    return math.nan if epoch >= 8 else 10.0 ** (epoch - 5)


PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>body {{ margin: 8px; {body} }}</style></head>
<body {attributes}><div id="root"></div></body></html>"""

# As much of a widget's model as live_view.js uses.
MODEL = """
async ({ esm, css, traits }) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.head.append(style);
  const listeners = {};
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
    """A LiveView whose messages go to live_view.js in a page, and whose traits come from there."""

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


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


def open_page(
    launched: Any, width: int = 1280, height: int = 640, body: str = LIGHT, ratio: float = 1.0, **media: Any
) -> Any:
    """A page that will hold a view; `body` is the style that sets the theme."""
    page = launched.new_page(viewport={"width": width, "height": height}, device_scale_factor=ratio, **media)
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.set_content(PAGE.format(body=body, attributes='data-jp-theme-light="true"'))
    return page


def first(events: Iterator[ev.Event], count: int) -> list[ev.Event]:
    """The first events of a run."""
    return list(itertools.islice(events, count))
