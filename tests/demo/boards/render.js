// Draws a Grafana dashboard from a Prometheus' answers: stat, gauge, bar gauge, time series, state timeline, table; thresholds,
// value mappings, units, overrides and transformations as far as our boards use them. It stands for Grafana, whose licence keeps
// it out of this project's tests. INPUT: {board, prometheus, start, end, variables}. When all is drawn, the document's element has
// data-done, and each panel data-state: data, none or error.
"use strict";
const {board, prometheus, start, end, variables} = INPUT;
const UNIT = 30, GAP = 8, WIDTH = document.documentElement.clientWidth - 16;
const PALETTE = ["#3871dc", "#56a64b", "#e0852b", "#b877d9", "#e02f44", "#1f9e9e", "#c9a227", "#7a6f9b", "#8ab8ff", "#96d98d", "#ffb357", "#ca95e5"];
const NAMED = {"green": "#56a64b", "dark-green": "#37872d", "red": "#e02f44", "orange": "#ff9830", "yellow": "#e0b400", "blue": "#3274d9",
  "light-blue": "#8ab8ff", "dark-blue": "#1f60c4", "purple": "#a352cc", "text": "#9aa0a6"};
const STEP = Math.max(1, Math.round((end - start) / 240));
const color = name => NAMED[name] || name;

function filled(query) {
  const range = Math.round(end - start) + "s";
  const fixed = {"__rate_interval": Math.max(4 * INPUT.scrape, 30) + "s", "__range": range, "__interval": STEP + "s"};
  return query.replace(/\$(\w+)/g, (all, name) => fixed[name] ?? variables[name] ?? all);
}
async function ask(path, parameters) {
  const answer = await fetch(`${prometheus}/api/v1/${path}?` + new URLSearchParams(parameters));
  const said = await answer.json();
  if (said.status !== "success") throw new Error(said.error);
  return said.data;
}
function legend(target, labels) {
  const format = target.legendFormat;
  if (format && format !== "__auto") return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? "");
  return Object.entries(labels).filter(([name]) => name !== "__name__").map(([, value]) => value).join(" ") || "value";
}

// ---- values as people read them
function scaled(value, base, names) {
  let n = 0;
  while (Math.abs(value) >= base && n < names.length - 1) { value /= base; n++; }
  return digits(value) + " " + names[n];
}
function digits(value, decimals) {
  if (decimals !== undefined) return value.toFixed(decimals);
  const size = Math.abs(value);
  return size >= 100 || Number.isInteger(value) ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : String(+value.toPrecision(2));
}
function time(seconds) {
  const sign = seconds < 0 ? "-" : "", s = Math.abs(seconds);
  if (s < 1) return sign + digits(s * 1000) + " ms";
  for (const [name, length] of [["d", 86400], ["h", 3600], ["min", 60]]) if (s >= length) return sign + digits(s / length) + " " + name;
  return sign + digits(s) + " s";
}
function shown(value, field) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const mapped = mapping(value, field);
  if (mapped) return mapped.text;
  switch (field.unit) {
    case "percentunit": return digits(100 * value) + " %";
    case "percent": return digits(value) + " %";
    case "watt": return scaled(value, 1000, ["W", "kW", "MW"]);
    case "joule": return scaled(value, 1000, ["J", "kJ", "MJ", "GJ"]);
    case "kwatth": return digits(value, field.decimals) + " kWh";
    case "hertz": return scaled(value, 1000, ["Hz", "kHz", "MHz", "GHz"]);
    case "bytes": return scaled(value, 1024, ["B", "KiB", "MiB", "GiB"]);
    case "decmbytes": return scaled(value * 1e6, 1000, ["B", "kB", "MB", "GB"]);
    case "Bps": return scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s"]);
    case "celsius": return digits(value) + " °C";
    case "s": return time(value);
    case "dateTimeAsIso": return new Date(value).toISOString().slice(11, 19);
    case "reqps": case "ops": return digits(value) + "/s";
    default: return digits(value, field.decimals);
  }
}
function mapping(value, field) {
  for (const map of field.mappings || []) if (map.type === "value" && map.options[String(value)]) return map.options[String(value)];
  return null;
}
function tone(value, field, otherwise) {
  const mapped = mapping(value, field);
  if (mapped && mapped.color) return color(mapped.color);
  let found = otherwise;
  for (const step of field.thresholds?.steps || []) if (step.value === null || value >= step.value) found = color(step.color);
  return found;
}

// ---- drawing
function element(name, attributes, parent) {
  const svg = ["svg", "path", "line", "rect", "text", "g"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) key === "text" ? made.textContent = value : made.setAttribute(key, value);
  if (parent) parent.appendChild(made);
  return made;
}
function clock(seconds) { return new Date(seconds * 1000).toISOString().slice(11, 16); }
function axis(svg, width, bottom, left, right) {
  const place = at => left + (at - start) / (end - start) * (width - left - right);
  const step = [15, 30, 60, 120, 300, 600, 1800, 3600, 7200].find(s => (end - start) / s <= Math.max(2, (width - left) / 95)) || 14400;
  for (let at = Math.ceil(start / step) * step; at < end; at += step) {
    element("line", {x1: place(at), x2: place(at), y1: 4, y2: bottom, stroke: "#eef0f1"}, svg);
    element("text", {x: place(at), y: bottom + 12, "text-anchor": "middle", text: step < 60 ? new Date(at * 1000).toISOString().slice(11, 19) : clock(at)}, svg);
  }
  return place;
}
function marks(svg, place, bottom, annotations) {
  for (const {at, color: tint} of annotations) if (at >= start && at <= end) {
    element("line", {x1: place(at), x2: place(at), y1: 4, y2: bottom, stroke: tint, "stroke-dasharray": "3 3", opacity: 0.7}, svg);
  }
}
function legendOf(box, series) {
  const line = element("div", {class: "legend"}, box);
  for (const {name, tint} of series) {
    const item = element("span", {}, line);
    element("i", {style: `background:${tint}`}, item);
    item.append(name);
  }
}
function timeseries(box, panel, series, width, height, annotations) {
  const field = panel.fieldConfig.defaults, stacked = field.custom?.stacking?.mode === "normal";
  const bottom = height - 64, left = 58, right = 10;
  const svg = element("svg", {width, height: height - 44}, box);
  const place = axis(svg, width, bottom, left, right);
  let low = field.min ?? Infinity, high = -Infinity;
  const base = new Map();
  for (const one of series) for (const point of one.values) {
    const under = stacked ? base.get(point[0]) || 0 : 0;
    point[2] = under; point[3] = under + point[1];
    base.set(point[0], point[3]);
    high = Math.max(high, point[3]); low = Math.min(low, point[3]);
  }
  if (!(high > low)) high = low + (Math.abs(low) || 1);
  // Round ticks, as Grafana's.
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 2.5, 5, 10].map(one => one * power).find(one => one >= rough * 0.999);
  low = Math.floor(low / tick) * tick; high = Math.ceil(high / tick + 0.05) * tick;
  const y = value => bottom - (value - low) / (high - low) * (bottom - 6);
  for (let n = 0; n <= Math.round((high - low) / tick); n++) {
    const value = low + n * tick;
    element("line", {x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "#eef0f1"}, svg);
    element("text", {x: left - 5, y: y(value) + 3, "text-anchor": "end", text: shown(+value.toPrecision(4), {...field, mappings: []})}, svg);
  }
  for (const step of field.thresholds?.steps || []) if (step.value !== null && step.value < high && step.value > low) {
    element("line", {x1: left, x2: width - right, y1: y(step.value), y2: y(step.value), stroke: color(step.color), "stroke-dasharray": "6 4"}, svg);
  }
  for (const one of series) {
    const pieces = [];
    for (const point of one.values) {
      const last = pieces.at(-1);
      if (last && point[0] - last.at(-1)[0] <= STEP * 1.5) last.push(point); else pieces.push([point]);
    }
    for (const piece of pieces) {
      const top = piece.map(([at, , , value]) => `${place(at)},${y(value)}`);
      const floor = piece.map(([at, , under]) => `${place(at)},${y(stacked ? under : Math.max(low, 0))}`).reverse();
      element("path", {d: `M${[...top, ...floor].join("L")}Z`, fill: one.tint, opacity: stacked ? 0.35 : series.length > 4 ? 0 : 0.08}, svg);
      element("path", {d: `M${top.join("L")}`, fill: "none", stroke: one.tint, "stroke-width": 1.4, "stroke-linecap": "round"}, svg);
    }
  }
  marks(svg, place, bottom, annotations);
  legendOf(box, series);
}
function timeline(box, panel, series, width, height, annotations) {
  const field = panel.fieldConfig.defaults, left = Math.min(200, Math.max(70, 6.2 * Math.max(...series.map(s => s.name.length)))), right = 10;
  const svg = element("svg", {width, height: height - 44}, box), bottom = height - 62;
  const place = axis(svg, width, bottom, left, right), each = (bottom - 8) / series.length;
  series.forEach((one, n) => {
    const top = 6 + n * each, tall = Math.max(2, each * 0.8);
    if (each >= 9 || n % Math.ceil(9 / each) === 0) {
      element("text", {x: left - 5, y: top + tall / 2 + 3, "text-anchor": "end", text: one.name.slice(0, 32)}, svg);
    }
    let from = null;
    one.values.forEach(([at, value], i) => {
      if (from === null) from = at;
      const next = one.values[i + 1];
      if (next && next[1] === value && next[0] - at <= STEP * 1.5) return;
      const wide = Math.max(1, place(Math.min(at + STEP, end)) - place(from));
      element("rect", {x: place(from), y: top, width: wide, height: tall, fill: tone(value, field, one.tint), opacity: 0.8}, svg);
      const text = shown(value, field);
      if (wide > 7 * text.length + 6 && tall > 9) element("text", {x: place(from) + 4, y: top + tall / 2 + 3.5, style: "fill:#fff", text}, svg);
      from = null;
    });
  });
  marks(svg, place, bottom, annotations);
  const states = Object.values(field.mappings?.[0]?.options || {}).map(o => ({name: o.text, tint: color(o.color)}));
  legendOf(box, states);
}
function gauge(box, panel, value, width, height) {
  const field = panel.fieldConfig.defaults, min = field.min ?? 0, max = field.max ?? 1;
  const svg = element("svg", {width, height: height - 30}, box), r = Math.min(width / 2.6, height - 56), cx = width / 2, cy = height - 46;
  const at = share => [cx - r * Math.cos(Math.PI * share), cy - r * Math.sin(Math.PI * share)];
  const arc = (a, b) => `M${at(a)}A${r},${r} 0 0 1 ${at(b)}`;
  const share = v => Math.min(1, Math.max(0, (v - min) / (max - min)));
  element("path", {d: arc(0, 1), stroke: "#e9edf2", "stroke-width": 16, fill: "none"}, svg);
  element("path", {d: arc(0, share(value)), stroke: tone(value, field, PALETTE[0]), "stroke-width": 16, fill: "none"}, svg);
  const text = element("text", {x: cx, y: cy - 2, "text-anchor": "middle", text: shown(value, field)}, svg);
  text.style.fontSize = "22px"; text.style.fill = tone(value, field, PALETTE[0]);
}
function bars(box, panel, series) {
  const field = panel.fieldConfig.defaults;
  const max = field.max ?? Math.max(...series.map(one => one.last), 1e-9);
  for (const one of series.slice(0, Math.floor((box.clientHeight - 26) / 17))) {
    const line = element("div", {class: "bar"}, box);
    element("div", {text: one.name}, line);
    const track = element("div", {class: "track"}, line);
    element("div", {style: `width:${Math.min(100, 100 * one.last / max)}%;background:${tone(one.last, field, PALETTE[0])}`}, track);
    element("div", {text: shown(one.last, field)}, line);
  }
}
function rows(panel, answers) {
  // Grafana's merge: rows with the same labels are one.
  const merged = [];
  for (const {target, result} of answers) for (const {metric, value} of result) {
    const name = answers.length > 1 ? `Value #${target.refId}` : "Value";
    const labels = Object.fromEntries(Object.entries(metric).filter(([key]) => key !== "__name__"));
    const same = merged.find(row => Object.entries(labels).every(([k, v]) => row[k] === undefined || row[k] === v)
      && Object.keys(labels).some(k => row[k] === labels[k]));
    Object.assign(same || merged[merged.push({}) - 1], labels, {[name]: Number(value[1])});
  }
  return merged;
}
function table(box, panel, answers) {
  const organize = panel.transformations.find(t => t.id === "organize").options, merged = rows(panel, answers);
  const columns = [...new Set(merged.flatMap(Object.keys))].filter(name => !organize.excludeByName[name])
    .sort((a, b) => (organize.indexByName[a] ?? 99) - (organize.indexByName[b] ?? 99));
  const head = element("tr", {}, element("table", {}, box)), body = head.parentNode;
  for (const name of columns) element("th", {text: organize.renameByName[name] ?? name}, head);
  const sort = panel.options.sortBy?.[0]?.displayName, key = columns.find(name => (organize.renameByName[name] ?? name) === sort);
  if (key) merged.sort((a, b) => (a[key] ?? Infinity) > (b[key] ?? Infinity) ? 1 : -1);
  for (const row of merged.slice(0, Math.floor((box.clientHeight - 46) / 20))) {
    const line = element("tr", {}, body);
    for (const name of columns) {
      const field = {...panel.fieldConfig.defaults};
      const own = panel.fieldConfig.overrides.find(o => o.matcher.options === (organize.renameByName[name] ?? name));
      for (const {id, value} of own?.properties || []) field[id] = value;
      const value = row[name], cell = element("td", {}, line), kind = field["custom.cellOptions"]?.type;
      cell.textContent = typeof value === "number" ? shown(value, field) : value ?? "";
      if (kind === "color-text" && typeof value === "number") cell.style.color = tone(value, field, "inherit");
      if (kind === "gauge" && typeof value === "number") {
        cell.innerHTML = `<div style="display:flex;gap:6px"><div class="track" style="width:70px"><div style="width:${100 * Math.min(1, value)}%;background:${PALETTE[1]}"></div></div>${shown(value, field)}</div>`;
      }
    }
  }
  return merged.length;
}
async function draw(panel, box, annotations) {
  const width = box.clientWidth - 16, height = box.clientHeight, instant = !["timeseries", "state-timeline"].includes(panel.type);
  const answers = await Promise.all(panel.targets.map(async target => {
    const query = filled(target.expr);
    const data = instant ? await ask("query", {query, time: end}) : await ask("query_range", {query, start, end, step: STEP});
    return {target, result: data.result};
  }));
  if (panel.type === "table") return table(box, panel, answers);
  const series = answers.flatMap(({target, result}) => result.map(({metric, value, values}) => {
    const points = (values || [value]).map(([at, text]) => [at, Number(text)]).filter(([, number]) => Number.isFinite(number));
    return {name: legend(target, metric), values: points, last: points.at(-1)?.[1]};
  })).filter(one => one.values.length);
  series.forEach((one, n) => one.tint = PALETTE[n % PALETTE.length]);
  if (!series.length) return 0;
  if (panel.type === "stat") {
    element("div", {class: "stat", style: `color:${tone(series[0].last, panel.fieldConfig.defaults, "#24292e")}`, text: shown(series[0].last, panel.fieldConfig.defaults)}, box);
  } else if (panel.type === "gauge") gauge(box, panel, series[0].last, width, height);
  else if (panel.type === "bargauge") bars(box, panel, series);
  else if (panel.type === "state-timeline") timeline(box, panel, series, width, height, annotations);
  else timeseries(box, panel, series, width, height, annotations);
  return series.length;
}
async function annotate() {
  const found = [];
  for (const one of (board.annotations?.list || []).filter(a => a.enable)) {
    const data = await ask("query_range", {query: filled(one.expr), start, end, step: Math.max(STEP, 5)});
    for (const {values} of data.result) {
      let last = -Infinity;
      for (const [at] of values) { if (at - last > 2 * Math.max(STEP, 5)) found.push({at, color: color(one.iconColor), name: one.name}); last = at; }
    }
  }
  return found;
}
async function main() {
  document.getElementById("name").textContent = board.title;
  const whole = document.getElementById("board"), annotations = await annotate();
  let tall = 0;
  for (const panel of board.panels) {
    const {x, y, w, h} = panel.gridPos;
    const box = element("div", {class: panel.type === "row" ? "row" : "panel", "data-title": panel.title}, whole);
    Object.assign(box.style, {left: x * WIDTH / 24 + GAP / 2 + "px", top: y * (UNIT + GAP) + "px", width: w * WIDTH / 24 - GAP + "px", height: h * (UNIT + GAP) - GAP + "px"});
    tall = Math.max(tall, (y + h) * (UNIT + GAP));
    element("div", {class: "title", text: panel.title}, box);
    if (panel.type === "row") continue;
    try {
      const count = await draw(panel, box, annotations);
      box.dataset.state = count ? "data" : "none";
      if (!count) element("div", {class: "none", text: "No data"}, box);
    } catch (error) {
      box.dataset.state = "error"; box.dataset.error = error.message;
      element("div", {class: "none error", text: error.message}, box);
    }
  }
  whole.style.height = tall + "px";
  document.documentElement.dataset.height = tall + 60;
  document.documentElement.dataset.done = "true";
}
main();
