/* An answer in the reader's own words, which a person grades. */
import { make } from "./elements.js";

export class Prose {
  /* outer: the cell's element, with a text field. data: {code}, the notebook's text. */
  constructor(outer, data, changed) {
    this.released = data.code;
    this.changed = changed;
    this.field = outer.querySelector("textarea");
    this.field.placeholder = data.code.replaceAll("*", "");
    this.words = make("p", "lab-status");
    outer.append(this.words);
    this.field.addEventListener("input", () => this.#changed());
    this.set(data.code);
  }

  code() {
    return this.field.value || this.released;
  }

  set(text) {
    this.field.value = text === this.released ? "" : text;
    this.#changed();
  }

  reset() {
    this.set(this.released);
  }

  #changed() {
    const count = this.field.value.match(/\S+/g)?.length ?? 0;
    this.words.textContent = `${count} word${count === 1 ? "" : "s"}`;
    this.changed();
  }
}
