// The staleness feed in the browser: rows as they come, filters, counts, a histogram of gaps. Owns pixels, no verdict.
// One rule a change must keep: text from a log goes only into textContent (see `el`), never into markup.

const ACTIONS = ["accept", "update", "patch", "discard"]; // in this order everywhere; others a log may know come after
const EARLY = ["released", "provisional", "confirmed", "rolled back", "proven"]; // what a completion policy does: no verdict, no gap
const SIGNS = { accept: "✓", update: "↻", patch: "✎", discard: "✕", released: "⇥", provisional: "◇", confirmed: "◆", "rolled back": "↶", proven: "⊣" };
const GAP_MEANS = "version gap: commits between the version this was made from and the pool's version then; a gap without touch is often harmless";
const TOUCHED_MEANS = "touched: a commit since then changed something this work read";
const SUPERSEDED_MEANS = "superseded: a commit since then replaced what this work would change";
const PAGE = 500; // rows drawn at first, and added by "show older"
const BINS = 16; // gaps drawn one by one; beyond, they share bins
const SVG = "http://www.w3.org/2000/svg";
// fields of a row as it travels
const [AT, BASE, VERSION, GAP, FLAGS, ITEM, ARTIFACT, STAGE, WHERE, ACTION, REASON, WHY, COUNTERPART, POLICY, HEIR] = Array(15).keys();
let created = 0;

/** An element with a class, attributes and children (strings become text). */
function el(tag, cls = "", attributes = {}, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function svg(tag, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function clock(at) {
  if (at < 60) return `${at.toFixed(1)} s`;
  const hours = Math.floor(at / 3600), minutes = Math.floor((at % 3600) / 60), seconds = Math.floor(at % 60);
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${minutes}:${two(seconds)}`;
}

const place = (where, stage) =>
  where === "completion" ? `in ${stage}` : where === "dequeue" ? `before ${stage}` : where === "commit" ? "at commit" : where === "hand" ? "by hand" : where;

const many = (n, one) => `${n.toLocaleString("en-US")} ${one}${n === 1 ? "" : "s"}`;
const sign = (action) => SIGNS[action] ?? "•";
const known = (action) => (ACTIONS.includes(action) ? action : EARLY.includes(action) ? action.replace(" ", "-") : "other");

/** The rows so far, their texts and counts. */
class Rows {
  constructor() {
    this.clear();
  }

  clear() {
    this.rows = [];
    this.strings = [];
    this.gaps = new Map(); // action → gap → count
    this.counts = new Map(); // action → count
    this.places = new Map(); // "where|stage" → words
  }

  /** Takes a batch; false when something before it is missing. */
  take(batch) {
    if (batch.rows_from > this.rows.length || batch.strings_from > this.strings.length) return false;
    for (const text of batch.strings.slice(this.strings.length - batch.strings_from)) this.strings.push(text);
    for (const row of batch.rows.slice(this.rows.length - batch.rows_from)) this.add(row);
    return true;
  }

  add(row) {
    this.rows.push(row);
    const action = this.text(row, ACTION), gaps = this.gaps.get(action) ?? new Map();
    this.counts.set(action, this.count(action) + 1);
    if (row[GAP] >= 0) this.gaps.set(action, gaps.set(row[GAP], (gaps.get(row[GAP]) ?? 0) + 1));
    this.places.set(this.placeOf(row), place(this.text(row, WHERE), this.text(row, STAGE)));
  }

  text = (row, field) => this.strings[row[field]];
  placeOf = (row) => `${this.text(row, WHERE)}|${["dequeue", "completion"].includes(this.text(row, WHERE)) ? this.text(row, STAGE) : ""}`;
  count = (action) => this.counts.get(action) ?? 0;
  actions = () => {
    const seen = [...this.counts.keys()], early = EARLY.filter((action) => this.counts.has(action));
    return [...ACTIONS, ...seen.filter((action) => !ACTIONS.includes(action) && !EARLY.includes(action)), ...early];
  };
}

/** One drawing of the feed. */
class View {
  constructor(model, data, root) {
    Object.assign(this, { model, data, root, hidden: new Set(["released"]), where: "", limit: PAGE, drawn: 0, active: -1, frame: 0 });
    this.id = `lab-feed-${created++}`;
    this.build();
    this.draw();
  }

  build() {
    this.trouble = el("div", "lab-feed-trouble", { role: "alert" });
    this.filters = el("div", "lab-feed-filters", { role: "group", "aria-label": "Show verdicts by action" });
    this.early = el("div", "lab-feed-filters", { role: "group", "aria-label": "Show partial results by what came of them" });
    this.place = el("select", "lab-feed-place", { "aria-label": "Show verdicts by place" });
    this.place.addEventListener("change", () => this.filter(() => (this.where = this.place.value)));
    this.buttons = new Map();
    this.chart = el("div", "lab-feed-chart");
    this.empty = el("p", "lab-feed-empty");
    this.list = el("div", "lab-feed-list", {
      role: "listbox", tabindex: "0", "aria-label": "Staleness verdicts and partial results, newest first; Enter opens the inspector",
      "data-lm-suppress-shortcuts": "true",
    });
    this.list.addEventListener("keydown", (event) => this.key(event));
    // by keyboard only: under a pressed mouse the list would scroll away from the row
    this.list.addEventListener("focus", () => this.active < 0 && this.list.matches(":focus-visible") && this.mark(0));
    this.older = el("button", "lab-feed-older", { type: "button" });
    this.older.addEventListener("click", () => this.filter(() => (this.limit += PAGE), true));
    this.head = el("div", "lab-feed-head", {}, el("div", "lab-feed-pick", {}, this.filters, this.early, this.place), this.chart);
    this.status = el("div", "lab-feed-status", { "aria-live": "polite" });
    this.root.classList.add("lab-feed");
    this.root.replaceChildren(this.trouble, this.head, this.empty, this.list, this.older, this.status);
  }

  /** Draws at the next frame (never while the page is hidden). */
  soon() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  filter(change, keep = false) {
    change();
    if (!keep) this.limit = PAGE;
    this.list.replaceChildren();
    this.drawn = 0;
    this.active = -1;
    this.draw();
  }

  shown = (row) =>
    !this.hidden.has(this.data.text(row, ACTION)) && (!this.where || this.data.placeOf(row) === this.where);

  draw() {
    const { data, model } = this, any = data.rows.length > 0, began = performance.now();
    this.trouble.textContent = model.get("trouble");
    this.trouble.hidden = !model.get("trouble");
    this.empty.textContent = any ? "" : model.get("sentence");
    this.empty.hidden = any;
    this.head.hidden = this.list.hidden = !any;
    this.drawFilters();
    this.drawChart();
    this.drawRows();
    this.took = performance.now() - began;
    this.report();
  }

  drawFilters() {
    for (const action of this.data.actions()) {
      if (!this.buttons.has(action)) this.addFilter(action);
      const { button, count } = this.buttons.get(action), n = this.data.count(action);
      count.textContent = n;
      button.setAttribute("aria-pressed", String(!this.hidden.has(action)));
      button.classList.toggle("lab-none", n === 0);
    }
    const places = [["", "any place"], ...[...this.data.places].sort()];
    if (places.length === this.place.length) return;
    this.place.replaceChildren(...places.map(([value, words]) => el("option", "", { value }, words)));
    this.place.value = this.where;
  }

  addFilter(action) {
    const count = el("b");
    const swatch = el("span", `lab-feed-sign lab-${known(action)}`, { "aria-hidden": "true" }, sign(action));
    const button = el("button", "lab-feed-filter", { type: "button" }, swatch, el("bdi", "", {}, action), count);
    button.addEventListener("click", () =>
      this.filter(() => (this.hidden.has(action) ? this.hidden.delete(action) : this.hidden.add(action))));
    this.buttons.set(action, { button, count });
    const group = EARLY.includes(action) ? this.early : this.filters; // in the order of EARLY, whichever came first
    const before = EARLY.includes(action) && [...EARLY.slice(EARLY.indexOf(action) + 1)].map((later) => this.buttons.get(later)?.button).find(Boolean);
    group.insertBefore(button, before || null);
  }

  /** How many verdicts at each gap, stacked by action. */
  drawChart() {
    const { data } = this, actions = data.actions().filter((action) => data.gaps.has(action));
    const largest = Math.max(1, ...actions.flatMap((action) => [...data.gaps.get(action).keys()]));
    const size = Math.ceil((largest + 1) / BINS), bins = Math.ceil((largest + 1) / size);
    const heights = actions.map((action) => {
      const bars = Array(bins).fill(0);
      for (const [gap, n] of data.gaps.get(action)) bars[Math.floor(gap / size)] += n;
      return bars;
    });
    const key = JSON.stringify([actions, heights]);
    if (key === this.charted) return;
    this.charted = key;
    this.chart.replaceChildren(this.histogram(actions, heights, size, bins));
  }

  histogram(actions, heights, size, bins) {
    const wide = 264, high = 74, floor = high - 14, step = wide / Math.max(bins, 6);
    const most = Math.max(1, ...Array.from({ length: bins }, (_, i) => heights.reduce((sum, bars) => sum + bars[i], 0)));
    const words = actions.map((action, k) => `${action} ${heights[k].reduce((sum, n) => sum + n, 0)}`).join(", ");
    const picture = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img" });
    picture.setAttribute("aria-label", `Verdicts by version gap: ${words}; the largest bar is ${most}`);
    const tops = Array(bins).fill(floor);
    actions.forEach((action, k) => heights[k].forEach((n, i) => {
      if (!n) return;
      const height = Math.max(1, (n / most) * (floor - 12));
      tops[i] -= height;
      const bar = svg("rect", { x: i * step + 1, y: tops[i], width: Math.max(2, step - 3), height, class: `lab-${known(action)}` });
      const title = svg("title");
      title.textContent = `${action}: ${n} at gap ${size > 1 ? `${i * size}–${(i + 1) * size - 1}` : i}`;
      bar.append(title);
      picture.append(bar);
    }));
    picture.append(svg("line", { x1: 0, x2: wide, y1: floor + 0.5, y2: floor + 0.5, class: "lab-feed-axis" }));
    const every = Math.ceil(bins / 8);
    for (let i = 0; i < bins; i += every) picture.append(label(i * step + step / 2 - 0.5, high - 3, i * size, "middle"));
    const axis = label(wide, 9, `gap (most: ${most})`, "end"), about = svg("title");
    about.textContent = `${GAP_MEANS}. The largest bar: ${many(most, "verdict")}.`;
    axis.append(about);
    picture.append(axis);
    return picture;
  }

  /** Puts rows that are new on top, and drops those below the limit. */
  drawRows() {
    const fresh = [], { rows } = this.data;
    let at = rows.length - 1;
    for (; at >= this.drawn && fresh.length < this.limit; at--) if (this.shown(rows[at])) fresh.push(this.row(at));
    if (fresh.length >= this.limit) this.list.replaceChildren(...fresh);
    else this.list.prepend(...fresh);
    if (this.active >= 0) this.active += fresh.length;
    this.drawn = rows.length;
    while (this.list.childElementCount > this.limit) this.list.lastChild.remove();
    const drawn = this.list.childElementCount, lowest = drawn ? Number(this.list.lastChild.dataset.at) : rows.length;
    let more = 0;
    for (let i = lowest - 1; i >= 0 && more < PAGE; i--) more += this.shown(rows[i]);
    this.older.hidden = !more;
    this.older.textContent = more < PAGE ? `Show the ${more} older` : `Show ${PAGE} older`;
    if (this.active >= drawn) this.active = drawn - 1;
    this.select();
    this.status.textContent = rows.length && !drawn ? "Nothing matches these filters." : "";
    this.status.hidden = !this.status.textContent;
  }

  row(at) {
    const { data } = this, row = data.rows[at], text = (field) => data.text(row, field), action = text(ACTION);
    const tag = (on, words, why) => (on ? [el("span", "lab-feed-tag", { title: why }, words)] : []);
    const item = text(ITEM), artifact = text(ARTIFACT), hand = text(WHERE) === "hand" || text(POLICY) === "by hand";
    const spot = el("span", "lab-feed-where", {}, place(text(WHERE), text(STAGE)));
    const colour = this.model.get("colours")?.[text(STAGE)];
    if (colour) spot.style.setProperty("--lab-stage", colour);
    const line = el("div", "lab-feed-line", {},
      el("time", "lab-feed-time", {}, clock(row[AT])),
      el("span", "lab-feed-action", {}, el("span", `lab-feed-sign lab-${known(action)}`, { "aria-hidden": "true" }, sign(action)), el("bdi", "", {}, action)),
      el("bdi", "lab-feed-id", {}, artifact ? `${artifact} (${item})` : item),
      ...this.versions(row, row[GAP] < 0),
      ...tag(row[FLAGS] & 1, "touched", TOUCHED_MEANS),
      ...tag(row[FLAGS] & 2, "superseded", SUPERSEDED_MEANS),
      ...tag(hand, "by hand", "a person decided"),
      ...tag(text(HEIR), `from ${text(HEIR)}, rolled back`, "made from an artifact that was rolled back since"),
      spot);
    const reason = el("div", "lab-feed-reason", {}, el("bdi", "", {}, text(REASON)));
    if (text(WHY)) reason.append(el("bdi", "lab-feed-why", {}, text(WHY)));
    const node = el("div", "lab-feed-row", { role: "option", id: `${this.id}-${at}`, "aria-selected": "false" }, line, reason);
    node.dataset.at = at;
    node.dataset.item = item;
    node.addEventListener("click", () => this.open(node));
    return node;
  }

  /** Base and version of a verdict with their gap; of another event the version that the pool went to, if it did. */
  versions(row, early) {
    const span = (cls, title, words) => el("span", cls, { title }, words), moved = row[BASE] !== row[VERSION];
    if (!early) return [span("lab-feed-versions", "base version → version now", `v${row[BASE]} → v${row[VERSION]}`), span("lab-feed-gap", GAP_MEANS, `gap ${row[GAP]}`)];
    return [span("lab-feed-versions", moved ? "the pool changed to this version" : "the pool's version did not move", moved ? `v${row[BASE]} → v${row[VERSION]}` : `at v${row[VERSION]}`)];
  }

  /** Marks the rows of the selected item, and the row the keyboard is on. */
  select() {
    const item = this.model.get("selected");
    [...this.list.children].forEach((node, i) => {
      const chosen = String(item !== "" && node.dataset.item === item), active = i === this.active;
      if (node.getAttribute("aria-selected") !== chosen) node.setAttribute("aria-selected", chosen); // only what changed costs a layout
      if (node.classList.contains("lab-active") !== active) node.classList.toggle("lab-active", active);
    });
    const node = this.list.children[this.active];
    if (node) this.list.setAttribute("aria-activedescendant", node.id);
    else this.list.removeAttribute("aria-activedescendant");
  }

  mark(i) {
    this.active = Math.max(0, Math.min(i, this.list.childElementCount - 1));
    this.select();
    this.list.children[this.active]?.scrollIntoView({ block: "nearest" });
    this.report();
  }

  open(node) {
    this.active = [...this.list.children].indexOf(node);
    this.select();
    this.model.send({ kind: "open", id: node.dataset.item });
    this.report();
  }

  key(event) {
    const last = this.list.childElementCount - 1;
    const steps = { ArrowDown: this.active + 1, ArrowUp: this.active - 1, PageDown: this.active + 10, PageUp: this.active - 10, Home: 0, End: last };
    if (event.key in steps) this.mark(steps[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && this.list.children[this.active]) this.open(this.list.children[this.active]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** What the feed shows, for tests. */
  report() {
    const counts = Object.fromEntries(this.data.actions().map((action) => [action, this.data.count(action)]));
    this.root.dataset.labStatus = JSON.stringify({
      rows: this.data.rows.length, drawn: this.list.childElementCount, counts, hidden: [...this.hidden], where: this.where,
      selected: this.model.get("selected"), active: this.list.children[this.active]?.dataset.item ?? "", trouble: this.model.get("trouble"), draw_ms: Math.round(this.took * 10) / 10,
    });
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.frame = -1;
  }
}

function label(x, y, words, anchor) {
  const node = svg("text", { x, y, "text-anchor": anchor, class: "lab-feed-label" });
  node.textContent = words;
  return node;
}

export default () => {
  const data = new Rows(), views = new Set(), decode = (view) => JSON.parse(new TextDecoder().decode(view));
  const draw = () => views.forEach((view) => view.soon());
  return {
    initialize({ model }) {
      const have = () => model.send({ kind: "have", rows: data.rows.length, strings: data.strings.length });
      const take = (bytes) => {
        if (!bytes?.byteLength) return;
        if (!data.take(decode(bytes))) have(); // a gap: ask for what is missing
        draw();
      };
      take(model.get("snapshot"));
      model.on("change:snapshot", () => take(model.get("snapshot")));
      model.on("msg:custom", (message, buffers) => message.kind === "rows" && take(buffers[0]));
      for (const trait of ["sentence", "trouble", "selected"]) model.on(`change:${trait}`, draw);
      have(); // a front end is there: rows alone will do from now on
    },
    render({ model, el: root }) {
      const view = new View(model, data, root);
      views.add(view);
      return () => {
        views.delete(view);
        view.close();
      };
    },
  };
};
