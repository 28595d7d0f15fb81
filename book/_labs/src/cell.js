/* One cell of a page: its buttons, its editor, its output. */

import { button, live, make } from "./elements.js";

const SLOW_MS = 300; // before it says what runs

export class Cell {
  #editor = null;
  #output = null;
  #before = []; // the output that the page came with
  #colored = null; // the page's own code, while other code is in its place

  /* outer: the cell's element. data: {id, name, code}. session: resolves to the kit, with the session
     of this cell. fixed: whether the code can't be edited. run: what the first button says.
     changed: called when the code has changed; ended: with what a run returned. */
  constructor(outer, data, session, { fixed = false, run = "Run", changed, ended } = {}) {
    this.outer = outer;
    this.input = outer.querySelector(".cell_input");
    this.data = data;
    this.session = session;
    this.changed = changed ?? (() => {});
    this.ended = ended ?? (() => {});
    this.text = data.code; // while there is no editor
    this.#draw(fixed, run);
  }

  code() {
    return this.#editor ? this.#editor.code() : this.text;
  }

  /* Replace the code, as if the reader had typed it. */
  set(code) {
    if (this.#editor) return this.#editor.set(code);
    const pre = this.input.querySelector("pre");
    this.#colored ??= [...pre.childNodes];
    pre.replaceChildren(...(code === this.data.code ? this.#colored : [code]));
    this.text = code;
    this.#mark();
  }

  #draw(fixed, run) {
    const { name } = this.data;
    this.bar = make("div", "lab-bar");
    this.runButton = button(run, () => this.run(), `${run} ${name}`);
    this.stopButton = button("Stop", () => this.stop(), `Stop ${name}`);
    this.editButton = button("Edit", () => this.edit(), `Edit ${name}`);
    const reset = () => {
      this.reset();
      this.runButton.focus(); // the button that had the focus has gone
    };
    this.resetButton = fixed
      ? button("Clear", reset, `Clear the output of ${name}`)
      : button("Reset", reset, `Reset ${name} and its output`);
    this.status = live("span", "lab-status");
    this.stopButton.hidden = this.resetButton.hidden = true;
    this.editButton.hidden = fixed;
    this.bar.append(this.runButton, this.stopButton, this.editButton, this.resetButton, this.status);
    this.input.after(this.bar);
  }

  async edit() {
    const { makeEditor } = await this.session();
    if (!this.#editor) {
      const holder = make("div", "lab-editor");
      const shown = this.input.firstElementChild;
      shown.before(holder);
      shown.hidden = true;
      this.#editor = makeEditor(holder, this.text, `Code of ${this.data.name}`, {
        run: () => this.run(),
        changed: () => this.#mark(),
      });
      this.editButton.hidden = true;
    }
    this.#editor.focus();
  }

  #mark() {
    this.resetButton.hidden = this.code() === this.data.code && !this.#output;
    this.changed();
  }

  /* Run the cell. Resolves to what the session gives; null if it was stopped or could not run. */
  async run() {
    if (this.running) return null;
    this.running = true;
    this.runButton.disabled = true;
    this.stopButton.hidden = false;
    this.bar.classList.add("running");
    this.say("starting Python…");
    let slow = 0;
    let now = "";
    const tell = (text) => {
      now = text;
      if (!slow) this.say(now);
    };
    let result = null;
    try {
      const { session, python, append } = await this.session();
      await python.start();
      this.say("");
      slow = setTimeout(() => {
        slow = 0;
        this.say(now);
      }, SLOW_MS);
      const list = this.#fresh();
      result = await session.run(this.data.id, (output) => append(list, output), tell);
      clearTimeout(slow);
      this.say(result.ended ? "done" : "ended with an error");
    } catch (error) {
      clearTimeout(slow);
      this.say(error.message === "stopped" ? "stopped" : `did not run: ${error.message}`);
    } finally {
      this.running = false;
      this.runButton.disabled = false;
      this.stopButton.hidden = true;
      this.bar.classList.remove("running");
      this.resetButton.hidden = false;
    }
    this.ended(result);
    return result;
  }

  /* What shows the outputs if the cell runs because a later one needs it. */
  async show() {
    const { append } = await this.session();
    const list = this.#fresh();
    this.resetButton.hidden = false;
    return (output) => append(list, output);
  }

  /* An empty list for the outputs of a run, in the place of what was there. */
  #fresh() {
    if (!this.#output) {
      this.#before = [...this.outer.querySelectorAll(":scope > .cell_output")];
      for (const each of this.#before) each.hidden = true;
      this.#output = make("div", "cell_output docutils container lab-output");
      this.outer.append(this.#output);
    }
    this.#output.replaceChildren();
    return this.#output;
  }

  async stop() {
    const { session } = await this.session();
    session.stop();
  }

  reset() {
    this.#output?.remove();
    this.#output = null;
    for (const each of this.#before) each.hidden = false;
    this.set(this.data.code);
    this.#mark();
    this.say("");
  }

  say(text) {
    this.status.textContent = text;
  }
}
