/* The cells of a page of the book get buttons; those that can't run here say what they need. */
import { Cell } from "./cell.js";

/* data: {cells: [{id, name, code, shown, missing}]}; see book/_ext/lab_pages.py. */
export const setUpPage = (data, kit) => {
  let made = null;
  const cells = new Map();
  const session = () => {
    made ??= kit().then((parts) => ({
      ...parts,
      session: new parts.Session(
        parts.python,
        data.cells.map(({ id, name, code, shown, missing }) => ({
          id,
          name,
          partial: !shown || missing.length > 0,
          code: () => cells.get(id)?.code() ?? code,
        })),
      ),
    }));
    return made;
  };
  for (const each of data.cells) {
    const outer = document.getElementById(`lab-cell-${each.id}`)?.closest(".cell") ??
      document.getElementById(`lab-cell-${each.id}`);
    const input = outer?.querySelector(".cell_input");
    if (!each.shown || !input) continue;
    if (each.missing.length) input.after(reason(each.missing));
    else cells.set(each.id, new Cell(input, outer, each, session));
  }
};

const reason = (missing) => {
  const made = document.createElement("p");
  made.className = "lab-reason";
  const needs = missing.filter((name) => name !== "Jupyter").join(", ");
  made.textContent = `Runs in Jupyter only${needs && `: needs ${needs}`}.`;
  return made;
};
