/* The cells of a page of the book get buttons; those that can't run here say what they need. */
import { Cell } from "./cell.js";
import { make } from "./elements.js";

export const reason = (missing) => {
  const needs = missing.filter((name) => name !== "Jupyter").join(", ");
  return make("p", "lab-reason", `Runs in Jupyter only${needs && `: needs ${needs}`}.`);
};

/* What gives the kit and a session over these cells, made at the first call.
   cells: {id, name, code, …} as Session takes them; drawn: the Cell of those that the reader can run, by id. */
export const sessionOf = (cells, drawn, kit, options) => {
  let made = null;
  return () => {
    made ??= kit().then((parts) => {
      const live = cells.map((cell) => ({
        ...cell,
        code: () => drawn.get(cell.id)?.code() ?? cell.code,
      }));
      return { ...parts, session: new parts.Session(parts.python, live, options) };
    });
    made.catch(() => {
      made = null; // a script could not be loaded: the next click tries again
    });
    return made;
  };
};

/* data: {cells: [{id, name, code, shown, missing}]}; see book/_ext/lab_pages.py. */
export const setUpPage = (data, kit) => {
  const drawn = new Map();
  const cells = data.cells.map((cell) => ({
    ...cell,
    partial: () => !cell.shown || cell.missing.length > 0,
  }));
  const session = sessionOf(cells, drawn, kit);
  for (const cell of cells) {
    const place = document.getElementById(`lab-cell-${cell.id}`);
    const outer = place?.closest(".cell");
    if (!cell.shown || !outer) continue;
    if (cell.missing.length) outer.querySelector(".cell_input")?.after(reason(cell.missing));
    else drawn.set(cell.id, new Cell(outer, cell, session));
  }
};
