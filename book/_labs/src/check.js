/* A cell whose `check` gives points. */
import { Cell } from "./cell.js";

const pointsText = (points, most) => `${points} of ${most} point${most === 1 ? "" : "s"}`;

export class Check extends Cell {
  /* data: also {points}. answered: gives a text for what is checked now; scored: gets the points
     of a run, {points, of: that text}. */
  constructor(outer, data, session, { answered, scored }) {
    super(outer, data, session, { fixed: true, run: "Check" });
    this.runButton.classList.add("lab-main");
    this.answered = answered;
    this.scored = scored;
  }

  async run() {
    const of = this.answered();
    const result = await super.run();
    if (result) this.scored({ points: result.score ?? 0, of }); // an error gives no points, as in nbgrader
    return result;
  }

  /* Show the points of the last run. changed: whether the answer is another one by now. */
  mark(points, changed) {
    if (points === undefined || this.running) return;
    const text = pointsText(points, this.data.points);
    this.say(changed ? `You have changed the answer since it got ${text}.` : text);
  }
}
