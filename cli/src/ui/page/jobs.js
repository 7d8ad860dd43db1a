// The jobs over time: what they did behind now, what is expected ahead.

import { List, cells, duration, el, short, svg } from "./lib.js";

const HOURS = [["auto", 0], ["6 h", 6], ["1 d", 24], ["3 d", 72], ["1 w", 168], ["30 d", 720]];
const STEPS = [300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
const BEHIND = 6;

/** From instants to pixels: `now` stands at a seventh of the width. */
export class Axis {
  constructor(now, horizon, width) {
    Object.assign(this, { now, horizon, width, begin: now - horizon / BEHIND, end: now + horizon });
  }
  x(at) { return Math.round(((Math.min(Math.max(at, this.begin), this.end) - this.begin) / (this.end - this.begin)) * this.width * 2) / 2; }
  /** Instants with words for them, in step with the local clock. */
  *ticks(most = this.width / 90) {
    const step = STEPS.find((step) => (this.end - this.begin) / step <= most) ?? STEPS.at(-1);
    const offset = -new Date(this.now * 1000).getTimezoneOffset() * 60;
    for (let at = Math.ceil((this.begin + offset) / step) * step - offset; at <= this.end; at += step) {
      const time = new Date(at * 1000);
      const midnight = !time.getHours() && !time.getMinutes();
      const day = time.toLocaleDateString("en", { weekday: "short", day: "numeric" });
      yield [this.x(at), step >= 86400 || midnight ? day : `${String(time.getHours()).padStart(2, "0")}:${String(time.getMinutes()).padStart(2, "0")}`];
    }
  }
}

/** The marks of a row, as `queue -o svg` has them. */
export function draw(marks, risk, axis, middle = 16) {
  const rect = (name, from, to, height) =>
    svg(`rect.${name}.${risk}`, { x: from, y: middle - height / 2, width: Math.max(to - from, 1), height });
  return marks.flatMap(({ kind, from, to }) => {
    // What lies beyond the axis has no place on it.
    if (from > axis.end || (to != null && to < axis.begin)) return [];
    const [a, b] = [axis.x(from), axis.x(to ?? axis.end)];
    switch (kind) {
      case "past": return svg("rect.past", { x: a, y: middle - 3, width: Math.max(b - a, 1), height: 6 });
      case "tail": case "run": case "done": return rect(kind, a, b, 12);
      case "median": return rect("median", a - 1, a + 2, 18);
      case "due": return svg("path.due", { d: `M${a} ${middle - 12}v24m-4-24h8l-4 6z` });
      case "start": return svg(`path.range.start.${risk}`, { d: `M${a} ${middle}H${b}` });
      default: return svg(`path.range.${risk}`, { d: `M${a} ${middle}H${b}M${a} ${middle - 3}v6M${b} ${middle - 3}v6` });
    }
  });
}

export class Jobs {
  data = null;
  zoom = 0;

  constructor(open) {
    this.lines = svg("svg", { "aria-hidden": "true" });
    this.axis = new Axis(0, 3600, 100);
    const root = document.getElementById("joblist");
    root.append(el("div.lines", {}, this.lines));
    this.list = new List(root, {
      height: 32, row: "row", name: "Jobs, the highest risk first", key: (row) => row.name, open,
      fill: (node, row) => this.fill(node, row), tip: (row) => `${row.name}, ${row.phase}\n${words(row).join("\n")}`,
    });
    const zoom = document.getElementById("zoom");
    HOURS.forEach(([name], n) => zoom.append(el("button", { onclick: () => this.ahead(n), "aria-pressed": n === 0 }, name)));
    const sizes = new ResizeObserver(() => this.show());
    sizes.observe(document.getElementById("axis"));
    sizes.observe(root);
  }

  /** Shows so much time ahead. */
  ahead(n) {
    this.zoom = Math.max(0, Math.min(HOURS.length - 1, n));
    document.querySelectorAll("#zoom button").forEach((button, at) => button.setAttribute("aria-pressed", at === this.zoom));
    this.show();
  }

  set(data) { this.data = data; this.show(); }
  filter(words) { this.words = words.toLowerCase(); this.show(); }

  show() {
    const { data } = this;
    if (!data || document.getElementById("jobs").hidden) return;
    const at = document.getElementById("axis");
    this.axis = new Axis(data.now, HOURS[this.zoom][1] * 3600 || data.horizon, at.clientWidth);
    const words = this.words;
    const rows = words ? data.rows.filter((row) => text(row).includes(words)) : data.rows;
    this.ruler(at);
    this.list.set(rows);
    const count = (...risks) => data.rows.filter((row) => risks.includes(row.risk)).length;
    const parts = [`${data.open} open`];
    if (count("late")) parts.push(`${count("late")} late`);
    if (count("high", "medium")) parts.push(`${count("high", "medium")} at risk`);
    parts.push(`${data.waiting} wait in the whole cluster`);
    if (rows.length < data.open) parts.push(`${rows.length} shown`);
    document.getElementById("summary").textContent = parts.join(" · ");
  }

  /** Hours over the rows and behind them. */
  ruler(at) {
    const { axis } = this;
    const [now, height] = [axis.x(axis.now), this.list.root.clientHeight];
    const ticks = [...axis.ticks()].filter(([x]) => x > 18 && x < axis.width - 14);
    at.replaceChildren(
      ...ticks.filter(([x]) => Math.abs(x - now) > 34).map(([x, words]) => svg("text", { x, y: 20, "text-anchor": "middle" }, words)),
      svg("text.nowtext", { x: now, y: 20, "text-anchor": "middle" }, "now"),
    );
    const left = at.getBoundingClientRect().left - this.list.root.getBoundingClientRect().left;
    this.lines.setAttribute("width", axis.width);
    this.lines.setAttribute("height", height);
    this.lines.style.marginLeft = left + "px";
    this.lines.replaceChildren(
      ...ticks.map(([x]) => svg("path.tick", { d: `M${x} 0V${height}` })), svg("path.now", { d: `M${now} 0V${height}` }));
  }

  fill(node, row) {
    cells(node, [["", "name"], [row.gpuType || row.expected ? `${row.gpus} × ${short(row.gpuType ?? row.expected?.gpuType)}` : row.gpus, "r dim"], [onTime(row), `r ${row.risk}`]]);
    node.children[0].replaceChildren(row.name, el("span.phase", {}, row.phase));
    const picture = node.children[3] ?? node.appendChild(svg("svg", { role: "gridcell" }));
    picture.setAttribute("aria-label", words(row).join("; "));
    picture.replaceChildren(...draw(row.marks, row.risk, this.axis));
  }
}

const text = (row) => [row.name, row.phase, row.reason, row.gpuType, row.expected?.gpuType, row.risk].join(" ").toLowerCase();

/** The probability in a word. */
export function onTime(row) {
  if (row.risk === "late") return "late";
  if (row.risk === "none") return "–";
  return row.expected?.onTimePercent == null ? "no end" : `${row.expected.onTimePercent} %`;
}

function words(row) {
  const all = row.expected ? [`Start: ${row.startText}`, `End: ${row.endText}`] : ["No end is expected"];
  if (row.dueText) all.push(`Deadline: ${row.dueText}, ${row.risk === "late" ? "late" : `on time with ${onTime(row)}`}`);
  if (row.reason && row.phase !== "Running") all.push(`Waits: ${row.message || row.reason}`);
  return all;
}

/** How long ago, or ahead. */
export const from = (at, now) => (at < now ? `${duration(now - at)} ago` : `in ${duration(at - now)}`);
