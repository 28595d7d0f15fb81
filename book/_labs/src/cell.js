/* One cell of a page: its buttons, its editor, its output. */

const button = (text, title, action) => {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "lab-button";
  made.textContent = text;
  made.title = title;
  made.addEventListener("click", action);
  return made;
};

export class Cell {
  #editor = null;
  #output = null;
  #before = []; // the output that the book has

  /* input: the element that holds the code's element; the buttons come after it. outputs: gets the
     output. data: {id, name, code}. session: resolves to the kit, with the session of this cell. */
  constructor(input, outputs, data, session, changed = () => {}) {
    this.below = input;
    this.place = input.firstElementChild;
    this.outputs = outputs;
    this.data = data;
    this.session = session;
    this.changed = changed;
    this.#draw();
  }

  code() {
    return this.#editor ? this.#editor.code() : this.data.code;
  }

  #draw() {
    const { name } = this.data;
    this.bar = document.createElement("div");
    this.bar.className = "lab-bar";
    this.runButton = button("Run", `Run ${name} (Shift+Enter in the editor)`, () => this.run());
    this.stopButton = button("Stop", `Stop ${name}`, () => this.stop());
    this.editButton = button("Edit", `Edit ${name}`, () => this.edit().then((it) => it.focus()));
    this.resetButton = button("Reset", `Show ${name} and its output as they were`, () => this.reset());
    for (const each of [this.runButton, this.stopButton, this.editButton, this.resetButton]) {
      each.setAttribute("aria-label", `${each.textContent} ${name}`);
    }
    this.status = document.createElement("span");
    this.status.className = "lab-status";
    this.status.setAttribute("role", "status");
    this.stopButton.hidden = this.resetButton.hidden = true;
    this.bar.append(this.runButton, this.stopButton, this.editButton, this.resetButton, this.status);
    this.below.after(this.bar);
  }

  async edit(text = this.code()) {
    const { makeEditor } = await this.session();
    if (!this.#editor) {
      const holder = document.createElement("div");
      holder.className = "lab-editor";
      this.place.before(holder);
      this.place.hidden = true;
      this.#editor = makeEditor(holder, text, `Code of ${this.data.name}`, {
        run: () => this.run(),
        changed: () => {
          this.resetButton.hidden = false;
          this.changed();
        },
      });
      this.editButton.hidden = true;
    }
    return this.#editor;
  }

  async run() {
    if (this.running) return false;
    this.running = true;
    this.runButton.disabled = true;
    this.stopButton.hidden = false;
    this.bar.classList.add("running");
    const slow = setTimeout(() => this.say("running…"), 300);
    try {
      this.say("starting Python…");
      const { session, python, append } = await this.session();
      await python.start();
      this.say("");
      const list = this.#fresh();
      const ended = await session.run(this.data.id, (output) => append(list, output));
      this.say(ended ? "done" : "ended with an error");
      return ended;
    } catch (error) {
      this.say(error.message === "stopped" ? "stopped" : `did not run: ${error.message}`);
      return false;
    } finally {
      clearTimeout(slow);
      this.running = false;
      this.runButton.disabled = false;
      this.stopButton.hidden = true;
      this.bar.classList.remove("running");
      this.resetButton.hidden = false;
    }
  }

  /* An empty list for the outputs of a run, in the place of what was there. */
  #fresh() {
    if (!this.#output) {
      this.#before = [...this.outputs.querySelectorAll(":scope > .cell_output")];
      for (const each of this.#before) each.hidden = true;
      this.#output = document.createElement("div");
      this.#output.className = "cell_output docutils container lab-output";
      this.outputs.append(this.#output);
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
    this.#editor?.set(this.data.code);
    this.resetButton.hidden = true;
    this.say("");
    this.changed();
  }

  say(text) {
    this.status.textContent = text;
  }
}
