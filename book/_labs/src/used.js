/* Which answers of an exercise the points of a question depend on. */

const DEFINED = [
  /^(?:async\s+)?(?:def|class)\s+(\w+)/gm,
  /^(?:from\s+[\w.]+\s+)?import\s+(.+)/gm,
  /^([A-Za-z_][\w, ]*?)\s*(?::[^=\n]+)?=(?!=)/gm, // a = 1, a, b = 1, 2 and a: int = 1
];
const wordsOf = (text) => text.match(/[A-Za-z_]\w*/g) ?? [];

const definedIn = (code) =>
  DEFINED.flatMap((pattern) => [...code.matchAll(pattern)].flatMap(([, names]) => wordsOf(names)));

/* The codes that matter, of `answers` in the notebook's order, {label, code}: those with one of these
   labels, and those before them that define a name which one of them uses. */
export const usedAnswers = (answers, labels) => {
  const found = [];
  const used = new Set();
  for (const { label, code } of [...answers].reverse()) {
    if (!labels.includes(label) && !definedIn(code).some((name) => used.has(name))) continue;
    for (const word of wordsOf(code)) used.add(word);
    found.unshift(code);
  }
  return found;
};
