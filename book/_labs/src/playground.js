/* A playground: what the reader types is computed at once. Its state is in the page's address. */

import { button, live, make, setHtml } from "./elements.js";

const WAIT_MS = 150;
const SLOW_MS = 500;
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

  let newest = 0; // the number of the newest state
  let computed = 0; // the last one that was begun, or that is no longer wanted
  let working = false;
  let waiting = 0; // the timer that waits for the reader to pause

  /* Compute the form's state, and show it unless there is a newer one by then. */
  const once = async () => {
    const number = (computed = newest);
    const tell = (text) => number === newest && say(text);
    let slow = 0;
    let limit = 0;
    let tooLong = false;
    /* The limit counts from when Python begins: a cell of the page may run before. */
    const begun = (python) => {
      clearTimeout(slow);
      slow = setTimeout(() => tell("computing…"), SLOW_MS);
      limit = setTimeout(() => {
        tooLong = true;
        python.stop();
      }, LONGEST_MS);
    };
    try {
      tell("starting Python…");
      const { python, typeset } = await kit();
      await python.start();
      if (number !== newest) return;
      tell("");
      slow = setTimeout(() => tell("waiting for a cell to end…"), SLOW_MS);
      const given = { playground: name, values: values() };
      const { html } = await python.call("view", given, undefined, () => begun(python));
      if (number !== newest) return;
      setHtml(view, html);
      typeset(view.querySelectorAll(".math")); // what a reader typed is no formula
      tell(view.querySelector(".lab-wrong") ? "updated, with a message" : "updated");
    } catch (error) {
      if (number === newest) showButton.hidden = false;
      if (tooLong) tell("That took too long: try a smaller input.");
      else tell(error.message === "stopped" ? "Python was stopped: press Show." : `failed: ${error.message}`);
    } finally {
      clearTimeout(slow);
      clearTimeout(limit);
    }
  };

  /* One at a time, and always the newest: what was typed in between is never computed. */
  const compute = async () => {
    newest += 1;
    showButton.hidden = true;
    history.replaceState(null, "", address());
    if (working) return;
    working = true;
    while (computed < newest) await once();
    working = false;
  };

  /* Nothing is wanted any more, neither what waits nor what is computed now. */
  const forget = () => {
    clearTimeout(waiting);
    computed = newest += 1;
  };

  const showButton = button("Show", compute);
  showButton.hidden = true;

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(compute, WAIT_MS);
  });

  const reset = () => {
    forget();
    view.innerHTML = firstView;
    for (const [control, text] of first) control.value = text;
    showButton.hidden = true;
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
    forget();
    for (const [control, text] of first) control.value = linked.get(control.name) ?? text;
    view.replaceChildren();
    showButton.hidden = false;
    say("This link has its own values: press Show.");
    outer.scrollIntoView();
  };
  addEventListener("hashchange", followLink);
  followLink();
};
