/* An exercise: cells to write, cells that check them, and progress that stays in the browser. */
import { Cell } from "./cell.js";
import { Check } from "./check.js";
import { reason, sessionOf } from "./page.js";
import { makePanel } from "./panel.js";
import * as progress from "./progress.js";
import { usedAnswers } from "./used.js";
import { Prose } from "./prose.js";

const outerOf = (id) => document.getElementById(`lab-cell-${id}`);
const isOwn = ({ kind }) => kind === "answer" || kind === "prose"; // the reader writes it

/* What traceback and buttons call a cell: "answer 1a", "check 1a", "cell 3". */
const nameOf = ({ kind, label }, number) => {
  const [task] = label.match(/^\d+[a-z]?\b/) ?? [];
  return task && kind !== "given" ? `${kind} ${task}` : `cell ${number}`;
};

/* A click on an answer's code opens its editor; a selection of text doesn't. */
const editOnClick = (place, cell) =>
  place.addEventListener("click", () => getSelection().isCollapsed && cell.edit());

/* data: {name, hash, cells, notebook}; see book/_ext/lab_exercises.py. */
export const setUpExercise = (data, kit) => {
  const drawn = new Map(); // id → Cell or Prose
  let scores = {}; // question → {points, of}, of: what was checked
  let asked = []; // earlier versions that are not offered again
  let quiet = false; // while texts are put into cells

  const own = data.cells.filter(isOwn);
  const checks = data.cells.filter(({ kind, missing }) => kind === "check" && !missing.length);
  const followed = (cell) => checks.filter(({ question }) => cell.follows.includes(question));
  const isUntouched = (cell) => isOwn(cell) && drawn.get(cell.id).code() === cell.code;

  const programs = data.cells
    .filter(({ kind }) => kind !== "prose")
    .map((cell, at) => ({
      ...cell,
      name: nameOf(cell, at + 1),
      ends: cell.kind === "check" || cell.missing.length > 0,
      answer: cell.kind === "check" ? nameOf({ ...cell, kind: "answer" }) : "",
      follows: followed(cell).map(({ id }) => id),
      partial: () => isUntouched(cell), // that an answer is missing is no news
      before: () => (drawn.has(cell.id) && !isUntouched(cell) ? drawn.get(cell.id).show() : null),
      after: (ended) => isUntouched(cell) || drawn.get(cell.id)?.say(ended ? "done" : "ended with an error"),
    }));
  const session = sessionOf(programs, drawn, kit, { inOrder: true });

  /* The texts that differ from the notebook's, by the cell's id. */
  const texts = () => {
    const written = own.filter((cell) => !isUntouched(cell));
    return Object.fromEntries(written.map(({ id }) => [id, drawn.get(id).code()]));
  };

  /* What the points of a question belong to: its answer, those that it uses, and cells of no task,
     such as the name. */
  const answered = (cell) => {
    const answers = own
      .filter(({ kind }) => kind === "answer")
      .map(({ id, label }) => ({ label, code: drawn.get(id).code() }));
    return progress.fingerprint(usedAnswers(answers, ["", ...[cell, ...followed(cell)].map(({ label }) => label)]));
  };

  const show = () => {
    const rows = data.cells
      .filter(({ points }) => points)
      .map((cell) => {
        const score = checks.includes(cell) && Object.hasOwn(scores, cell.question) ? scores[cell.question] : null;
        return { cell, points: score?.points, changed: score !== null && score.of !== answered(cell) };
      });
    for (const { cell, points, changed } of rows) drawn.get(cell.id)?.mark?.(points, changed);
    panel.show(rows);
  };
  const keep = () => {
    if (quiet) return;
    show();
    panel.warn(progress.save(data, { cells: texts(), scores, asked }));
  };

  /* Put texts into the cells that there are; nothing runs. Returns how many these are. */
  const fill = (given) => {
    const known = own.filter(({ id }) => Object.hasOwn(given, id));
    quiet = true;
    for (const { id } of known) drawn.get(id).set(given[id]);
    quiet = false;
    return known.length;
  };

  /* Whether these texts may take the place of others that the reader wrote. */
  const agreed = (given) => {
    const now = texts();
    const lost = Object.keys(now).filter((id) => Object.hasOwn(given, id) && given[id] !== now[id]);
    const count = `${lost.length} of your answers`;
    return !lost.length || window.confirm(`Replace ${count} on this page? Export them first to keep them.`);
  };

  const actions = {
    /* In a Python of its own, as `course check` does it. */
    checkAll: async () => {
      (await session()).session.restart();
      for (const { id } of checks) if (!(await drawn.get(id).run())) return;
    },
    stop: async () => (await session()).session.stop(),
    notebook: () =>
      progress.download(`${data.name}.ipynb`, progress.filledNotebook(data.notebook, texts())),
    exportFile: () =>
      progress.download(`${data.name}-answers.json`, progress.asText(data, { cells: texts() })),
    importFile: async (file) => {
      try {
        const { cells: found, others } = await progress.fromFile(file, data, async (text) => {
          panel.say("starting Python…");
          const { python } = await session();
          return python.call("imported", { text, notebook: data.notebook, name: data.name });
        });
        const given = Object.fromEntries(
          Object.entries(found).filter(([id, text]) => own.some((cell) => cell.id === id && cell.code !== text)),
        );
        if (!Object.keys(given).length) throw new Error("it has no answer to a task of this page");
        if (!agreed(given)) return;
        const count = fill(given);
        keep();
        const more = others === 1 ? "another cell with code, which" : `${others} more cells with code, which`;
        const left = others ? ` It has ${more} this page has no place for: copy what your answers need into them.` : "";
        panel.say(`${count} ${count === 1 ? "cell is" : "cells are"} filled from ${file.name}. Now check them.${left}`);
      } catch (error) {
        panel.say(`${file.name} was not read: ${error.message}.`);
      }
    },
    startOver: () => {
      if (!window.confirm("Delete what you have written in this exercise, and its points?")) return;
      scores = {};
      quiet = true;
      for (const cell of drawn.values()) cell.reset();
      quiet = false;
      keep();
      panel.say("The exercise is as it was at the start.");
    },
  };

  const panel = makePanel(document.querySelector(".lab-progress"), actions);
  const draw = (cell) => {
    const outer = outerOf(cell.id);
    if (cell.kind === "prose") return new Prose(outer, cell, keep);
    if (cell.kind !== "check") {
      const made = new Cell(outer, cell, session, { fixed: cell.kind === "given", changed: keep });
      if (cell.kind === "answer") editOnClick(outer.querySelector(".cell_input > div"), made);
      return made;
    }
    const scored = (score) => {
      scores[cell.question] = score;
      keep();
    };
    return new Check(outer, cell, session, { answered: () => answered(cell), scored });
  };

  quiet = true;
  for (const cell of [...programs, ...data.cells.filter(({ kind }) => kind === "prose")]) {
    if (cell.missing.length) outerOf(cell.id).querySelector(".cell_input").after(reason(cell.missing));
    else drawn.set(cell.id, draw(cell));
  }
  quiet = false;

  /* Show what was kept, and ask what to do with the latest answers to an earlier version. */
  const resume = (kept) => {
    if (kept) {
      ({ scores, asked } = kept);
      fill(kept.cells);
    }
    show();
    offerOlder();
  };
  const offerOlder = () => {
    const older = progress.older(data, asked);
    if (!older) return panel.withdraw(); // what was offered before the second copy was there
    const settled = () => {
      asked.push(older.key);
      keep();
    };
    const use = () => {
      if (!agreed(older.cells)) return false;
      fill(older.cells);
      return settled();
    };
    const exported = () => {
      const text = progress.asText({ name: data.name, hash: "earlier" }, { cells: older.cells });
      progress.download(`${data.name}-earlier-answers.json`, text);
      return false;
    };
    panel.offer(
      `This exercise has changed since you wrote answers to it, last on ${older.saved.slice(0, 10)}. They are kept.`,
      { "Use them here": use, "Export them": exported, "Leave them": settled },
    );
  };

  const loaded = progress.load(data);
  resume(loaded);
  const codes = () => own.map(({ id }) => drawn.get(id).code());
  const atStart = codes();
  progress.restore(data, loaded).then((copy) => {
    if (!copy) return offerOlder();
    const now = codes(); // what was typed in the meantime stays
    const typed = own.map(({ id }, at) => [id, now[at]]).filter(([, text], at) => text !== atStart[at]);
    resume(copy);
    fill(Object.fromEntries(typed));
    keep();
  });
  addEventListener("storage", ({ key }) => {
    if (key !== progress.keyOf(data)) return;
    panel.say("Your answers were changed in another tab. Reload this page to see them.");
  });
};
