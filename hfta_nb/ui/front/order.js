// The order of rows in a table that is sorted by a column.

/** What a cell is sorted by. @typedef {string | number | null} Key */

/** Order of two sort keys; what is missing comes last, whichever way the column is sorted. @param {Key | undefined} a @param {Key | undefined} b @param {number} sign */
export function compare(a, b, sign) {
  const lacks = (/** @type {Key | undefined} */ key) => key === null || key === undefined || key === "";
  if (lacks(a) || lacks(b)) return Number(lacks(a)) - Number(lacks(b));
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}
