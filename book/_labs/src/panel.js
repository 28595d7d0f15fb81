/* The box at the top of an exercise: points, and what to do with the answers. */

import { button, live, make } from "./elements.js";

const NOTE =
  "Your work stays in this browser. To submit it, or to go on in Jupyter, download it as a notebook.";

/* Draw the box into `place`. actions: what the buttons do. */
export const makePanel = (place, actions) => {
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", "Your points");
  const sum = make("p", "lab-sum");
  const bar = make("progress");
  bar.setAttribute("aria-label", "points");
  const list = make("ol", "lab-points");
  const status = live("p", "lab-status");
  const warning = live("p", "lab-warning");
  const offered = make("div", "lab-offer");
  offered.hidden = true;

  const file = document.createElement("input");
  file.type = "file";
  file.accept = ".json,.ipynb,application/json";
  file.hidden = true;
  file.addEventListener("change", () => {
    if (file.files[0]) actions.importFile(file.files[0]);
    file.value = "";
  });
  const stop = button("Stop", actions.stop);
  const all = button("Run all checks", async () => {
    all.disabled = true;
    stop.hidden = false;
    await actions.checkAll();
    all.disabled = false;
    stop.hidden = true;
  });
  all.classList.add("lab-main");
  stop.hidden = true;
  const buttons = make("div", "lab-bar");
  buttons.append(
    all,
    stop,
    button("Download as notebook", actions.notebook),
    button("Export answers", actions.exportFile),
    button("Import answers", () => file.click()),
    button("Start over", actions.startOver),
    file,
  );
  place.append(make("p", "lab-note", NOTE), sum, bar, list, buttons, offered, status, warning);

  return {
    say: (text) => {
      status.textContent = text;
    },
    warn: (text) => {
      warning.textContent = text;
    },
    /* Ask something. choices: {words: action}; the box stays if an action gives false. */
    offer: (text, choices) => {
      const made = Object.entries(choices).map(([words, action]) =>
        button(words, () => {
          offered.hidden = action() !== false;
        }),
      );
      offered.replaceChildren(make("p", "", text), ...made);
      offered.hidden = false;
    },
    withdraw: () => {
      offered.hidden = true;
    },
    /* rows: {cell, points, changed}. points: undefined if it was not checked. changed: the answer is
       another one by now, so the points don't count. */
    show: (rows) => {
      const here = rows.filter(({ cell }) => cell.kind === "check" && !cell.missing.length);
      const got = here.reduce((sum, { points, changed }) => sum + (changed ? 0 : (points ?? 0)), 0);
      const most = here.reduce((sum, { cell }) => sum + cell.points, 0);
      sum.textContent = `${got} of ${most} points${elsewhere(rows)}`;
      bar.max = most;
      bar.value = got;
      list.replaceChildren(...rows.map(line));
    },
  };
};

const elsewhere = (rows) => {
  const count = (wanted) =>
    rows.filter(wanted).reduce((sum, { cell }) => sum + cell.points, 0);
  const parts = [
    [count(({ cell }) => cell.kind === "check" && cell.missing.length), "in Jupyter only"],
    [count(({ cell }) => cell.kind === "prose"), "by a person"],
  ];
  const texts = parts.filter(([points]) => points).map(([points, where]) => `${points} more ${where}`);
  return texts.length ? ` here; ${texts.join(", ")}` : "";
};

const line = ({ cell, points, changed }) => {
  const row = make("li");
  const link = make("a", "", cell.label || cell.question);
  link.href = `#lab-cell-${cell.id}`;
  row.append(link, make("span", "", scoreText(cell, points, changed)));
  if (points !== undefined && !changed) row.className = points === cell.points ? "lab-full" : "lab-less";
  return row;
};

const scoreText = (cell, points, changed) => {
  if (cell.kind === "prose") return `${cell.points} by a person`;
  if (cell.missing.length) return `${cell.points} in Jupyter`;
  if (points === undefined) return `– / ${cell.points}`;
  if (changed) return `changed, – / ${cell.points}`;
  return `${points === cell.points ? "✓" : "✗"} ${points} / ${cell.points}`;
};
