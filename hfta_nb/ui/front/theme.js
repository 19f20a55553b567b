// The colours of the page around.

/** @import { Theme } from "./types.d.ts" */

/** @param {HTMLElement} probe an element that the style sheet gives the colours @returns {Theme} */
export function readTheme(probe) {
  const style = getComputedStyle(probe);
  const ink = getComputedStyle(probe.parentElement ?? probe);
  const [r, g, b] = (style.backgroundColor.match(/[\d.]+/g) ?? [255, 255, 255]).map(Number);
  return {
    dark: 0.2126 * r + 0.7152 * g + 0.0722 * b < 128,
    paper: style.backgroundColor, ink: ink.color, font: ink.fontFamily,
    muted: style.color, line: style.borderTopColor, accent: style.borderLeftColor,
  };
}

/** Black or white, whichever can be read on a colour. @param {string} color as "#rrggbb" */
export function inkOn(color) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 128 ? "#000000" : "#ffffff";
}

/**
 * Calls back when the page's theme changes: JupyterLab marks body, other hosts mark html, or the system's changes.
 * @param {() => void} callback
 * @param {AbortSignal} signal
 */
export function onTheme(callback, signal) {
  const observer = new MutationObserver(callback);
  const names = ["data-jp-theme-name", "data-jp-theme-light", "data-theme", "class", "style"];
  const marks = { attributes: true, attributeFilter: names };
  observer.observe(document.body, marks);
  observer.observe(document.documentElement, marks);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback, { signal });
  signal.addEventListener("abort", () => observer.disconnect());
}
