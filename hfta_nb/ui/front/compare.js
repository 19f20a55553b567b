// How rows are sorted.

/** @typedef {string | number | null} Key */

/** @param {Key | undefined} key @returns {key is null | undefined | ""} */
const missing = (key) => key === null || key === undefined || key === "";

/** Order of two sort keys; what is missing comes last, whichever way the column is sorted. @param {Key | undefined} a @param {Key | undefined} b @param {number} sign */
export function compare(a, b, sign) {
  if (missing(a)) return missing(b) ? 0 : 1;
  if (missing(b)) return -1;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}
