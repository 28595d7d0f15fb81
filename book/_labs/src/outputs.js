/* Outputs of a cell as elements of the page, in the classes that the book's own outputs have. */
import MarkdownIt from "markdown-it";
import { make, setHtml } from "./elements.js";

const markdown = new MarkdownIt({ html: true });

const preformatted = (className, text) => {
  const made = make("div", `output ${className} highlight`);
  made.append(make("pre", "", text));
  return made;
};

const rich = (className, html) => {
  const made = make("div", `output ${className}`);
  setHtml(made, html);
  for (const table of made.querySelectorAll("table")) table.classList.add("table");
  return made;
};

/* LaTeX as a displayed formula: IPython's Math gives "$\\displaystyle …$". */
const displayed = (latex) => {
  const inside = latex.trim().match(/^\$\$?(?:\\displaystyle\s)?([^]*?)\$\$?$/)?.[1];
  return inside === undefined ? latex : `\\[${inside.trim()}\\]`;
};

/* The element for one output; null if there is nothing to show. */
const shown = (output) => {
  if (output.stream) return preformatted(`stream ${output.stream}`, output.text);
  if (output.error) return preformatted("traceback", output.error);
  if (output.note) return make("p", "output lab-note", output.note);
  const data = output.data;
  if (data["image/svg+xml"]) return rich("image_svg", data["image/svg+xml"]);
  if (data["text/html"]) return rich("text_html", data["text/html"]);
  if (data["text/markdown"]) return rich("text_markdown", markdown.render(data["text/markdown"]));
  if (data["text/latex"]) return make("div", "output text_latex math", displayed(data["text/latex"]));
  return preformatted("text_plain", data["text/plain"]);
};

/* Add an output to a list of outputs. Text of the same stream goes on where it ended. */
export const append = (list, output) => {
  const last = list.lastElementChild;
  if (output.stream && last?.matches(`.stream.${output.stream}`)) {
    last.firstElementChild.textContent += output.text;
    return;
  }
  const made = shown(output);
  list.append(made);
  if (made.matches(".math, .text_html, .text_markdown")) typeset([made]);
};

/* Let MathJax set the formulas in these elements, when it has loaded. (Given none, it would set all.) */
export const typeset = (elements) => {
  if (!elements.length) return;
  const set = () => window.MathJax?.typesetPromise?.([...elements]);
  (window.MathJax?.startup?.promise ?? Promise.resolve()).then(set).catch(() => {});
};
