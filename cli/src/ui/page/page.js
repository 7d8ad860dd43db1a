// The page: what is asked and when, views, keys.

import { ask, duration, problem } from "./lib.js";
import { Jobs } from "./jobs.js";
import { Detail } from "./detail.js";
import { Nodes, showPower } from "./cluster.js";

const EVERY = 5_000;
/** The API server is asked for whole lists of objects less often; they change once a minute. */
const OBJECTS_EVERY = 15_000;
const VIEWS = ["jobs", "power", "nodes"];

const at = (id) => document.getElementById(id);
const detail = new Detail(() => jobs.data, () => current().root.focus());
const jobs = new Jobs((row) => detail.explain(row));
const nodes = new Nodes(detail, () => jobs.data?.namespace);
let view = "jobs";
const current = () => (view === "nodes" ? nodes.list : jobs.list);

// One question of a kind at a time; a hidden page asks nothing.
const sources = {
  jobs: { path: "timeline", every: EVERY, got: (data) => { jobs.set(data); at("where").textContent = `namespace ${data.namespace}`; document.title = `${data.namespace} – ANDREAS`; } },
  power: { path: "power", every: OBJECTS_EVERY, got: (data) => { at("power").dataset.asked = ""; power = data; showPower(at("power"), data); } },
  nodes: { path: "nodes", every: OBJECTS_EVERY, got: (data) => nodes.set(data) },
};
let power = null;

async function refresh(name, now) {
  const source = sources[name];
  if (source.asking || (!now && source.asked && performance.now() - source.asked < source.every)) return;
  source.asking = true;
  source.asked = performance.now();
  try {
    const data = await ask(source.path);
    source.error = null;
    source.at = performance.now();
    source.got(data);
  } catch (error) {
    if (!error.kind) throw error;
    source.error = error;
  } finally {
    source.asking = false;
    status();
  }
}

/** How old the figures in sight are, and what is wrong. */
function status() {
  const { error, at: seen } = sources[view];
  const age = seen && (performance.now() - seen) / 1000;
  const state = at("state");
  const old = age > (3 * sources[view].every) / 1000;
  state.className = error ? "gone" : old ? "old" : "";
  const words = !seen ? (error ? "no figures" : "asking…") : error || old ? `figures are ${duration(age)} old` : `as of ${new Date(Date.now() - age * 1000).toLocaleTimeString("en", { hour12: false })}`;
  if (state.textContent !== words) state.textContent = words;
  const notes = { jobs, nodes }[view]?.data?.notes.join("\n") ?? "";
  const alert = at("alert");
  const text = error ? error.kind + error.message : notes;
  if (alert.dataset.text === text) return;
  alert.dataset.text = text;
  alert.hidden = !text;
  alert.className = error ? "" : "note";
  alert.replaceChildren(error ? problem(error) : notes);
}

function show(name) {
  view = name;
  for (const one of VIEWS) at(one).hidden = one !== name;
  document.querySelectorAll("nav button").forEach((button) => (button.dataset.view === name ? button.setAttribute("aria-current", "page") : button.removeAttribute("aria-current")));
  jobs.show();
  nodes.show();
  if (name === "power" && power) showPower(at("power"), power);
  refresh(name);
  status();
  if (name !== "power") current().root.focus({ preventScroll: true });
}

function tick() {
  if (!document.hidden) {
    refresh("jobs");
    refresh(view);
    status();
  }
}

function filter(words) {
  at("filter").value = words;
  jobs.filter(words);
  nodes.filter(words);
}

const again = () => {
  refresh(view, true);
  const row = detail.job && jobs.data?.rows.find((row) => row.name === detail.job);
  if (row) detail.explain(row);
};
const page = () => Math.floor(current().root.clientHeight / 32) - 1;
const KEYS = {
  j: () => current().move(1), ArrowDown: () => current().move(1), k: () => current().move(-1), ArrowUp: () => current().move(-1),
  PageDown: () => current().move(page()), PageUp: () => current().move(-page()), Home: () => current().move(-1e6), End: () => current().move(1e6),
  Enter: () => { const item = current().items[current().at()]; if (item) current().open(item); },
  "/": () => at("filter").focus(), 1: () => show("jobs"), 2: () => show("power"), 3: () => show("nodes"),
  "+": () => jobs.ahead(jobs.zoom - 1), "=": () => jobs.ahead(jobs.zoom - 1), "-": () => jobs.ahead(jobs.zoom + 1),
  w: () => whatIf(), r: again, "?": () => at("help").showModal(),
};

function whatIf() {
  const row = jobs.data?.rows.find((row) => row.name === (detail.job ?? jobs.list.selected));
  if (!row || view !== "jobs") return detail.whatIf();
  if (detail.job === row.name) return detail.root.querySelector("form input")?.focus();
  detail.explain(row).then(() => detail.root.querySelector("form input")?.focus());
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || at("help").open) return;
  const typing = event.target.closest("input, select, dialog");
  if (event.key === "Escape") {
    if (typing?.id === "filter") { filter(""); current().root.focus(); } else if (!detail.close()) filter("");
  } else if (typing?.id === "filter" && ["Enter", "ArrowDown"].includes(event.key)) {
    current().root.focus();
    if (current().at() < 0) current().move(0);
  } else if (!typing && KEYS[event.key] && !(event.key === "Enter" && event.target.closest("button"))) KEYS[event.key]();
  else return;
  event.preventDefault();
});
at("filter").addEventListener("input", (event) => filter(event.target.value));
at("whatif").addEventListener("click", whatIf);
at("keys").addEventListener("click", () => at("help").showModal());
document.querySelectorAll("nav button").forEach((button) => button.addEventListener("click", () => show(button.dataset.view)));
document.addEventListener("visibilitychange", tick);
setInterval(tick, 1000);
show("jobs");
