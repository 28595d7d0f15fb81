/* Cells that share names, in one Python: which have run, and what must run before another.

   Cells run one at a time. Before a cell, the earlier ones that have not run yet run too, without
   showing anything. After Python was stopped, those that had run by then run again first. */
import { Stopped } from "./python.js";

export class Session {
  #python;
  #cells;
  #ran = new Map(); // id → the code that ran, in the order in which cells ran
  #generation = 0;
  #queue = Promise.resolve();
  #epoch = 0;
  #again;

  /* cells: {id, name, code(), ends, partial}. ends: no other cell needs it, so it never runs before
     another. partial: only parts of it can run, so an error in it is no news. again: whether an earlier
     cell that was edited since it ran runs again; otherwise it keeps the names it gave. */
  constructor(python, cells, { again = false } = {}) {
    this.#python = python;
    this.#cells = cells;
    this.#again = again;
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
      const before = [...this.#ran];
      this.#ran.clear();
      for (const [other, code] of before) if (other !== id) await this.#quietly(other, code);
    }
    const failed = [];
    for (const other of this.#cells.slice(0, place)) {
      const code = other.code();
      if (other.ends || (this.#ran.has(other.id) && !this.#stale(other.id, code))) continue;
      if (!(await this.#quietly(other.id, code)) && !other.partial) failed.push(other.name);
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

  #stale(id, code) {
    return this.#again && this.#ran.get(id) !== code;
  }

  async #quietly(id, code) {
    const { name } = this.#cells.find((cell) => cell.id === id);
    const { ended } = await this.#python.call("run", { code, name, quiet: true });
    this.#ran.set(id, code);
    return ended;
  }

  /* End what runs and what waits. */
  stop() {
    this.#epoch += 1;
    this.#python.stop();
  }

  /* Forget all names: the next run starts from the first cell. */
  async reset() {
    this.#ran.clear();
    if (this.#generation === this.#python.generation && this.#generation) {
      await this.#python.call("reset", {});
    }
  }
}
