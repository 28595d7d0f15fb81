/* The page's side of Python: starts the worker, calls its functions, stops it.

   A worker of a page from disk can't be interrupted, only ended. So `stop` ends it, and the next
   call starts Python anew: whoever keeps names there (see session.js) must run its cells again. */
import workerSource from "labs:worker";

export class Stopped extends Error {}

export class Python {
  #worker = null;
  #starting = null;
  #waiting = new Map(); // id → {resolve, reject, emit}
  #last = 0;
  #load;

  /* load: a function that resolves to {files, course}; see worker.js. */
  constructor(load) {
    this.#load = load;
    this.generation = 0; // how often Python has started
  }

  start() {
    this.#starting ??= this.#begin().catch((error) => {
      this.#end(error);
      throw error;
    });
    return this.#starting;
  }

  async #begin() {
    const parts = await this.#load();
    const url = URL.createObjectURL(new Blob([workerSource], { type: "text/javascript" }));
    const worker = new Worker(url);
    this.#worker = worker;
    await new Promise((resolve, reject) => {
      this.#waiting.set("start", { resolve, reject });
      worker.onerror = (event) => reject(new Error(event.message || "the worker could not start"));
      worker.onmessage = ({ data }) => {
        if ("ready" in data) data.ready ? resolve() : reject(new Error(data.failed));
        else this.#receive(data);
      };
      worker.postMessage({ start: parts });
    });
    this.#waiting.delete("start");
    URL.revokeObjectURL(url);
    this.generation += 1;
  }

  #receive({ id, begun, output, value, failed }) {
    const call = this.#waiting.get(id);
    if (!call) return;
    if (begun) return call.begun?.();
    if (output !== undefined) return call.emit?.(output);
    this.#waiting.delete(id);
    if (failed === undefined) call.resolve(value);
    else call.reject(new Error(failed));
  }

  /* Call a function of course_pkg.pages.labs.browser, after those called before. emit: gets what a cell
     writes, as it comes. begun: called when Python begins with it. */
  async call(name, args, emit, begun) {
    await this.start();
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, emit, begun });
      this.#worker.postMessage({ call: { id, name, args } });
    });
  }

  stop() {
    this.#end(new Stopped("stopped"));
  }

  #end(reason) {
    this.#worker?.terminate();
    this.#worker = this.#starting = null;
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const call of waiting) call.reject(reason);
  }
}
