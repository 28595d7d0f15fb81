"use strict";
// Pages, sorts and searches the table of students.
(() => {
  const PAGE = 50;
  const section = document.getElementById("students");
  const find = (name) => section.querySelector(name);
  const table = find("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const tools = find(".tools"), search = find("input"), group = find("select");
  const pager = find(".pager"), status = find("[role=status]");
  const [first, previous, next, last] = pager.querySelectorAll("button");

  // With scripts on, what is in <noscript> is text: the rows of the other students.
  const rest = find("noscript");
  const parsed = rest && new DOMParser().parseFromString(rest.textContent, "text/html");
  const rows = [...body.rows, ...(parsed ? parsed.querySelectorAll("tbody > tr") : [])];
  if (rest) rest.remove();

  const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const order = new Intl.Collator(undefined, { numeric: true });
  const texts = new Map(), keys = new Map();
  const state = { page: 0, by: -1, down: false, query: "", group: "" };
  let chosen = rows;

  const text = (row) => {
    if (!texts.has(row)) {
      const said = [...row.cells].filter((cell) => !cell.classList.contains("n"));
      texts.set(row, plain(said.map((cell) => cell.textContent).join(" ")));
    }
    return texts.get(row);
  };
  const keysOf = (column) => {
    if (!keys.has(column)) {
      const numeric = heads[column].classList.contains("n");
      const key = (row) => {
        const shown = row.cells[column].textContent.trim();
        if (shown === "" || shown === "–") return null;
        return numeric ? Number(shown) : shown;
      };
      keys.set(column, new Map(rows.map((row) => [row, key(row)])));
    }
    return keys.get(column);
  };
  const sorted = (found) => {
    if (state.by < 0) return found;
    const key = keysOf(state.by), sign = state.down ? -1 : 1;
    const compare = (a, b) => (typeof a === "number" ? a - b : order.compare(a, b));
    return [...found].sort((x, y) => {
      const a = key.get(x), b = key.get(y);
      if (a === null || b === null) return (a === null) - (b === null);  // always last
      return sign * compare(a, b);
    });
  };

  const count = (number) => number.toLocaleString("en");
  const show = () => {
    const from = state.page * PAGE, to = Math.min(from + PAGE, chosen.length);
    body.replaceChildren(...chosen.slice(from, to));
    const of = chosen.length < rows.length ? ` (of ${count(rows.length)})` : "";
    const by = state.by < 0 ? "" : `, by ${names[state.by]}${state.down ? ", descending" : ""}`;
    const range = chosen.length ? `${count(from + 1)}–${count(to)} of ${count(chosen.length)}` : "nobody";
    status.textContent = `${range}${of}${by}`;
    const end = to >= chosen.length;
    // Not `disabled`, which would take the keyboard's focus away.
    for (const [button, off] of [[first, !from], [previous, !from], [next, end], [last, end]])
      button.setAttribute("aria-disabled", off);
    heads.forEach((head, at) => {
      if (at !== state.by) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    });
    const kept = Object.entries({ q: state.query, in: state.group, page: state.page || "",
      by: state.by < 0 ? "" : state.by, down: state.down ? 1 : "" }).filter(([, value]) => value !== "");
    const hash = kept.length ? `#${new URLSearchParams(kept)}` : "";
    history.replaceState(null, "", hash || location.href.split("#")[0]);
  };
  const choose = () => {
    const words = plain(state.query).split(/\s+/).filter(Boolean);
    const fits = (row) =>
      (state.group === "" || row.dataset.in.split(" ").includes(state.group)) &&
      (!words.length || words.every((word) => text(row).includes(word)));
    chosen = sorted(rows.filter(fits));
    state.page = Math.max(0, Math.min(state.page, Math.ceil(chosen.length / PAGE) - 1));
    show();
  };
  const turn = (button, page) => button.addEventListener("click", () => {
    if (button.getAttribute("aria-disabled") === "true") return;
    state.page = page();
    show();
    section.scrollIntoView();
  });

  const names = heads.map((head) => head.textContent.trim());
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      state.down = state.by === at && !state.down;
      state.by = at;
      state.page = 0;
      choose();
    });
  });
  turn(first, () => 0);
  turn(previous, () => state.page - 1);
  turn(next, () => state.page + 1);
  turn(last, () => Math.ceil(chosen.length / PAGE) - 1);
  let soon;
  search.addEventListener("input", () => {
    clearTimeout(soon);
    soon = setTimeout(() => {
      state.query = search.value;
      state.page = 0;
      choose();
    }, 120);
  });
  group.addEventListener("change", () => {
    state.group = group.value;
    state.page = 0;
    choose();
  });
  addEventListener("beforeprint", () => body.replaceChildren(...chosen));
  addEventListener("afterprint", show);

  // What was shown before somebody followed a link and came back.
  const kept = new URLSearchParams(location.hash.slice(1));
  search.value = state.query = kept.get("q") || "";
  const asked = kept.get("in") || "";
  if ([...group.options].some((option) => option.value === asked)) group.value = state.group = asked;
  const by = Number(kept.get("by") || -1);
  if (Number.isInteger(by) && by < heads.length) state.by = Math.max(-1, by);
  state.down = kept.get("down") === "1";
  state.page = Math.max(0, Math.trunc(Number(kept.get("page"))) || 0);
  tools.hidden = pager.hidden = false;
  choose();
})();
