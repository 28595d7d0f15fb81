/* A playground: what the reader types is computed at once. Its state is in the page's address. */

import { button, live, make } from "./elements.js";

const WAIT_MS = 150;
const LONGEST_MS = 10_000;

/* The values in the address, if it is one of this playground; else null. */
const valuesInAddress = (name) => {
  const [which, query] = location.hash.slice(1).split("?", 2);
  return which === `play-${name}` && query ? new URLSearchParams(query) : null;
};

export const setUpPlayground = (outer, kit) => {
  const name = outer.dataset.playground;
  const form = outer.querySelector("form");
  const view = outer.querySelector(".lab-view");
  if (!form) return;
  const controls = [...form.elements].filter((each) => each.name);
  const first = new Map(controls.map((each) => [each, each.value]));
  const firstView = view.innerHTML;

  const bar = make("div", "lab-bar");
  const status = live("span", "lab-status");
  const say = (text) => {
    status.textContent = text;
  };

  const values = () => Object.fromEntries(controls.map((each) => [each.name, each.value]));
  const address = () => {
    const changed = controls.filter((each) => each.value !== first.get(each));
    const query = new URLSearchParams(changed.map((each) => [each.name, each.value]));
    return `#play-${name}${changed.length ? `?${query}` : ""}`;
  };

  let asked = 0;
  let waiting = 0;
  const compute = async () => {
    const number = ++asked;
    showButton.hidden = true;
    history.replaceState(null, "", address());
    let limit = 0;
    try {
      say("starting Python…");
      const { python, typeset } = await kit();
      await python.start();
      if (number !== asked) return;
      say("");
      const begun = () => {
        limit = setTimeout(() => python.stop(), LONGEST_MS); // not before: a cell may run first
      };
      const given = { playground: name, values: values() };
      const { html } = await python.call("view", given, undefined, begun);
      if (number !== asked) return; // a newer one is on its way
      view.innerHTML = html;
      typeset(view.querySelectorAll(".math")); // what a reader typed is no formula
      say("updated");
    } catch (error) {
      if (number !== asked) return;
      say(error.message === "stopped" ? "That took too long: try a smaller input." : `failed: ${error.message}`);
    } finally {
      clearTimeout(limit);
    }
  };
  const showButton = button("Show", compute);
  showButton.hidden = true;

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(compute, WAIT_MS);
  });

  const reset = () => {
    clearTimeout(waiting);
    asked += 1;
    for (const [control, text] of first) control.value = text;
    view.innerHTML = firstView;
    history.replaceState(null, "", address());
    say("");
  };
  const copyLink = async () => {
    history.replaceState(null, "", address());
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link is copied.");
    } catch {
      say("The link is in the address bar.");
    }
  };
  bar.append(showButton, button("Reset", reset), button("Copy link", copyLink), status);
  form.after(bar);

  const followLink = () => {
    const linked = valuesInAddress(name);
    if (!linked) return;
    for (const control of controls) {
      if (linked.has(control.name)) control.value = linked.get(control.name);
    }
    showButton.hidden = false;
    say("This link has its own values: press Show.");
  };
  addEventListener("hashchange", followLink);
  followLink();
};
