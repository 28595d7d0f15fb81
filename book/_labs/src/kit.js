/* What is loaded at the first click: editors, outputs and Python. */
export { makeEditor } from "./editor.js";
export { append, typeset } from "./outputs.js";
export { Python, Stopped } from "./python.js";
export { Session } from "./session.js";
