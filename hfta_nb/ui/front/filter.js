// The filter of the leaderboard: conditions on columns, as in `lr>0.05 state:RUNNING width in 8,16`, and plain words.

/**
 * What it needs to know of a column and of a row.
 * @typedef {{ key: string, label: string }} Named
 * @typedef {{ cells: string[], keys: (string | number | null)[] }} Cells
 * A condition on a column, or a word that a row must contain.
 * @typedef {{ at: number, sign: string, values: string[] } | { word: string }} Term
 */

const SIGNS = ">=|<=|!=|=|:|>|<";
const LIST = "[^\\s,]+(?:\\s*,\\s*[^\\s,]+)*";

/** The names of a column: as its head shows it, and as code calls it. @param {Named} column */
const namesOf = ({ key, label }) => [label, key.slice(key.indexOf(":") + 1)].map((name) => name.toLowerCase());

/** @param {string} text */
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** @param {string} text */
const isNumber = (text) => text.trim() !== "" && Number.isFinite(Number(text));

/**
 * What a query asks for, and what is wrong with it.
 * @param {string} query @param {Named[]} columns @param {Cells[]} rows
 * @returns {{ terms: Term[], problem: string }}
 */
export function parsed(query, columns, rows) {
  const places = new Map(columns.flatMap((column, at) => namesOf(column).map((name) => [name, at])));
  const names = [...places.keys()].sort((a, b) => b.length - a.length).map(escaped).join("|");
  const condition = new RegExp(`^(${names})(?:\\s*(${SIGNS})\\s*([^\\s,]*)|\\s+(in)(?:\\s+|$)(${LIST})?)`);
  const terms = /** @type {Term[]} */ ([]);
  let problem = "";
  let rest = query.toLowerCase().replace(/^[\s,]+/, "");
  while (rest) {
    const [whole, name, sign, value, , list] = (names && condition.exec(rest)) || [];
    const word = whole ?? /^\S+/.exec(rest)?.[0] ?? rest;
    if (whole !== undefined) {
      const at = places.get(name) ?? 0;
      const values = (sign ? value : (list ?? "")).split(",").map((text) => text.trim()).filter(Boolean);
      // A condition that is being typed has no value yet, and asks for nothing.
      if (values.length) terms.push({ at, sign: sign ?? "in", values });
      if (values.length && /[<>]/.test(sign ?? "") && !isNumber(value)) problem ||= `${value} is not a number`;
    } else if (word.replace(/,$/, "")) {
      const plain = { word: word.replace(/,$/, "") };
      const unknown = new RegExp(`^(.+?)(?:${SIGNS})`).exec(plain.word)?.[1] ?? (/^\s+in\s+/.test(rest.slice(word.length)) ? word : "");
      if (unknown && !rows.some((row) => fits(row, [plain]))) problem ||= `no column ${unknown}; there are ${columns.map((c) => c.label).join(", ")}`;
      terms.push(plain);
    }
    rest = rest.slice(word.length).replace(/^[\s,]+/, "");
  }
  return { terms, problem };
}

/** Whether a row is as all terms ask. @param {Cells} row @param {Term[]} terms */
export function fits(row, terms) {
  return terms.every((term) => {
    if ("word" in term) return row.cells.join(" ").toLowerCase().includes(term.word);
    const text = row.cells[term.at].toLowerCase();
    const key = row.keys[term.at];
    const number = typeof key === "number" ? key : isNumber(text) ? Number(text) : NaN;
    const same = term.values.some((value) => text === value || (isNumber(value) && number === Number(value)));
    const than = Number(term.values[0]);
    switch (term.sign) {
      case ">": return number > than;
      case ">=": return number >= than;
      case "<": return number < than;
      case "<=": return number <= than;
      case "!=": return !same;
      default: return same;
    }
  });
}
