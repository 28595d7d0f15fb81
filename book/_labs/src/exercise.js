/* An exercise: cells to write, cells that check them, and progress that stays in the browser. */
import { Cell } from "./cell.js";
import { reason, sessionOf } from "./page.js";
import * as progress from "./progress.js";
import { makePanel } from "./panel.js";

const outerOf = (id) => document.getElementById(`lab-cell-${id}`);

/* data: {name, hash, cells, notebook}; see book/_ext/lab_exercises.py. */
export const setUpExercise = (data, kit) => {
  const drawn = new Map(); // id → Cell
  const prose = new Map(); // id → textarea
  const points = {}; // of questions that were checked
  let number = 0;
  const cells = data.cells
    .filter((cell) => cell.kind !== "prose")
    .map((cell) => {
      const name = cell.kind === "check" ? `check of ${cell.question}` : `cell ${++number}`;
      const missing = cell.missing.length > 0;
      return { ...cell, name, ends: cell.kind === "check" || missing, partial: missing };
    });
  const written = cells.filter((cell) => cell.kind === "answer");
  const checks = cells.filter((cell) => cell.kind === "check" && !cell.missing.length);
  const session = sessionOf(cells, drawn, kit, { again: true });

  const texts = () => {
    const found = {};
    for (const { id } of written) found[id] = drawn.get(id).code();
    for (const [id, area] of prose) found[id] = area.value;
    return found;
  };
  const released = Object.fromEntries(
    data.cells.filter(({ kind }) => kind === "answer" || kind === "prose").map(({ id, code }) => [id, code]),
  );
  const keep = () => panel.warn(progress.save(data.name, { hash: data.hash, cells: texts(), points }));
  let later = 0;
  const changed = () => {
    clearTimeout(later);
    later = setTimeout(keep, 300);
  };

  const show = () => panel.show(checks.map(({ question, points: most }) => [question, points[question], most]));
  const score = (cell, result) => {
    if (result?.score === undefined) return;
    points[cell.question] = result.score;
    show();
    keep();
  };

  /* Write texts into the cells; what the page has no cell for is returned, so that it isn't lost. */
  const fill = (given) => {
    const unknown = {};
    for (const [id, text] of Object.entries(given.cells)) {
      if (prose.has(id)) prose.get(id).value = text;
      else if (id in released) drawn.get(id).set(text);
      else unknown[id] = text;
    }
    Object.assign(points, given.points);
    show();
    return unknown;
  };

  const actions = {
    checkAll: async () => {
      for (const { id } of checks) if (!(await drawn.get(id).run())) return;
    },
    notebook: () =>
      progress.download(
        `${data.name}.ipynb`,
        progress.filledNotebook(data.notebook, texts()),
        "application/x-ipynb+json",
      ),
    exportFile: () =>
      progress.download(
        `${data.name}-progress.json`,
        progress.asText(data.name, { hash: data.hash, cells: texts(), points }),
        "application/json",
      ),
    importFile: async (file) => {
      try {
        const given = await progress.fromFile(file, data.name);
        const unknown = Object.keys(fill(given)).length;
        keep();
        const rest = unknown ? ` ${unknown} of its cells are not in this exercise.` : "";
        panel.say(`Your progress is back from ${file.name}.${rest}`);
      } catch (error) {
        panel.say(`${file.name} was not read: ${error.message}.`);
      }
    },
    startOver: async () => {
      if (!window.confirm("Delete what you have written in this exercise, and its points?")) return;
      for (const id of Object.keys(points)) delete points[id];
      fill({ cells: released, points: {} });
      for (const cell of drawn.values()) cell.reset();
      progress.forget(data.name);
      clearTimeout(later);
      panel.say("The exercise is as it was at the start.");
    },
  };

  for (const cell of cells) {
    const outer = outerOf(cell.id);
    if (cell.missing.length) {
      outer.querySelector(".cell_input").after(reason(cell.missing));
      continue;
    }
    const check = cell.kind === "check";
    drawn.set(
      cell.id,
      new Cell(outer, cell, session, {
        fixed: cell.kind !== "answer",
        run: check ? "Check" : "Run",
        changed: cell.kind === "answer" ? changed : undefined,
        ended: check ? (result) => score(cell, result) : undefined,
      }),
    );
  }
  for (const cell of data.cells.filter(({ kind }) => kind === "prose")) {
    const area = outerOf(cell.id).querySelector("textarea");
    area.addEventListener("input", changed);
    prose.set(cell.id, area);
  }
  const panel = makePanel(document.querySelector(".lab-progress"), actions);
  const kept = progress.load(data.name);
  if (kept) {
    const unknown = fill(kept);
    if (kept.hash !== data.hash) {
      panel.say("This exercise has changed since you wrote your answers. They are kept: check them again.");
      if (Object.keys(unknown).length) {
        panel.offer("Download the answers that have no cell any more", () =>
          progress.download(
            `${data.name}-old-answers.json`,
            progress.asText(data.name, { hash: kept.hash, cells: unknown, points: {} }),
            "application/json",
          ),
        );
      }
    }
  }
  show();
};
