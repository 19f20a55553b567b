// Where the keyboard is, when the control that has the focus is disabled, hidden or taken away: browsers drop the focus then.

const CONTROLS = "button, input, select, tr[tabindex]";
const EVERY_MS = 150; // no event tells of it

/** @param {Element} control */
const seen = (control) => control.getClientRects().length > 0;
/** @param {Element} control */
const usable = (control) => seen(control) && !control.matches(":disabled, [tabindex='-1']");

/**
 * The control that takes the place of one that is gone: in the nearest part of the page that has any, the next one, else
 * the one before. Stop is none: a key that is pressed twice would press it.
 * @param {Element[]} path the control and what is around it, from the inside
 * @param {Element} root
 */
function successor(path, root) {
  const around = path.slice(1).find((part) => root.contains(part) && [...part.querySelectorAll(CONTROLS)].some((c) => c !== path[0] && seen(c)));
  const found = [...(around?.querySelectorAll(CONTROLS) ?? [])].filter((c) => usable(c) && !c.matches(".hfta-button-stop, .hfta-fold"));
  const after = found.find((c) => path[0].compareDocumentPosition(c) & Node.DOCUMENT_POSITION_FOLLOWING);
  return /** @type {HTMLElement | undefined} */ (after ?? found.at(-1));
}

/** Hands the focus on, once there is a control to take it. @param {HTMLElement} root @param {AbortSignal} signal */
export function keepFocus(root, signal) {
  let path = /** @type {Element[]} */ ([]);
  const went = (/** @type {Event} */ event) => {
    const inside = event.target instanceof Element && root.contains(event.target);
    path = inside ? event.composedPath().filter((part) => part instanceof Element) : [];
  };
  // A person who leaves a control that is still there wants no other one; known only when what happens now is over.
  const left = () => setTimeout(() => { if (path.length && document.activeElement === document.body && usable(path[0])) path = []; });
  const look = () => {
    if (path.length && document.activeElement === document.body) (usable(path[0]) ? /** @type {HTMLElement} */ (path[0]) : successor(path, root))?.focus({ preventScroll: true });
  };
  document.addEventListener("focusin", went, { signal });
  root.addEventListener("focusout", left, { signal });
  const timer = setInterval(look, EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}
