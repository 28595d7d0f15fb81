/* What a reader has written in an exercise, kept in the browser, or in a file that it can be moved by.

   Only texts that differ from the notebook are kept, under the notebook's hash: the answers to an
   earlier version stay where they are, until the reader takes them. Whatever is read is data from
   somewhere: it is checked, and fills cells; nothing of it runs by itself. */

import * as mirror from "./mirror.js";

const FORMAT = "course-labs-progress";
const MOST_BYTES = 100_000_000; // of a file: a notebook may have plots
const MOST_TEXT = 2_000_000; // characters of answers
const NOT_OURS = "it is neither a file of answers that this page has exported nor a notebook";

const prefixOf = ({ name }) => `${FORMAT}:${name}:`;
export const keyOf = (exercise) => prefixOf(exercise) + exercise.hash;

/* exercise: {name, hash}; kept: {cells: {id: text}, …}. */
export const asText = ({ name, hash }, kept) =>
  JSON.stringify({ format: FORMAT, assignment: name, hash, ...kept }, null, 1);

const isRecord = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

const checked = (given, { name }) => {
  const isTexts = isRecord(given?.cells) && Object.values(given.cells).every((each) => typeof each === "string");
  if (given?.format !== FORMAT || !isTexts) throw new Error(NOT_OURS);
  if (given.assignment !== name) {
    throw new Error(`it belongs to the exercise “${String(given.assignment)}”, and this is “${name}”`);
  }
  return given.cells;
};

const isScore = ([, score]) => isRecord(score) && Number.isFinite(score.points) && typeof score.of === "string";

const read = (text, exercise) => {
  const given = JSON.parse(text);
  const cells = checked(given, exercise);
  const scores = Object.fromEntries(Object.entries(given.scores ?? {}).filter(isScore));
  const asked = Array.isArray(given.asked) ? given.asked.map(String) : [];
  return { cells, scores, asked, saved: String(given.saved ?? "") };
};

/* {cells, scores: {question: {points, of}}, asked: [key], saved}; null if there is none or it can't be
   read. */
export const load = (exercise) => {
  try {
    return read(localStorage.getItem(keyOf(exercise)), exercise);
  } catch {
    return null;
  }
};

/* The same from the second copy, if it is newer than what `load` gave, else null. Versions that
   localStorage lacks return to it. */
export const restore = async (exercise, loaded) => {
  try {
    const copies = new Map(await mirror.entries(prefixOf(exercise)));
    for (const [key, text] of copies) {
      if (key !== keyOf(exercise) && localStorage.getItem(key) === null) localStorage.setItem(key, text);
    }
    const copy = read(copies.get(keyOf(exercise)), exercise);
    return copy.saved > (loaded?.saved ?? "") ? copy : null;
  } catch {
    return null; // there is no second copy, or it can't be read
  }
};

/* The latest answers to another version, {key, cells, saved}, or null. asked: keys to leave out. */
export const older = (exercise, asked) => {
  try {
    const found = Object.keys(localStorage)
      .filter((key) => key.startsWith(prefixOf(exercise)) && key !== keyOf(exercise) && !asked.includes(key))
      .flatMap((key) => {
        try {
          return [{ key, ...read(localStorage.getItem(key), exercise) }];
        } catch {
          return []; // not readable: not touched
        }
      })
      .filter(({ cells }) => Object.keys(cells).length);
    return found.sort((a, b) => b.saved.localeCompare(a.saved))[0] ?? null;
  } catch {
    return null;
  }
};

/* Returns "" or why it could not be kept. */
export const save = (exercise, kept) => {
  const text = asText(exercise, { ...kept, saved: new Date().toISOString() });
  mirror.put(keyOf(exercise), text).catch(() => {}); // localStorage has it
  try {
    localStorage.setItem(keyOf(exercise), text);
    return "";
  } catch (error) {
    return error.name === "QuotaExceededError"
      ? "Your browser's storage is full: export your answers to a file."
      : "Your browser keeps nothing for this page: export your answers to a file.";
  }
};

/* A notebook as text, without what its cells have put out. */
const withoutOutputs = (notebook) => {
  const cells = notebook.cells.map((cell) =>
    isRecord(cell) ? Object.fromEntries(Object.entries(cell).filter(([key]) => key !== "outputs")) : cell,
  );
  return JSON.stringify({ ...notebook, cells });
};

/* What a file has for the exercise, one that was exported or a notebook: {cells: texts by the released
   cells' ids, others: how many cells of the reader's own have code}. imported: what Python finds in a
   notebook's text, {cells, others} or {problem}. Throws an Error that says what is wrong with the file. */
export const fromFile = async (file, exercise, imported) => {
  if (file.size > MOST_BYTES) throw new Error("it is larger than 100 MB, so it is another file");
  let given;
  try {
    given = JSON.parse(await file.text());
  } catch {
    throw new Error(NOT_OURS);
  }
  const found = Array.isArray(given?.cells)
    ? await imported(withoutOutputs(given))
    : { cells: checked(given, exercise), others: 0 };
  if (found.problem) throw new Error(found.problem);
  const length = Object.values(found.cells).reduce((sum, text) => sum + text.length, 0);
  if (length > MOST_TEXT) throw new Error("its answers have more than 2 million characters");
  return found;
};

export const download = (name, text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

/* The released notebook with the reader's texts in the cells to write; all else as it was.
   texts: {id: text}. Lines are kept as a list, as Jupyter writes them. */
export const filledNotebook = (notebook, texts) => {
  const lines = (text) => text.split(/(?<=\n)/);
  const cells = notebook.cells.map((cell) =>
    Object.hasOwn(texts, cell.id) ? { ...cell, source: texts[cell.id] ? lines(texts[cell.id]) : [] } : cell,
  );
  return `${JSON.stringify({ ...notebook, cells }, null, 1)}\n`;
};

/* A short text that is another one if the texts are (cyrb53, 53 bits). */
export const fingerprint = (texts) => {
  let [a, b] = [0xdeadbeef, 0x41c6ce57];
  for (const letter of texts.join("\0")) {
    const code = letter.codePointAt(0);
    a = Math.imul(a ^ code, 2654435761);
    b = Math.imul(b ^ code, 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return (4294967296 * (2097151 & b) + (a >>> 0)).toString(36);
};
