// The panel: why a job waits or runs, what would help it, and what a change would do.

import { ask, costs, duration, el, interval, money, names, power, problem, second, short, svg } from "./lib.js";
import { Axis, draw } from "./jobs.js";

const SHOWN = 6;
const NEVER = 320_000_000;
const NOT_TRIED = {
  ManyJobs: "Not tried: the plan has many jobs, and each change costs a plan.",
  OutOfTime: "Not all were tried: they took too long.",
};

export class Detail {
  constructor(timeline, closed) {
    this.root = document.getElementById("detail");
    this.timeline = timeline;
    this.closed = closed;
  }

  close() {
    if (this.root.hidden) return false;
    this.root.hidden = true;
    this.job = this.shown = null;
    this.closed();
    return true;
  }

  /** Opens the panel with these blocks. */
  show(title, note, ...blocks) {
    this.root.hidden = false;
    this.root.replaceChildren(
      el("header", {}, el("div", {}, el("h2", {}, title), el("span.dim", {}, note)), el("button", { "aria-label": "Close", onclick: () => this.close() }, "×")),
      ...blocks.filter(Boolean));
    this.root.scrollTop = 0;
  }

  /** Asks what decided about a job. `changes`: tries changes however many jobs there are. */
  async explain(row, changes) {
    const token = (this.shown = {});
    this.job = row.name;
    this.show(row.name, row.phase, el("p.dim", {}, changes ? "Trying changes: this takes up to ten seconds…" : "Asking…"));
    let blocks;
    try {
      const of = await ask(`explain/${row.name}${changes ? "/changes" : ""}`);
      blocks = [this.facts(of), this.cost(of), this.candidates(of), this.changes(of, row), this.form(row, of.currency)];
    } catch (error) {
      blocks = [problem(error)];
    }
    // Meanwhile another one may have been opened.
    if (this.shown === token) this.show(row.name, `${row.phase}${row.position ? `, number ${row.position} of those that wait` : ""}`, ...blocks.flat());
  }

  now() { return this.timeline()?.now ?? Date.now() / 1000; }

  facts({ job, decided }) {
    const now = this.now();
    const e = job.expected;
    const facts = [
      e ? ["Start", interval(e.start, now)] : ["Expected", "nothing yet"],
      e && ["End", interval(e.finish, now)],
      job.deadline && ["Deadline", `${stamp(job.deadline)}${e?.onTimePercent != null ? `, on time with ${e.onTimePercent} %` : ""}`],
      e && ["GPUs", `${e.gpus} × ${e.gpuType}`],
      ["Weight", String(job.weight)],
      job.ahead && ["Ahead", names(job.ahead)],
      decided && ["Decision", `${decided.decision.toLowerCase()}${decided.reason ? `, ${decided.reason}` : ""} (${decided.method}, ${duration(now - second(decided.at))} ago)`],
      decided?.message && ["Why", decided.message],
      decided?.inTheWay && ["In the way", names(decided.inTheWay)],
      !decided && job.reason && ["Reason", job.message ?? job.reason],
    ];
    return list(facts);
  }

  cost({ job, currency }) {
    if (!job.expected) return [];
    const { energyCostMicros: energy, latenessCostMicros: lateness, turnaroundCostMicros: turnaround } = job.expected.cost;
    const total = energy + lateness + turnaround;
    const parts = [["energy", "Energy", energy], ["lateness", "Lateness", lateness], ["turnaround", "Time in the system", turnaround]];
    const bar = el("div.parts", { "aria-hidden": "true" });
    for (const [name, , part] of parts) bar.append(el(`i.${name}`)), (bar.lastChild.style.width = `${(100 * Math.max(part, 0)) / Math.max(total, 1)}%`);
    const rows = parts.map(([name, words, part]) => el("tr", {}, el("td", {}, el(`i.dot.${name}`), words), el("td.r", {}, `${money(part)} ${currency}`)));
    rows.push(el("tr.chosen", {}, el("td", {}, "From now to its end"), el("td.r", {}, `${money(total)} ${currency}`)));
    return [el("h3", {}, "Expected cost"), bar, el("table", {}, rows)];
  }

  candidates({ candidates, currency }) {
    const shown = candidates.filter((one, n) => n < SHOWN || one.current);
    if (!shown.length) return [];
    const total = (cost) => cost.energyCostMicros + cost.latenessCostMicros + cost.turnaroundCostMicros;
    // Columns that say the same of all are left out.
    const columns = [["GPUs", (one) => `${one.gpus} × ${short(one.gpuType)}`], shown.some((one) => one.nodes > 1) && ["Nodes", (one) => String(one.nodes), "r"],
      shown.some((one) => one.limitWatts) && ["Limit", (one) => power(one.limitWatts), "r"], ["Time", (one) => duration(one.seconds), "r"],
      [`Cost, ${currency}`, (one) => money(total(one.cost)), "r"], ["On time", (one) => (one.onTimePercent == null ? "–" : `${one.onTimePercent} %`), "r"],
      ["Now", (one) => (one.current ? "planned" : one.obstacle ? `no: ${one.obstacle.toLowerCase()}` : "fits")]].filter(Boolean);
    const head = columns.map(([name]) => name);
    const rows = shown.map((one) => el(one.current ? "tr.chosen" : "tr", {}, columns.map(([, words, kind]) => el(kind ? "td.r" : "td", {}, words(one)))));
    const more = candidates.length - shown.length;
    return [el("h3", {}, "Configurations, cheapest first, if it started now"), table(head, rows),
      more > 0 && el("p.dim", {}, `and ${more} more: kubectl andreas explain -o wide`)];
  }

  changes(of, row) {
    const now = this.now();
    const blocks = of.changes.map((change) => {
      const e = change.expected;
      const effects = [`start ${interval(e.start, now)}`, e.onTimePercent != null && `on time with ${e.onTimePercent} %`, `all jobs: ${costs(change.addedCostMicros, of.currency)}`];
      const patch = change.patch && JSON.stringify(change.patch);
      const copy = (event) => navigator.clipboard.writeText(`kubectl patch trainingjob ${row.name} --type=merge -p '${patch}'`).then(() => (event.target.textContent = "Copied"));
      return el("div.change", {}, el("b", {}, change.text), el("p", {}, effects.filter(Boolean).join("; ")),
        patch && [el("button", { onclick: () => this.send({ changed: { name: row.name, patch: change.patch.spec } }, of.currency) }, "Whom it moves"), el("button", { onclick: copy }, "Copy as kubectl patch")]);
    });
    if (NOT_TRIED[of.notTried]) {
      const again = of.notTried === "ManyJobs" && el("button", { onclick: () => this.explain(row, true) }, "Try them");
      blocks.push(el("p.dim", {}, NOT_TRIED[of.notTried], " ", again));
    } else if (!blocks.length && !of.notTried) blocks.push(el("p.dim", {}, "None was found that would help."));
    return blocks.length ? [el("h3", {}, "Changes that would help, cheapest first"), ...blocks] : [];
  }

  /** Opens the panel with the form alone. */
  whatIf() {
    this.job = null;
    this.shown = {};
    this.show("What if", "Nothing is changed or created", ...this.form(null, ""));
  }

  /** The form: changes of a job, of the budget and of the nodes are one change. */
  form(row, currency) {
    const field = (name, words, attributes = {}) => el("label", {}, words, el("input", { name, autocomplete: "off", ...attributes }));
    const number = { type: "number", min: 1, max: 4096 };
    const [min, max] = row?.allowedGpus ?? ["", ""];
    const due = row?.deadline ? local(row.deadline) : "";
    const whole = !row?.adopted;
    const ofJob = row && [
      field("deadline", "Deadline", { type: "datetime-local", value: due }), field("weight", "Weight, 1 to 1000", { ...number, max: 1000, value: row.weight }),
      whole && field("min", "Fewest GPUs", { ...number, value: min }), whole && field("max", "Most GPUs", { ...number, value: max })];
    const types = [...new Set((this.timeline()?.rows ?? []).map((one) => short(one.gpuType ?? one.expected?.gpuType)).filter(Boolean))];
    const form = el("form", { "aria-label": "What if" },
      el("div.fields", {}, ofJob,
        field("budget", "Power budget, kW", { type: "number", min: 0.001, step: "any", placeholder: "as it is" }),
        field("nodes", "Added nodes", { type: "number", min: 0, max: 256, placeholder: "0" }),
        field("gpus", "GPUs of each", { type: "number", min: 1, max: 64, value: 8 }), field("type", "GPU type", { list: "types", placeholder: "A100" })),
      el("datalist", { id: "types" }, types.map((type) => el("option", { value: type }))), el("button.primary", {}, "Ask"));
    this.answer = el("div", { "aria-live": "polite" });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const value = (name) => form.elements[name]?.value ?? "";
      const patch = {};
      if (row) {
        if (value("deadline") !== due) Object.assign(patch, { deadline: value("deadline") ? new Date(value("deadline")).toISOString() : null, deadlineAfter: null });
        if (Number(value("weight")) !== row.weight) patch.weight = Number(value("weight"));
        // Numbers that were listed one by one go with another range.
        if (whole && (value("min") !== String(min) || value("max") !== String(max)) && value("min")) patch.gpus = { min: Number(value("min")), max: Number(value("max") || value("min")), counts: [] };
      }
      const question = {};
      if (Object.keys(patch).length) question.changed = { name: row.name, patch };
      if (value("budget")) question.budgetWatts = Math.round(Number(value("budget")) * 1000);
      if (Number(value("nodes")) > 0) question.nodes = [{ count: Number(value("nodes")), gpuType: value("type"), gpus: Number(value("gpus")) }];
      this.send(question, currency);
    });
    return [el("h3", {}, row ? "What if this job, the budget or the nodes were others" : "What if the budget or the nodes were others"), form, this.answer];
  }

  /** Asks, and shows before and after. */
  async send(question, currency) {
    const { answer } = this;
    if (!Object.keys(question).length) return answer.replaceChildren(el("p.dim", {}, "Change at least one field."));
    answer.replaceChildren(el("p.dim", {}, "Planning the cluster with this change…"));
    answer.scrollIntoView({ block: "nearest" });
    try {
      answer.replaceChildren(...this.effect(await ask("whatif", question)));
    } catch (error) {
      answer.replaceChildren(problem(error));
    }
    answer.lastElementChild.scrollIntoView({ block: "nearest" });
  }

  effect(of) {
    const now = second(of.at);
    const after = of.job?.expected;
    const blocks = [el("h3", {}, "Before and after")];
    if (of.job) {
      const cell = (e, words) => el("td", {}, e ? words(e) : "never");
      const total = (e) => e.cost.energyCostMicros + e.cost.latenessCostMicros + e.cost.turnaroundCostMicros;
      const line = (name, words) => el("tr", {}, el("td", {}, name), cell(of.before, words), cell(after, words));
      blocks.push(this.picture(of, now), table([of.job.name, "Before", "After"], [
        line("Start", (e) => interval(e.start, now)), line("End", (e) => interval(e.finish, now)),
        line("On time", (e) => (e.onTimePercent == null ? "–" : `${e.onTimePercent} %`)), line("GPUs", (e) => `${e.gpus} × ${short(e.gpuType)}`),
        line("Cost", (e) => `${money(total(e))} ${of.currency}`)], "wrap"));
      if (!after && of.job.message) blocks.push(el("p", {}, of.job.message));
    }
    const percent = (p) => (p == null ? "–" : `${p} %`);
    const rows = of.affected.map((job) => el("tr", {}, el("td.wrap", {}, job.name), el("td", {}, shift(job.laterSeconds)), el("td.r", {}, percent(job.onTimeBeforePercent)), el("td.r", {}, percent(job.onTimePercent))));
    if (rows.length) blocks.push(el("h3", {}, "Jobs whose end moves"), table(["Job", "Ends", "On time before", "After"], rows));
    const more = of.own - of.affected.length;
    const { later, never = 0, sooner, meanLaterSeconds } = of.others;
    const others = (n, when) => n > 0 && `${n} ${n === 1 ? "job of another namespace ends" : "jobs of other namespaces end"} ${when}.`;
    const lines = [more > 0 && `And ${more} more of this namespace.`, others(later, `later, by ${duration(meanLaterSeconds)} on average`),
      others(never, "never"), others(sooner, "sooner"),
      !of.own && !later && !never && !sooner && "No job moves by a minute or more."].filter(Boolean);
    blocks.push(...lines.map((words) => el("p", {}, words)), el("p", {}, "All jobs: ", el("b", {}, costs(of.addedCostMicros, of.currency))));
    return blocks;
  }

  /** The job's times before and after on one axis. */
  picture(of, now) {
    const both = [of.before, of.job.expected];
    const ends = both.filter(Boolean).map((e) => second(e.finish.p90 ?? e.finish.p50) - now);
    const due = of.job.deadline && second(of.job.deadline);
    const axis = new Axis(now, Math.max(600, ...ends, due ? Math.min(due - now, 2 * Math.max(...ends)) : 0) * 1.05, 330);
    const marks = (e) => e ? [
      { kind: "tail", from: second(e.finish.p50), to: e.finish.p90 && second(e.finish.p90) }, { kind: "run", from: second(e.start.p50), to: second(e.finish.p50) },
      { kind: "end", from: second(e.finish.p10), to: e.finish.p90 && second(e.finish.p90) }, { kind: "median", from: second(e.finish.p50), to: second(e.finish.p50) }] : [];
    const risk = (e) => !e ? "high" : e.onTimePercent == null ? "none" : e.onTimePercent >= 90 ? "low" : e.onTimePercent >= 50 ? "medium" : "high";
    const lines = ["Before", "After"].map((name, n) => svg("g", {}, svg("text", { x: 0, y: 24 + 32 * n }, name),
      svg("g", { transform: "translate(64 0)" }, draw([...marks(both[n]), ...(n && due ? [{ kind: "due", from: due, to: due }] : [])], risk(both[n]), axis, 20 + 32 * n))));
    const x = 64 + axis.x(now);
    return svg("svg.compare", { viewBox: "0 0 414 78", role: "img", "aria-label": "Times before and after" }, svg("path.now", { d: `M${x} 4V68` }), lines, svg("text", { x, y: 78, "text-anchor": "middle" }, "now"));
  }
}

const shift = (later) => later >= NEVER ? "never" : later <= -NEVER ? "at all" : later < 0 ? `${duration(-later)} sooner` : `${duration(later)} later`;
const stamp = (at) => new Date(at).toLocaleString("en", { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false });
/** As an input of type datetime-local has it. */
const local = (at) => { const date = new Date(at); return new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16); };
/** Terms and their words. */
export const list = (facts) => el("dl", {}, facts.filter(Boolean).flatMap(([term, words]) => [el("dt", {}, term), el("dd", {}, words)]));
/** A table that scrolls by itself where it is too wide. */
export function table(head, rows, kind) {
  if (kind) rows.forEach((row) => row.querySelectorAll("td").forEach((cell) => cell.classList.add(kind)));
  return el("div.scroll", {}, el("table", {}, el("thead", {}, el("tr", {}, head.map((words, n) => el(rows[0]?.children[n]?.classList.contains("r") ? "th.r" : "th", { scope: "col" }, words)))), el("tbody", {}, rows)));
}
