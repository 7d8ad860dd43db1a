// Small tools: questions, amounts in words, elements, long lists.

// The part of the address behind # is never sent; it is taken out of the address, and lasts as long as this tab.
if (location.hash.length > 1) {
  sessionStorage.setItem("secret", location.hash.slice(1));
  history.replaceState(null, "", "/");
}

/** Asks the command that serves this page. Rejects with the error's words and `kind`. */
export async function ask(path, body) {
  let answer, json;
  try {
    answer = await fetch("/api/" + path, {
      method: body ? "POST" : "GET",
      headers: { Authorization: "Bearer " + sessionStorage.getItem("secret"), "Content-Type": "application/json" },
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(90_000),
    });
    json = await answer.json();
  } catch {
    throw Object.assign(new Error("The command that serves this page does not answer: start kubectl andreas ui again, and open the address that it prints."), { kind: "gone" });
  }
  if (!answer.ok) throw Object.assign(new Error(json.message), { kind: json.kind });
  return json;
}

const TITLES = {
  gone: "The command has ended", secret: "This address is not valid", right: "A right is missing",
  credentials: "The credentials are not accepted", failed: "The cluster cannot be asked",
};
/** What went wrong, as a block. */
export const problem = (error) => el("div.problem", {}, el("b", {}, TITLES[error.kind] ?? "Not answered"), error.message);

/** An element: `el("p.dim", {title: "x"}, "text", child)`. What the cluster says becomes text, never markup. */
export function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  return fill(node, attributes, children);
}

/** The same of SVG. */
export function svg(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  return fill(node, attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return node;
}

const two = (n) => String(Math.floor(n)).padStart(2, "0");
/** `2d04h`, `1h05m`, `12m30s`, `45s`. */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${two((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d${two((s % 86400) / 3600)}h`;
}
/** `420 W`, `12.3 kW`, `1.25 MW`. */
export function power(watts) {
  if (watts == null) return "–";
  if (Math.abs(watts) < 9999.5) return `${Math.round(watts)} W`;
  return Math.abs(watts) < 999500 ? `${(watts / 1e3).toFixed(1)} kW` : `${(watts / 1e6).toFixed(2)} MW`;
}
/** Millionths of a currency: `0.31`, `0.0042`. */
export function money(micros) {
  const amount = micros / 1e6;
  return amount.toFixed(Math.abs(amount) < 0.095 && micros !== 0 ? 4 : 2);
}
/** `costs 0.10 EUR`, or `saves`. */
export const costs = (micros, currency) => `${micros < 0 ? "saves" : "costs"} ${money(Math.abs(micros))} ${currency}`;
/** `NVIDIA-A100-SXM4-80GB` as `A100`. */
export const short = (type) => type?.split("-").find((part) => !["NVIDIA", "Tesla", ""].includes(part)) ?? type ?? "";
/** Seconds since the epoch of an RFC 3339 instant. */
export const second = (text) => Date.parse(text) / 1000;
/** `in 1h05m (58m00s to 1h20m)` of an interval. */
export function interval(of, now) {
  const at = (text) => second(text) - now;
  const words = (s) => (s < 0 ? `${duration(-s)} ago` : `in ${duration(s)}`);
  const [low, high] = [Math.max(0, at(of.p10)), of.p90 && Math.max(0, at(of.p90))];
  if (of.p90 && high - low < 60) return words(at(of.p50));
  return `${words(at(of.p50))} (${duration(low)} to ${of.p90 ? duration(high) : "never"})`;
}
/** `bert, 2 jobs of other namespaces`. */
export function names(ahead) {
  const parts = [...(ahead.names ?? [])];
  const more = ahead.own - parts.length;
  if (more > 0) parts.push(`${more} more of this namespace`);
  if (ahead.others) parts.push(ahead.others === 1 ? "1 job of another namespace" : `${ahead.others} jobs of other namespaces`);
  return parts.join(", ") || "no job";
}

/** A list of which only the rows in sight are elements. `fill(row, item)` writes a row's cells. */
export class List {
  items = [];
  selected = null;
  #rows = [];

  constructor(root, { height, name, row, key, fill, open, tip }) {
    Object.assign(this, { root, height, key, fill, open });
    fillRoot(root, name);
    this.space = root.appendChild(el("div.space"));
    this.make = () => root.appendChild(el(`div.item.${row}`, { role: "row" }));
    root.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw(true)).observe(root);
    root.addEventListener("click", (event) => {
      const item = event.target.closest(".item")?.item;
      if (item) this.select(item, true);
    });
    const box = document.getElementById("tip");
    root.addEventListener("pointermove", (event) => {
      const item = event.target.closest(".item")?.item;
      box.hidden = !item || !tip;
      if (box.hidden) return;
      box.textContent = tip(item, event.target);
      box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
      box.style.top = Math.min(event.clientY + 16, innerHeight - box.offsetHeight - 8) + "px";
    });
    root.addEventListener("pointerleave", () => (box.hidden = true));
  }

  /** Shows these; the selection stays with its row. */
  set(items) {
    this.items = items;
    this.space.style.height = items.length * this.height + "px";
    this.root.setAttribute("aria-rowcount", items.length);
    this.draw(true);
  }

  at() { return this.items.findIndex((item) => this.key(item) === this.selected); }

  select(item, open) {
    this.selected = item && this.key(item);
    this.draw(true);
    if (open && item) this.open(item);
  }

  /** Moves the selection by so many rows, into sight. */
  move(by) {
    if (!this.items.length) return;
    const at = this.at();
    const to = Math.max(0, Math.min(this.items.length - 1, at < 0 ? 0 : at + by));
    const [top, page] = [to * this.height, this.root.clientHeight];
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (top + this.height > this.root.scrollTop + page) this.root.scrollTop = top + this.height - page;
    this.select(this.items[to]);
  }

  draw(changed) {
    const count = Math.ceil(this.root.clientHeight / this.height) + 6;
    const first = Math.max(0, Math.floor(this.root.scrollTop / this.height) - 3);
    if (count !== this.#rows.length) {
      this.#rows.splice(count).forEach((row) => row.remove());
      while (this.#rows.length < count) this.#rows.push(this.make());
      changed = true;
    }
    let active = null;
    for (let index = first; index < first + count; index++) {
      const row = this.#rows[index % count];
      const item = this.items[index];
      row.hidden = !item;
      if (!item) { row.item = null; continue; }
      const selected = this.key(item) === this.selected;
      if (changed || row.item !== item) {
        row.item = item;
        row.id = `${this.root.id}-${index}`;
        row.style.transform = `translateY(${index * this.height}px)`;
        row.setAttribute("aria-rowindex", index + 1);
        row.setAttribute("aria-selected", selected);
        this.fill(row, item);
      }
      if (selected) active = row.id;
    }
    if (active) this.root.setAttribute("aria-activedescendant", active);
    else this.root.removeAttribute("aria-activedescendant");
  }
}

function fillRoot(root, name) {
  for (const [key, value] of Object.entries({ role: "grid", tabindex: 0, "aria-label": name })) root.setAttribute(key, value);
}

/** Sets the text of a cell if it is another one: what stays the same does not flicker. */
export function cells(row, texts) {
  texts.forEach(([text, classes = ""], n) => {
    const cell = row.children[n] ?? row.appendChild(el("span", { role: "gridcell" }));
    if (cell.textContent !== text) cell.textContent = text;
    if (cell.className !== classes) cell.className = classes;
  });
}
