// The cluster: power over the coming day, and who holds which GPU.

import { List, cells, duration, el, money, power, second, short, svg } from "./lib.js";
import { Axis, from } from "./jobs.js";
import { list, table } from "./detail.js";

const DAY = 86_400;

/** Budget, draw and price of energy from now on. */
export function showPower(root, of) {
  const { state, now, currency } = of;
  const tile = (words, value, note) => el("div.tile", {}, el("span", {}, words), el("b", {}, value), el("span", {}, note));
  const price = of.price[0]?.[1];
  const next = of.price[1];
  const over = state?.budgetWatts != null && state.drawnWatts > state.budgetWatts;
  root.replaceChildren(
    el("div.tiles", {},
      tile("Drawn now", state ? power(state.drawnWatts) : "not said yet", state ? `seen ${duration(now - second(state.time))} ago; without any job ${power(state.idleWatts)}` : ""),
      tile("Budget now", of.budget[0][1] == null ? "no limit" : power(of.budget[0][1]), of.planned[0][1] == null ? of.scope : `${of.scope}; plans use at most ${power(of.planned[0][1])}`),
      tile("Next budget", of.budget[1] ? (of.budget[1][1] == null ? "no limit" : power(of.budget[1][1])) : "the same", of.budget[1] ? from(of.budget[1][0], now) : "all day"),
      tile("Energy now", price == null ? "–" : `${money(price)} ${currency}`, `per kWh, PUE included${next ? `; ${money(next[1])} ${from(next[0], now)}` : ""}`),
      of.met && tile("Budget met", of.met[0] ? "yes" : "no", of.met[1])),
    el("div.chart", {}, chart(of, over, Math.max(600, root.clientWidth - 80))));
}

function chart(of, over, width) {
  const { state, now } = of;
  const [left, top, bottom, low] = [70, 24, 316, 440];
  const axis = new Axis(now, DAY, width - left - 20);
  // All of it lies ahead.
  axis.begin = now;
  const x = (at) => left + axis.x(at);
  const ends = (steps) => steps.map(([at, value], n) => [at, steps[n + 1]?.[0] ?? now + DAY, value]).filter(([, , value]) => value != null);
  const watts = [...of.budget.map(([, value]) => value ?? 0), state?.drawnWatts ?? 0, state?.idleWatts ?? 0];
  const round = 10 ** Math.floor(Math.log10(Math.max(...watts, 1) * 1.15));
  const step = [1, 2, 5, 10].map((n) => (n * round) / 5).find((step) => (Math.max(...watts, 1) * 1.15) / step <= 6);
  const most = Math.ceil((Math.max(...watts, 1) * 1.1) / step) * step;
  const y = (value) => bottom - ((bottom - top) * value) / most;
  const dearest = Math.max(...of.price.map(([, value]) => value), 1) * 1.25;
  const yPrice = (value) => low - ((low - bottom - 40) * value) / dearest;
  const level = (name, value, words, below) => [svg(`path.${name}`, { d: `M${x(now)} ${y(value)}H${x(now + DAY)}` }),
    svg("text.label", { x: x(now + DAY) - 6, y: y(value) + (below ? 16 : -7), "text-anchor": "end" }, words)];
  const budget = ends(of.budget);
  const near = state && budget.length && Math.abs(y(state.drawnWatts) - y(budget.at(-1)[2])) < 18;
  return svg("svg", { viewBox: `0 0 ${width} 480`, role: "img", "aria-label": "Power budget and price of energy over the coming day" },
    Array.from({ length: Math.round(most / step) + 1 }, (_, n) => n * step).map((value) => [
      svg("path.tick", { d: `M${left} ${y(value)}H${width - 20}` }), svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, power(value))]),
    ends(of.planned).map(([a, b, value]) => svg("rect.planned", { x: x(a), y: y(value), width: x(b) - x(a), height: bottom - y(value) })),
    budget.length > 0 && svg("path.budget", { d: budget.map(([a, b, value], n) => `${n && budget[n - 1][1] === a ? "L" : "M"}${x(a)} ${y(value)}H${x(b)}`).join("") }),
    budget.map(([a, b, value]) => x(b) - x(a) > 90 && svg("text.label", { x: x(a) + 6, y: y(value) - 7 }, `budget ${power(value)}`)),
    state && level(over ? "drawn.over" : "drawn", state.drawnWatts, `drawn now ${power(state.drawnWatts)}`, near), state && level("idle", state.idleWatts, `without any job ${power(state.idleWatts)}`, true),
    ends(of.price).map(([a, b, value]) => [svg("rect.price", { x: x(a), y: yPrice(value), width: Math.max(1, x(b) - x(a) - 1), height: low - yPrice(value) }),
      x(b) - x(a) > 46 && svg("text.label", { x: x(a) + 6, y: yPrice(value) - 6 }, money(value))]),
    svg("text", { x: left - 8, y: low - 22, "text-anchor": "end" }, of.currency), svg("text", { x: left - 8, y: low - 6, "text-anchor": "end" }, "per kWh"),
    svg("path.tick", { d: `M${left} ${low}H${width - 20}` }),
    [...axis.ticks()].filter(([at]) => at < width - left - 40).map(([at, words]) => svg("text", { x: left + at, y: low + 22, "text-anchor": at < 20 ? "start" : "middle" }, words)));
}

export class Nodes {
  constructor(detail, namespace) {
    this.detail = detail;
    this.namespace = namespace;
    this.list = new List(document.getElementById("nodelist"), {
      height: 32, row: "node", name: "Nodes", key: (node) => node.name, open: (node) => this.open(node),
      fill: (row, node) => this.fill(row, node),
      tip: (node, at) => at.gpu ? gpuWords(at.gpu) : [node.name, node.excludedMessage ?? node.health, ...node.holders.map((one) => `${one.job ?? one.pod}: ${one.gpus} GPUs, ${power(one.watts)}`)].join("\n"),
    });
  }

  set(data) { this.data = data; this.show(); }
  filter(words) { this.words = words.toLowerCase(); this.show(); }

  show() {
    if (!this.data || document.getElementById("nodes").hidden) return;
    const { items } = this.data;
    const text = (node) => [node.name, node.gpuType, node.health, ...node.holders.map((one) => one.job ?? one.pod)].join(" ").toLowerCase();
    this.list.set(this.words ? items.filter((node) => text(node).includes(this.words)) : items);
    const sum = (of) => items.reduce((all, node) => all + (of(node) ?? 0), 0);
    document.getElementById("nodesummary").textContent = `${sum((n) => n.gpus)} GPUs on ${items.length} nodes: ${sum((n) => n.held)} held, ${sum((n) => n.free)} free, ${sum((n) => n.resting)} resting, ${sum((n) => n.unhealthy)} unhealthy; they draw ${power(sum((n) => n.gpuWatts))}`;
  }

  kind(gpu) { return gpu.state === "Held" && gpu.holder?.startsWith(`${this.namespace()}/`) ? "held own" : gpu.state.toLowerCase(); }

  fill(row, node) {
    cells(row, [[node.name], [short(node.gpuType), "dim"], [""], [power(node.gpuWatts), "r"], [node.health, node.healthy ? "dim" : "high"],
      [node.holders.map((one) => `${one.job ?? one.pod} (${one.gpus})`).join(", "), "dim"]]);
    const box = el("span.gpus", { role: "img", "aria-label": `${node.held} of ${node.gpus} GPUs held` });
    for (const gpu of node.devices) box.append(Object.assign(el("i"), { className: `g ${this.kind(gpu)}`, gpu }));
    // A machine that is off reports none.
    if (!node.devices.length) box.append(`${node.gpus} GPUs`);
    row.children[2].replaceChildren(box);
  }

  open(node) {
    const rows = node.devices.map((gpu) => el("tr", {}, el("td", {}, Object.assign(el("i"), { className: `g ${this.kind(gpu)}` }), ` ${gpu.uuid.slice(0, 12)}`),
      el("td.wrap", {}, [gpu.holder ?? gpu.state.toLowerCase(), ...gpu.problems].join(", ")), el("td.r", {}, power(gpu.watts)), el("td.r", {}, power(gpu.limitWatts))));
    this.detail.job = null;
    this.detail.shown = {};
    this.detail.show(node.name, node.health, list([["Type", node.gpuType ?? "not known"], node.excludedMessage && ["Excluded", node.excludedMessage],
      node.gpuWatts != null && ["Power", `GPUs ${power(node.gpuWatts)}`], node.agentVersion && ["Agent", node.agentVersion]]), table(["GPU", "Holder", "Power", "Limit"], rows));
  }
}

const gpuWords = (gpu) => [gpu.uuid, gpu.holder ?? gpu.state, gpu.watts != null && power(gpu.watts), gpu.limitWatts && `limit ${power(gpu.limitWatts)}`, ...gpu.problems].filter(Boolean).join("\n");
