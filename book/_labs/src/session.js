/* Cells that share names, in one Python: which have run, and what must run before another.

   Cells run one at a time. Before a cell, the earlier ones that have not run yet run too. After
   Python was stopped, those that had run by then run again first. In a session with `inOrder`, the
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

  /* cells: {id, name, code(), ends, partial(), before(), after(ended)}. ends: no other cell needs it, so
     it never runs before another. partial: whether an error in it is no news, because only parts of it can run.
     before: resolves to what shows the outputs if it runs before another; without it, or if that is
     null, they are not shown. after: called when it has run so. */
  constructor(python, cells, { inOrder = false } = {}) {
    this.#python = python;
    this.#cells = cells;
    this.#inOrder = inOrder;
  }

  /* Run the cell `id`. show: gets its outputs. Resolves to what Python's `run` returns, {ended, …};
     rejects with Stopped if it was stopped. */
  run(id, show) {
    const epoch = this.#epoch;
    const job = this.#queue.then(() => {
      if (epoch !== this.#epoch) throw new Stopped("stopped");
      return this.#runAfterOthers(id, show);
    });
    this.#queue = job.catch(() => {});
    return job;
  }

  async #runAfterOthers(id, show) {
    await this.#python.start();
    const place = this.#cells.findIndex((cell) => cell.id === id);
    const cell = this.#cells[place];
    if (this.#generation !== this.#python.generation) {
      this.#generation = this.#python.generation;
      const before = this.#inOrder ? [] : [...this.#ran];
      this.#ran.clear();
      for (const [other, code] of before) {
        if (other !== id) await this.#first(this.#cells.find((each) => each.id === other), code);
      }
    }
    const failed = [];
    for (const other of this.#needed(place)) {
      if (!(await this.#first(other, other.code())) && !other.partial?.()) failed.push(other.name);
    }
    const code = cell.code();
    const result = await this.#python.call("run", { code, name: cell.name }, show);
    if (!result.ended && failed.length) {
      show({ note: `Before it, ${failed.join(", ")} ended with an error.` });
    }
    this.#ran.delete(id);
    this.#ran.set(id, code);
    return result;
  }

  /* The cells that must run before the one at this place. */
  #needed(place) {
    const earlier = this.#cells.slice(0, place).filter((cell) => !cell.ends);
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

  /* Run a cell because another needs it. */
  async #first(cell, code) {
    const show = (await cell.before?.()) ?? null;
    const given = { code, name: cell.name, quiet: !show };
    const { ended } = await this.#python.call("run", given, show);
    this.#ran.delete(cell.id);
    this.#ran.set(cell.id, code);
    cell.after?.(ended);
    return ended;
  }

  /* End what runs and what waits. */
  stop() {
    this.#epoch += 1;
    this.#python.stop();
  }
}
