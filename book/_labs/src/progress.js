/* What a reader has written in an exercise, kept in the browser, or in a file that it can be moved by.

   A file is data from somewhere: it is checked, and fills cells; nothing of it runs by itself. */

const FORMAT = "course-labs-progress";
const MOST_BYTES = 2_000_000;

const key = (name) => `${FORMAT}:${name}`;

/* {cells: {id: code}, points: {question: number}, hash}; null if there is none or it can't be read. */
export const load = (name) => {
  try {
    return check(JSON.parse(localStorage.getItem(key(name))), name);
  } catch {
    return null;
  }
};

/* Returns "" or why it could not be kept. */
export const save = (name, progress) => {
  try {
    localStorage.setItem(key(name), asText(name, progress));
    return "";
  } catch (error) {
    return error.name === "QuotaExceededError"
      ? "Your browser's storage is full: export your progress to a file."
      : "Your browser keeps nothing for this page: export your progress to a file.";
  }
};

export const forget = (name) => {
  try {
    localStorage.removeItem(key(name));
  } catch {
    // there was nothing to keep it in
  }
};

export const asText = (name, progress) =>
  JSON.stringify({ format: FORMAT, assignment: name, ...progress }, null, 1);

const isTexts = (value) =>
  value && typeof value === "object" && Object.values(value).every((each) => typeof each === "string");

const check = (given, name) => {
  if (!given || given.format !== FORMAT || !isTexts(given.cells)) {
    throw new Error("it is not a file of progress that this page has exported");
  }
  if (given.assignment !== name) {
    throw new Error(`it belongs to the exercise “${given.assignment}”, and this is “${name}”`);
  }
  const points = Object.entries(given.points ?? {}).filter(([, value]) => Number.isFinite(value));
  return { cells: given.cells, points: Object.fromEntries(points), hash: String(given.hash) };
};

/* The progress in a file. Throws an Error that says what is wrong with it. */
export const fromFile = async (file, name) => {
  if (file.size > MOST_BYTES) throw new Error("it is larger than 2 MB, so it is another file");
  let given;
  try {
    given = JSON.parse(await file.text());
  } catch {
    throw new Error("it is not a file of progress that this page has exported");
  }
  return check(given, name);
};

export const download = (name, text, type) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

/* The released notebook with the reader's texts in the cells to write; all else as it was.
   texts: {id: text}. Lines are kept as a list, as Jupyter writes them. */
export const filledNotebook = (notebook, texts) => {
  const lines = (text) => text.split(/(?<=\n)/);
  const cells = notebook.cells.map((cell) =>
    cell.id in texts ? { ...cell, source: texts[cell.id] ? lines(texts[cell.id]) : [] } : cell,
  );
  return `${JSON.stringify({ ...notebook, cells }, null, 1)}\n`;
};
