/* Cells that share names, in one Python: which have run, and what must run before another.

   Cells run one at a time. Before a cell, the earlier ones that have not run yet run too. After
   Python was stopped, those that had run by then run again first; the one that was stopped is left
   out until its code changes or the reader runs it. In a session with `inOrder`, the names are
   always those of a run from top to bottom: unless what has run is the start of such a run, they
   are forgotten, and all cells run again from the first one. */
import { Stopped } from "./python.js";

export class Session {
  #python;
  #cells;
  #ran = new Map(); // id → the code that ran, in the order in which cells ran
  #generation = 0;
  #queue = Promise.resolve();
  #epoch = 0;
  #inOrder;
  #running = null; // {id, code}
  #failed = new Set(); // ids of cells whose last run ended with an error
  #stopped = new Map(); // id → the code that was stopped

  /* cells: {id, name, code(), ends, answer, follows, partial(), before(), after(ended)}. ends: no other cell needs
     it, so it never runs before another, unless that one `follows` it: a list of ids. answer: the name of the cell
     that it checks. partial: whether an error in it is no news, because only parts of it can run. before: resolves to what shows the outputs if it runs before another; without it, or if that is
     null, they are not shown. after: called when it has run so. */
  constructor(python, cells, { inOrder = false } = {}) {
    this.#python = python;
    this.#cells = cells;
    this.#inOrder = inOrder;
  }

  /* Run the cell `id`. show: gets its outputs. tell: gets what runs now, as a text. Resolves to what
     Python's `run` returns, {ended, …}; rejects with Stopped if it was stopped. */
  run(id, show, tell = () => {}) {
    const epoch = this.#epoch;
    const job = this.#queue.then(() => {
      if (epoch !== this.#epoch) throw new Stopped("stopped");
      this.#stopped.delete(id);
      return this.#runAfterOthers(id, show, tell);
    });
    this.#queue = job.catch(() => {});
    return job;
  }

  async #runAfterOthers(id, show, tell) {
    tell("starting Python…");
    await this.#python.start();
    const place = this.#cells.findIndex((cell) => cell.id === id);
    const cell = this.#cells[place];
    if (this.#generation !== this.#python.generation) {
      this.#generation = this.#python.generation;
      const before = this.#inOrder ? [] : [...this.#ran];
      this.#ran.clear();
      for (const [other, code] of before) {
        if (other !== id) await this.#first(this.#cell(other), code, tell);
      }
    }
    const earlier = this.#cells.slice(0, place).filter((each) => !each.ends && !this.#wasStopped(each));
    if (this.#inOrder && !this.#isStartOf(earlier)) {
      await this.#python.call("reset", {});
      this.#ran.clear();
    }
    for (const other of earlier.filter((each) => !this.#ran.has(each.id))) {
      await this.#first(other, other.code(), tell);
    }
    for (const other of cell.follows ?? []) await this.#call(this.#cell(other), this.#cell(other).code(), null);
    const failed = earlier
      .filter((each) => this.#failed.has(each.id) && !each.partial?.() && each.name !== cell.answer)
      .map(({ name }) => name);
    const code = cell.code();
    tell("running…");
    const result = await this.#call(cell, code, show);
    if (!result.ended && failed.length) {
      show({ note: `Before it, ${failed.join(", ")} ended with an error.` });
    }
    const skipped = this.#cells.slice(0, place).filter((each) => this.#wasStopped(each));
    if (skipped.length) {
      show({ note: `Without ${skipped.map((each) => each.name).join(", ")}, which you stopped.` });
    }
    this.#keep(cell, code, result.ended);
    return result;
  }

  /* Begin anew, when what was asked before is done: what Python keeps beside names is gone too. */
  restart() {
    this.#queue = this.#queue.then(() => this.#ran.size && this.#python.stop());
  }

  /* Whether the cells that have run are the first of these, in their order and with their code of now. */
  #isStartOf(cells) {
    const ran = [...this.#ran].filter(([id]) => !this.#cell(id).ends);
    return ran.every(([id, code], at) => cells[at]?.id === id && cells[at].code() === code);
  }

  #cell(id) {
    return this.#cells.find((each) => each.id === id);
  }

  #keep({ id }, code, ended) {
    this.#ran.delete(id);
    this.#ran.set(id, code);
    if (ended) this.#failed.delete(id);
    else this.#failed.add(id);
  }

  #wasStopped(cell) {
    return this.#stopped.get(cell.id) === cell.code();
  }

  async #call(cell, code, show) {
    this.#running = { id: cell.id, code };
    try {
      return await this.#python.call("run", { code, name: cell.name, quiet: !show, answer: cell.answer }, show);
    } finally {
      this.#running = null;
    }
  }

  /* Run a cell because another needs it. */
  async #first(cell, code, tell) {
    const show = (await cell.before?.()) ?? null;
    tell(`running ${cell.name} first…`);
    const { ended } = await this.#call(cell, code, show);
    this.#keep(cell, code, ended);
    cell.after?.(ended);
  }

  /* End what runs and what waits. */
  stop() {
    this.#epoch += 1;
    if (this.#running) this.#stopped.set(this.#running.id, this.#running.code);
    this.#python.stop();
  }
}
