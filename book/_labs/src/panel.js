/* The box at the top of an exercise: points, and what to do with the progress. */

const make = (tag, className, text) => {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text ?? "";
  return made;
};

const button = (text, action) => {
  const made = make("button", "lab-button", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
};

/* Draw the box into `place`. actions: what the buttons do. */
export const makePanel = (place, actions) => {
  const note = make(
    "p",
    "lab-note",
    "Your work stays in this browser. To submit it, or to go on in Jupyter, download it as a notebook.",
  );
  const sum = make("p", "lab-sum");
  const bar = document.createElement("progress");
  bar.setAttribute("aria-label", "points");
  const table = make("table", "table lab-points");
  const details = document.createElement("details");
  details.append(make("summary", "", "Points of each question"), table);
  const status = make("p", "lab-status");
  status.setAttribute("role", "status");
  const warning = make("p", "lab-warning");
  const buttons = make("div", "lab-bar");
  const file = document.createElement("input");
  file.type = "file";
  file.accept = ".json,application/json";
  file.hidden = true;
  file.addEventListener("change", () => {
    if (file.files[0]) actions.importFile(file.files[0]);
    file.value = "";
  });
  buttons.append(
    button("Check all", actions.checkAll),
    button("Download as notebook", actions.notebook),
    button("Export progress", actions.exportFile),
    button("Import progress", () => file.click()),
    button("Start over", actions.startOver),
    file,
  );
  place.append(note, sum, bar, details, buttons, status, warning);
  return {
    say: (text) => {
      status.textContent = text;
    },
    warn: (text) => {
      warning.textContent = text;
    },
    offer: (text, action) => buttons.append(button(text, action)),
    /* rows: [question, points or undefined, most]. */
    show: (rows) => {
      const got = rows.reduce((all, [, points]) => all + (points ?? 0), 0);
      const most = rows.reduce((all, [, , each]) => all + each, 0);
      sum.textContent = `${got} of ${most} points that can be checked here`;
      bar.max = most;
      bar.value = got;
      table.replaceChildren(
        ...rows.map(([question, points, each]) => {
          const row = document.createElement("tr");
          const said = points === undefined ? "not checked yet" : `${points} of ${each}`;
          row.append(make("th", "", question), make("td", "", said));
          row.firstElementChild.scope = "row";
          return row;
        }),
      );
    },
  };
};
