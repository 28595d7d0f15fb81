/* Cells that share names, in one Python: which have run, and what must run before another.

   Cells run one at a time. Before a cell, the earlier ones that have not run yet run too. After
   Python was stopped, those that had run by then run again first; the one that was stopped is left
   out until its code changes or the reader runs it. In a session with `inOrder`, the
   names are always those of a run from top to bottom: if an earlier cell was edited, or has run
   again, the cells behind it run again too. */
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
  #stopped = new Map(); // id → the code that was stopped

  /* cells: {id, name, code(), ends, partial(), before(), after(ended)}. ends: no other cell needs it, so
     it never runs before another. partial: whether an error in it is no news, because only parts of it can run.
     before: resolves to what shows the outputs if it runs before another; without it, or if that is
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
    await this.#python.start();
    const place = this.#cells.findIndex((cell) => cell.id === id);
    const cell = this.#cells[place];
    if (this.#generation !== this.#python.generation) {
      this.#generation = this.#python.generation;
      const before = this.#inOrder ? [] : [...this.#ran];
      this.#ran.clear();
      for (const [other, code] of before) {
        if (other !== id) await this.#first(this.#cells.find((each) => each.id === other), code, tell);
      }
    }
    const failed = [];
    for (const other of this.#needed(place)) {
      const ended = await this.#first(other, other.code(), tell);
      if (!ended && !other.partial?.()) failed.push(other.name);
    }
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
    this.#ran.delete(id);
    this.#ran.set(id, code);
    return result;
  }

  /* The cells that must run before the one at this place. */
  #needed(place) {
    const earlier = this.#cells
      .slice(0, place)
      .filter((cell) => !cell.ends && !this.#wasStopped(cell));
    if (!this.#inOrder) return earlier.filter((cell) => !this.#ran.has(cell.id));
    const order = [...this.#ran.keys()];
    let latest = -1;
    const first = earlier.findIndex((cell) => {
      const at = order.indexOf(cell.id);
      if (at <= latest || this.#ran.get(cell.id) !== cell.code()) return true;
      latest = at;
      return false;
    });
    return first < 0 ? [] : earlier.slice(first);
  }

  #wasStopped(cell) {
    return this.#stopped.get(cell.id) === cell.code();
  }

  async #call(cell, code, show) {
    this.#running = { id: cell.id, code };
    try {
      return await this.#python.call("run", { code, name: cell.name, quiet: !show }, show);
    } finally {
      this.#running = null;
    }
  }

  /* Run a cell because another needs it. */
  async #first(cell, code, tell) {
    const show = (await cell.before?.()) ?? null;
    tell(`running ${cell.name} first…`);
    const { ended } = await this.#call(cell, code, show);
    this.#ran.delete(cell.id);
    this.#ran.set(cell.id, code);
    cell.after?.(ended);
    return ended;
  }

  /* End what runs and what waits. */
  stop() {
    this.#epoch += 1;
    if (this.#running) this.#stopped.set(this.#running.id, this.#running.code);
    this.#python.stop();
  }
}
