/* On every page with a lab: it loads nothing more until the reader runs, edits or types something. */
import { setUpExercise } from "./exercise.js";
import { setUpPage } from "./page.js";
import { setUpPlayground } from "./playground.js";

const base = new URL(".", document.currentScript.src);
const scripts = new Map();

const load = (name) => {
  if (!scripts.has(name)) {
    scripts.set(
      name,
      new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = new URL(name, base);
        script.onload = resolve;
        script.onerror = () => {
          scripts.delete(name);
          script.remove();
          reject(new Error(`${name} could not be loaded: is the folder _static/labs beside the page?`));
        };
        document.head.append(script);
      }),
    );
  }
  return scripts.get(name);
};

let python;

/* The classes and functions of kit.js, and the page's one Python. */
const kit = async () => {
  await load("kit.js");
  const found = window.courseLabsKit;
  python ??= new found.Python(async () => {
    await Promise.all([load("python.js"), load("package.js")]);
    return { files: window.courseLabsFiles, course: window.courseLabsCourse };
  });
  return { ...found, python };
};

const KINDS = { "lab-cells": setUpPage, "lab-exercise": setUpExercise };

const ready = () => {
  for (const [kind, setUp] of Object.entries(KINDS)) {
    for (const data of document.querySelectorAll(`script.${kind}`)) {
      setUp(JSON.parse(data.textContent), kit);
    }
  }
  for (const outer of document.querySelectorAll(".lab-playground")) setUpPlayground(outer, kit);
};

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", ready);
else ready();
