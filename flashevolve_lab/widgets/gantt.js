// The live Gantt in the browser: a store of the run's spans per widget, and a canvas per view that draws it.
//
// Owns layout, drawing and gestures. Owns no facts: they come from `spans.py` as a whole (trait `snapshot`) and as updates
// (messages) chained by the number of the last entry. One rule a change must keep: a frame costs a walk over the spans in the
// window and a bounded number of drawing calls, however many spans there are; text from outside is only ever textContent or fillText.

const SPAN = 24, END = 14, STEP = 10; // bytes a record: d start, f seconds, f early, H lane, H flags, H base, H gap · I f f H · d H
const JOB = ["running", "finished", "failed", "abandoned", "lost"];
const ITEM = ["", "committed", "rejected", "skipped", "refused", "failed", "discarded", "unaffordable", "cancelled", "outdone", "rolled_back", "distilled"];
const VERDICT = ["", "accept", "update", "patch", "discard"];
const RUNNING = 0, FAILED = 2, STEPPED = 1 << 10;
const SPECULATIVE = 1 << 11, INSERTED = 1 << 14, FATE = ["", "confirmed", "rolled back", "proven"]; // its partial result went on; bits 12-13: what came of it
const EARLY = SPECULATIVE | (3 << 12);
const VERSIONS = new Set(["commit", "provisional", "confirmed", "rolled back"]); // marks of the pool: thin and behind the bars
const GLYPHS = { committed: "▲", rejected: "–", skipped: "·", discarded: "×", update: "↻", patch: "+", proven: "⊣", outdone: "⊣", rolled_back: "↶" }; // others: "!"
const LABELS = 34; // px above the lanes: a row for changes, one for commits
const QUIET_S = 600; // lab time is not guessed further than this beyond the last entry

const HINT = "Click a bar to select it · wheel or + − to zoom · drag or arrows to pan · 0 shows all · f follows now · [ ] from job to job";

const jobOf = (flags) => flags & 7;
const fateOf = (flags) => FATE[(flags >> 12) & 3];
const itemOf = (flags) => ITEM[(flags >> 3) & 15] || "";
const verdictOf = (flags) => VERDICT[(flags >> 7) & 7] || "";
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

// ---------------------------------------------------------------------------------------------------------------- data

/** A typed array that grows. */
class Column {
  constructor(Type, room = 64) {
    this.a = new Type(room);
    this.n = 0;
  }
  push(value) {
    if (this.n === this.a.length) {
      const wider = new this.a.constructor(2 * this.n);
      wider.set(this.a);
      this.a = wider;
    }
    this.a[this.n++] = value;
  }
  /** The first place whose value is above x (values rise). */
  above(x) {
    let low = 0, high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.a[middle] > x) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

/** Everything known about the run, shared by all views of the widget. */
class Store {
  constructor(send) {
    this.send = send;
    this.views = new Set();
    this.growing = true;
    this.echoes = [];
    this.clear();
  }

  clear() {
    this.seq = 0;
    this.at = 0;
    this.status = "new";
    this.clock = "wall";
    this.run = "";
    this.simulated = false;
    this.stages = []; // {name, colour}
    this.lanes = []; // {stage, slot, s, e, y, f, i}: its spans' starts, ends, when a partial result went on, flags and numbers, in order
    this.place = new Column(Uint32Array); // span → its place in its lane
    this.laneOf = new Column(Uint16Array);
    this.base = new Column(Uint16Array);
    this.gap = new Column(Uint16Array);
    this.early = false; // whether any partial result went on, or was proven hopeless
    this.marks = []; // {at, kind, label, text}
    this.queues = []; // stage → {at, value}
    this.about = new Map(); // span → what Python told about it
    this.asked = new Map(); // span → when (ms)
    this.arrivals = []; // [wall s, lab s] of the last updates
    this.ahead = -Infinity; // largest lab time − wall time seen
    this.version = (this.version || 0) + 1;
  }

  get count() {
    return this.place.n;
  }

  get live() {
    return this.growing && (this.status === "running" || this.status === "paused");
  }

  /** Replace everything by a whole. */
  whole(view) {
    if (!view || !view.byteLength) return;
    const length = view.getUint32(0, true);
    const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    if (head.seq < this.seq) return;
    const echoes = this.echoes;
    this.clear();
    this.echoes = echoes;
    const at = 4 + length, middle = at + SPAN * head.spans[1];
    const part = (from, to) => new DataView(view.buffer, view.byteOffset + from, to - from);
    this.apply(head, part(at, middle), null, part(middle, view.byteLength));
  }

  /** An update: applied when it follows on what is here, asked for anew when something is missing. */
  add(head, [spans, ends, steps]) {
    if (head.seq <= this.seq && head.prev < this.seq) return;
    if (head.prev !== this.seq) {
      this.send({ kind: "gap" });
      return;
    }
    if (head.echo) this.echoes.push(head.seq);
    this.apply(head, spans, ends, steps);
  }

  apply(head, spans, ends, steps) {
    if (head.stages) {
      this.stages = head.stages.map(([name, colour]) => ({ name, colour, rgb: rgbOf(colour) }));
      Object.assign(this, { clock: head.clock, run: head.run, simulated: head.simulated });
    }
    for (const [stage, slot] of head.lanes ? head.lanes[1] : []) {
      const columns = { s: new Column(Float64Array), e: new Column(Float64Array), y: new Column(Float64Array), f: new Column(Uint16Array), i: new Column(Uint32Array) };
      this.lanes.push({ stage, slot, ...columns });
      this.version++;
    }
    this.append(spans, head.spans[1]);
    if (ends) this.finish(ends);
    for (const [at, kind, label, text] of head.marks ? head.marks[1] : []) this.marks.push({ at, kind, label, text });
    this.extend(head.steps, steps);
    this.settle(head);
    for (const view of this.views) view.changed();
  }

  append(view, count) {
    for (let k = 0, o = 0; k < count; k++, o += SPAN) {
      const start = view.getFloat64(o, true), seconds = view.getFloat32(o + 8, true), early = view.getFloat32(o + 12, true), at = view.getUint16(o + 16, true);
      const lane = this.lanes[at];
      lane.i.push(this.count);
      lane.s.push(start);
      lane.e.push(seconds < 0 ? Infinity : start + seconds);
      lane.y.push(early < 0 ? Infinity : start + early);
      lane.f.push(view.getUint16(o + 18, true));
      this.early ||= (view.getUint16(o + 18, true) & EARLY) > 0;
      this.place.push(lane.s.n - 1);
      this.laneOf.push(at);
      this.base.push(view.getUint16(o + 20, true));
      this.gap.push(view.getUint16(o + 22, true));
    }
  }

  finish(view) {
    for (let o = 0; o < view.byteLength; o += END) {
      const i = view.getUint32(o, true), seconds = view.getFloat32(o + 4, true), early = view.getFloat32(o + 8, true);
      const lane = this.lanes[this.laneOf.a[i]], p = this.place.a[i];
      lane.e.a[p] = seconds < 0 ? Infinity : lane.s.a[p] + seconds;
      lane.y.a[p] = early < 0 ? Infinity : lane.s.a[p] + early;
      lane.f.a[p] = view.getUint16(o + 12, true);
      this.early ||= (view.getUint16(o + 12, true) & EARLY) > 0;
      this.about.delete(i);
      this.asked.delete(i);
    }
  }

  extend(changes, view) {
    let o = 0;
    for (const [stage, start, count] of changes) {
      const line = (this.queues[stage] ??= { at: new Column(Float64Array), value: new Column(Uint16Array) });
      line.at.n = line.value.n = start;
      for (let k = 0; k < count; k++, o += STEP) {
        line.at.push(view.getFloat64(o, true));
        line.value.push(view.getUint16(o + 8, true));
      }
    }
  }

  settle(head) {
    const wall = performance.now() / 1000;
    if (this.status === "stopped" && head.status !== "stopped") this.ahead = -Infinity;
    if (head.at > this.at || !this.arrivals.length) this.arrivals.push([wall, head.at]);
    if (this.arrivals.length > 12) this.arrivals.shift();
    this.ahead = Math.max(this.ahead, head.at - wall);
    Object.assign(this, { seq: head.seq, at: head.at, status: head.status });
  }

  /** Lab time now: guessed from the clock between updates while the run goes on, so that running bars grow smoothly. */
  now() {
    if (!this.live || this.clock === "virtual" || !this.arrivals.length) return this.at;
    const wall = performance.now() / 1000;
    const [first, last] = [this.arrivals[0], this.arrivals[this.arrivals.length - 1]];
    if (this.clock === "wall") return clamp(this.ahead + wall, this.at, this.at + QUIET_S);
    const rate = last[0] > first[0] + 0.3 ? (last[1] - first[1]) / (last[0] - first[0]) : 0;
    return this.at + rate * clamp(wall - last[0], 0, 1);
  }

  /** What Python has told about these spans; asks for the missing ones (running ones again each second). */
  tell(spans) {
    const now = performance.now(), missing = [];
    for (const i of spans) {
      const open = this.flags(i) % 8 === RUNNING;
      const age = now - (this.asked.get(i) ?? -Infinity);
      if (this.about.has(i) ? open && age > 1000 : age > 2000) missing.push(i);
      if (missing.length === 40) break;
    }
    if (!missing.length) return;
    for (const i of missing) this.asked.set(i, now);
    this.send({ kind: "about", jobs: missing });
  }

  told(jobs) {
    if (this.about.size > 4000) this.about.clear();
    for (const job of jobs) this.about.set(job.i, job);
    for (const view of this.views) view.changed();
  }

  flags(i) {
    return this.lanes[this.laneOf.a[i]].f.a[this.place.a[i]];
  }

  span(i) {
    const lane = this.lanes[this.laneOf.a[i]], p = this.place.a[i];
    return { i, lane, p, start: lane.s.a[p], end: lane.e.a[p], early: lane.y.a[p], flags: lane.f.a[p], base: this.base.a[i], gap: this.gap.a[i] };
  }
}

// -------------------------------------------------------------------------------------------------------------- colours

let probe;

/** [r, g, b] of a CSS colour. */
function rgbOf(colour) {
  probe ??= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  probe.clearRect(0, 0, 1, 1);
  probe.fillStyle = "#888";
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

const lightness = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b) / 255;
const inkOn = (rgb) => (lightness(rgb) > 0.5 ? "#111" : "#fff");

/** The theme's colours as they are now. */
function themeOf(el) {
  const style = getComputedStyle(el);
  const read = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const page = read("--lab-page", "#fff");
  const dark = lightness(rgbOf(page)) < 0.5;
  return {
    dark, page,
    ink: read("--lab-ink", dark ? "#eee" : "#222"),
    soft: read("--lab-soft", "#777"),
    line: dark ? "rgba(255,255,255,0.09)" : "rgba(0,0,0,0.07)",
    band: dark ? "rgba(255,255,255,0.045)" : "rgba(0,0,0,0.028)",
    commit: dark ? "rgba(255,255,255,0.28)" : "rgba(0,0,0,0.2)",
    pause: dark ? "rgba(255,255,255,0.10)" : "rgba(0,0,0,0.08)",
    brand: read("--lab-brand", "#1976d2"),
    font: read("--lab-font", "sans-serif"),
  };
}

/** Relative luminance of [r, g, b] (WCAG 2). */
const luminance = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);

/** A stage as it looks on a page: one too dark to be told from a dark page is lightened until its contrast is 4 to 1. */
function shadeOn(page, stage) {
  const ground = luminance(page);
  let rgb = stage.rgb;
  for (let white = 0.05; ground < 0.2 && white < 1 && (luminance(rgb) + 0.05) / (ground + 0.05) < 4; white += 0.05) {
    rgb = stage.rgb.map((v) => Math.round(v + (255 - v) * white));
  }
  return rgb === stage.rgb ? stage : { ...stage, rgb, colour: `rgb(${rgb.join(", ")})` };
}

/** Hatches for bars that did not end well, as canvas patterns in an ink. */
function hatches(context, ink, dpr) {
  const make = (strokes) => {
    const size = 6, tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(size * dpr);
    const c = tile.getContext("2d");
    c.scale(tile.width / size, tile.width / size);
    c.strokeStyle = ink;
    c.lineWidth = 1.1;
    c.beginPath();
    for (const [x0, y0, x1, y1] of strokes) {
      for (const d of [-size, 0, size]) {
        c.moveTo(x0 + d, y0);
        c.lineTo(x1 + d, y1);
      }
    }
    c.stroke();
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / dpr));
    return pattern;
  };
  const up = [0, 6, 6, 0], down = [0, 0, 6, 6];
  return { failed: make([up, down]), abandoned: make([up]), lost: make([down]), tail: make([[3, 0, 3, 6]]) };
}

// ----------------------------------------------------------------------------------------------------------------- words

const pad = (n) => String(n).padStart(2, "0");

/** Seconds as an axis shows them, for ticks `step` apart up to `most`. */
function timeText(t, step, most) {
  const decimals = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step)));
  if (most < 120) return `${t.toFixed(decimals)} s`;
  const whole = Math.floor(t + 1e-9), rest = (t - whole).toFixed(decimals).slice(1);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${pad(m)}:${pad(s)}${rest}` : `${m}:${pad(s)}${rest}`;
}

function niceStep(atLeast) {
  const nice = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  if (atLeast > 1) return nice.find((step) => step >= atLeast) || 86400 * Math.ceil(atLeast / 86400);
  const power = 10 ** Math.floor(Math.log10(atLeast));
  return [1, 2, 5, 10].map((x) => x * power).find((step) => step >= atLeast * 0.999);
}

const seconds = (s) => (s < 0.01 ? `${(1000 * s).toFixed(2)} ms` : s < 1 ? `${(1000 * s).toFixed(0)} ms` : s < 100 ? `${s.toFixed(2)} s` : `${s.toFixed(0)} s`);

const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const dollars = (x) => `$${x === 0 ? "0" : x.toFixed(x < 0.01 ? 6 : x < 1 ? 4 : 2)}`;

/** What went on early and what came of it, in words ("" when nothing did). */
function speculative({ start, early, flags }, open) {
  const fate = fateOf(flags), after = seconds(Math.max(0, early - start));
  if (fate === "proven") return "ended early: proven that it can no longer win (a bound, not a score)";
  if (!(flags & SPECULATIVE)) return "";
  if (!(flags & INSERTED)) return `released after ${after} with a part of its samples${open ? "; the rest is still on its way" : "; the rest came late, and is kept"}`;
  const end = { confirmed: "confirmed by the rest", "rolled back": "rolled back" }[fate] || "provisional: neither confirmed nor rolled back yet";
  return `in the pool after ${after}, on its prefix; ${end}`;
}

/** What a job is and became, in lines of [label, text]. */
function describe(store, i, now) {
  const span = store.span(i), more = store.about.get(i), stage = store.stages[span.lane.stage];
  const open = span.end === Infinity, end = open ? now : span.end;
  const outcome = [JOB[jobOf(span.flags)], itemOf(span.flags) && `item ${itemOf(span.flags).replace("_", " ")}`];
  const verdict = verdictOf(span.flags);
  if (verdict) outcome.push({ accept: "stale, accepted", update: "stale, updated", patch: "stale, patched", discard: "stale, discarded" }[verdict]);
  if (span.flags & STEPPED) outcome.push("by a step");
  const lines = [
    ["", `${stage.name} · slot ${span.lane.slot}${more ? ` · ${more.job}` : ""}`],
    ["item", more ? `${more.item}${more.kind && more.kind !== "proposal" ? ` (${more.kind})` : ""}` : "…"],
    ["artifact", more ? [more.artifact || "not made yet", more.parent && `from ${more.parent}`].filter(Boolean).join(" ") : "…"],
    ["base version", `v${span.base}, gap ${span.gap} at its start`],
    ["time", `${span.start.toFixed(2)} – ${open ? "now" : end.toFixed(2)} s (${seconds(Math.max(0, end - span.start))})`],
    ["spent", more ? `${many(more.tokens, "token")}, ${dollars(more.dollars)}, ${many(more.calls, "call")}` : "…"],
    ["outcome", outcome.filter(Boolean).join(" · ")],
  ];
  const early = speculative(span, open);
  if (early) lines.push(["speculation", early]);
  if (more && more.note) lines.push([fateOf(span.flags) || span.flags & SPECULATIVE ? "why" : "note", more.note]);
  return lines;
}

function make(tag, className, parent, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

/** Lines of [label, text] into a node; one without a label is a title. */
function fill(node, tag, lines) {
  node.replaceChildren();
  for (const [label, text] of lines) {
    const line = make(tag, label ? "" : "lab-gantt-title", node);
    if (label) make("em", "", line, label);
    make("span", "", line, text);
  }
}

// ------------------------------------------------------------------------------------------------------------- one view

class View {
  constructor(model, store, el) {
    Object.assign(this, { model, store, el });
    this.mode = "fit"; // "fit": all of it · "follow": the right edge is now · "free"
    this.auto = true; // until a gesture: while live, the window is short enough to see bars
    this.t0 = 0;
    this.t1 = 1;
    this.shown = 0; // lab time as drawn
    this.scroll = 0; // of the lanes (px)
    this.rowHeight = 0; // of a lane, as zoomed by hand (0: as fits)
    this.hover = this.selected = -1;
    this.dirty = this.overDirty = true;
    this.visible = true;
    this.ticks = [];
    this.draws = [];
    this.cost = this.bars = this.crowded = this.inside = this.running = 0;
    this.build();
    this.listen();
    this.theme();
    this.changed();
  }

  build() {
    const root = (this.root = make("div", "lab-gantt", this.el));
    root.dataset.lmSuppressShortcuts = "true"; // else "0 0" on the chart restarts the kernel
    const bar = make("div", "lab-gantt-bar", root);
    this.state = make("span", "lab-gantt-state", bar);
    this.legend = make("span", "lab-gantt-legend", bar);
    const buttons = make("span", "lab-gantt-buttons", bar);
    const button = (text, label, act) => {
      const node = make("button", "", buttons, text);
      node.type = "button";
      node.title = label;
      node.setAttribute("aria-label", label);
      node.addEventListener("click", act);
      return node;
    };
    this.followButton = button("Follow", "Follow now (f); the run itself is not touched", () => this.toggleFollow());
    button("Fit", "Show all (0)", () => this.fit());
    button("−", "Zoom out (-)", () => this.zoom(1.5));
    button("+", "Zoom in (+)", () => this.zoom(1 / 1.5));
    const stage = (this.stage = make("div", "lab-gantt-stage", root));
    this.canvas = make("canvas", "lab-gantt-canvas", stage);
    this.over = make("canvas", "lab-gantt-over", stage);
    this.over.tabIndex = 0;
    this.over.setAttribute("role", "application");
    this.over.setAttribute("aria-roledescription", "timeline");
    this.tip = make("div", "lab-gantt-tip", stage);
    this.tip.hidden = true;
    this.empty = make("div", "lab-gantt-empty", stage);
    this.detail = make("div", "lab-gantt-detail", root);
    this.said = make("div", "lab-gantt-said", root); // to screen readers, once for each selection
    this.said.setAttribute("aria-live", "polite");
    this.failed = make("div", "lab-gantt-failed", root);
    this.failed.setAttribute("role", "alert");
    this.failed.hidden = true;
    this.c = this.canvas.getContext("2d", { alpha: false });
    this.o = this.over.getContext("2d");
    this.raster = document.createElement("canvas"); // a row of pixels per crowded lane
    this.strip = document.createElement("canvas");
    this.map = document.createElement("canvas"); // of the whole run
  }

  listen() {
    const off = (this.off = []);
    const on = (target, kind, act, options) => {
      target.addEventListener(kind, act, options);
      off.push(() => target.removeEventListener(kind, act, options));
    };
    const sizes = new ResizeObserver(() => this.resize());
    sizes.observe(this.stage);
    const seen = new IntersectionObserver((all) => {
      this.visible = all[all.length - 1].isIntersecting;
      if (this.visible) this.changed();
    });
    seen.observe(this.root);
    const themes = new MutationObserver(() => this.theme());
    for (const node of [document.body, document.documentElement]) {
      themes.observe(node, { attributes: true, attributeFilter: ["class", "data-jp-theme-name", "data-jp-theme-light", "data-theme"] });
    }
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.theme());
    on(this.over, "keydown", (event) => this.key(event));
    on(this.over, "wheel", (event) => this.wheel(event), { passive: false });
    on(window, "wheel", (event) => this.foreign(event), { passive: true, capture: true });
    on(this.over, "pointerdown", (event) => this.press(event));
    on(this.over, "pointermove", (event) => this.move(event));
    on(this.over, "pointerup", (event) => this.release(event));
    on(this.over, "pointercancel", (event) => this.release(event));
    on(this.over, "pointerleave", () => this.point(-1));
    on(this.over, "dblclick", (event) => this.zoomTo(this.hit(event.offsetX, event.offsetY)));
    const hear = (name, act) => {
      this.model.on(`change:${name}`, act);
      off.push(() => this.model.off(`change:${name}`, act));
    };
    const select = () => this.select(this.model.get("selected_index"), false);
    const fail = () => this.fail(this.model.get("failure"));
    hear("selected_index", select);
    hear("failure", fail);
    off.push(() => sizes.disconnect(), () => seen.disconnect(), () => themes.disconnect());
    this.selected = this.model.get("selected_index") ?? -1;
    fail();
  }

  destroy() {
    this.store.views.delete(this);
    cancelAnimationFrame(this.raf);
    for (const act of this.off) act();
    this.root.remove();
  }

  // --- what there is to draw ---------------------------------------------------------------------------------------

  theme() {
    // A theme's style sheet may arrive a little after its name.
    for (const wait of [0, 250]) {
      setTimeout(() => {
        this.look = themeOf(this.root);
        this.dpr = 0; // patterns, buffers: all anew
        this.changed();
      }, wait);
    }
    this.look = themeOf(this.root);
  }

  /** The stages in colours that can be seen on this page. */
  get shades() {
    const { stages } = this.store, { page } = this.look;
    if (this.shaded?.stages !== stages || this.shaded.page !== page) {
      this.shaded = { stages, page, shades: stages.map((stage) => shadeOn(rgbOf(page), stage)) };
    }
    return this.shaded.shades;
  }

  resize() {
    if (this.stage.clientWidth !== this.width) this.changed();
  }

  changed() {
    this.dirty = true;
    this.request();
  }

  request() {
    this.raf ||= requestAnimationFrame(() => this.frame());
  }

  frame() {
    this.raf = 0;
    const clock = performance.now();
    if (!this.visible || !this.root.isConnected) {
      this.report(clock);
      return;
    }
    this.ticks.push(clock);
    this.advance();
    if (this.dirty || this.moved()) {
      this.draw();
      this.dirty = false;
      this.overDirty = true;
      const spent = performance.now() - clock;
      this.cost = this.cost ? 0.9 * this.cost + 0.1 * spent : spent;
      this.draws.push(clock);
      for (const seq of this.store.echoes.splice(0)) this.store.send({ kind: "drawn", seq });
    }
    if (this.overDirty) this.drawOver();
    this.overDirty = false;
    this.report(clock);
    if (this.store.live || Math.abs(this.store.now() - this.shown) > 1e-9) this.request();
  }

  /** Move the drawn time towards now, and the window with it. */
  advance() {
    const now = this.store.now(), gap = now - this.shown;
    this.shown = gap < 0 || gap > 0.2 * (this.t1 - this.t0) || !this.store.live ? now : this.shown + 0.3 * gap;
    const all = this.all();
    if (this.mode === "fit" && this.auto && this.store.live) {
      const most = Math.max(1, ...this.store.lanes.map((lane) => lane.s.n));
      const span = Math.min(all, (all * Math.max(20, this.width / 14)) / most);
      [this.t0, this.t1] = [all - span, all];
    } else if (this.mode === "fit") [this.t0, this.t1] = [0, all];
    else if (this.mode === "follow") this.follow(this.t1 - this.t0);
  }

  all() {
    return Math.max(this.shown, 1e-3) * 1.015;
  }

  follow(span) {
    this.t1 = this.shown + 0.03 * span;
    this.t0 = this.t1 - span;
  }

  /** Whether time has moved far enough to be seen. */
  moved() {
    const k = this.k || 0;
    return Math.abs(this.shown - (this.drawnAt ?? 0)) * k > 0.5 || Math.abs(this.t0 - (this.drawnT0 ?? 0)) * k > 0.5;
  }

  report(clock) {
    const { store } = this;
    while (this.ticks.length && this.ticks[0] < clock - 1000) this.ticks.shift();
    while (this.draws.length && this.draws[0] < clock - 1000) this.draws.shift();
    if (store.live && !(clock - (this.reported ?? -1e9) > 100)) return;
    this.reported = clock;
    this.el.dataset.labStatus = JSON.stringify({
      spans: store.count, bars: this.bars, lanes: store.lanes.length, crowded: this.crowded, marks: store.marks.length,
      seq: store.seq, status: store.status, live: store.live, now: this.shown, t0: this.t0, t1: this.t1, mode: this.mode,
      fps: this.ticks.length, draws: this.draws.length, frame_ms: Math.round(100 * this.cost) / 100,
      selected: this.selected, hover: this.hover, job: store.about.get(this.selected)?.job || "", dark: this.look.dark,
      labels: this.labels || [], inside: this.inside, failure: this.failed.textContent, running: this.running,
    });
  }

  fail(message) {
    this.failed.hidden = !message;
    this.failed.textContent = message || "";
    this.changed();
  }

  // --- layout ------------------------------------------------------------------------------------------------------

  /** Where everything is, in CSS pixels. */
  layout() {
    const { store } = this;
    const width = Math.max(240, this.stage.clientWidth), narrow = width < 560;
    if (this.rowsOf !== store.version) this.rank();
    const stages = new Set(this.rows.map((row) => row.stage)).size;
    this.narrow = narrow;
    this.gutter = narrow ? 74 : 118;
    this.plot = width - this.gutter - 10;
    this.stripRow = narrow ? 18 : 26;
    this.used = store.stages.map((_, n) => n).filter((n) => store.queues[n]?.value.a.some((v) => v) || this.rows.some((row) => row.stage === n));
    this.top = this.used.length * this.stripRow + 6;
    this.row = this.rowHeight || clamp(Math.floor(340 / Math.max(1, this.rows.length)), 3, 20);
    const lanes = this.rows.length * this.row + stages * 6;
    this.lanesTop = this.top + LABELS;
    this.lanesHeight = clamp(lanes, 60, 420);
    this.scroll = clamp(this.scroll, 0, Math.max(0, lanes - this.lanesHeight));
    this.axisTop = this.lanesTop + this.lanesHeight;
    this.mapTop = this.axisTop + 24;
    this.mapHeight = 30;
    let y = this.lanesTop - this.scroll + 3;
    this.rows.forEach((row, n) => {
      if (n && row.stage !== this.rows[n - 1].stage) y += 6;
      row.y = y;
      y += this.row;
    });
    this.size(width, this.mapTop + this.mapHeight + 4);
  }

  rank() {
    this.rows = this.store.lanes.map((lane) => ({ lane, stage: lane.stage, y: 0 }));
    this.rows.sort((a, b) => a.stage - b.stage || a.lane.slot - b.lane.slot);
    for (const row of this.rows) row.lane.row = row;
    this.rowsOf = this.store.version;
    this.mapped = 0;
  }

  size(width, height) {
    const dpr = devicePixelRatio || 1;
    if (width === this.width && height === this.height && dpr === this.dpr) return;
    Object.assign(this, { width, height, dpr });
    for (const canvas of [this.canvas, this.over]) {
      canvas.width = Math.round(width * dpr);
      canvas.height = Math.round(height * dpr);
      canvas.style.height = `${height}px`;
    }
    this.stage.style.height = `${height}px`;
    this.dots = Math.max(1, Math.round(this.plot * dpr)); // device pixels across
    this.busy = [];
    this.cover = new Float32Array(this.dots + 1);
    this.bad = new Uint8Array(this.dots + 1);
    this.hatches = { dark: hatches(this.c, "#111", dpr), light: hatches(this.c, "#fff", dpr) };
    this.mapped = 0;
  }

  x(t) {
    return this.gutter + (t - this.t0) * this.k;
  }

  time(x) {
    return this.t0 + (x - this.gutter) / this.k;
  }

  snap(x) {
    return Math.round(x * this.dpr) / this.dpr;
  }

  // --- drawing -----------------------------------------------------------------------------------------------------

  draw() {
    this.layout();
    const { c, look } = this;
    this.k = this.plot / (this.t1 - this.t0);
    this.drawnAt = this.shown;
    this.drawnT0 = this.t0;
    c.setTransform(this.dpr, 0, 0, this.dpr, 0, 0);
    c.fillStyle = look.page;
    c.fillRect(0, 0, this.width, this.height);
    c.textBaseline = "middle";
    this.within(this.lanesTop, this.lanesHeight, () => {
      this.drawGround();
      this.drawCommits();
      this.drawLanes();
    });
    this.drawStageNames();
    this.drawStrip();
    this.drawChanges();
    this.drawAxis();
    this.drawMap();
    this.words();
  }

  /** Draw inside the plot between two heights. */
  within(top, height, act) {
    const { c } = this;
    c.save();
    c.beginPath();
    c.rect(this.gutter, top, this.plot, height);
    c.clip();
    act();
    c.restore();
  }

  drawGround() {
    const { c, look, store } = this;
    c.fillStyle = look.band;
    for (const row of this.rows) c.fillRect(this.gutter, row.y, this.plot, this.row >= 5 ? this.row - 1 : this.row);
    let paused = -1;
    c.fillStyle = look.pause;
    const shade = (from, to) => c.fillRect(this.x(from), this.lanesTop, (to - from) * this.k, this.lanesHeight);
    for (const mark of store.marks) {
      if (mark.kind === "pause" && paused < 0) paused = mark.at;
      else if ((mark.kind === "continue" || mark.kind === "stop") && paused >= 0) {
        shade(paused, mark.at);
        paused = -1;
      }
    }
    if (paused >= 0) shade(paused, this.shown);
    c.fillStyle = look.line;
    for (const t of this.ticksAt()) c.fillRect(this.snap(this.x(t)), this.lanesTop, 1 / this.dpr, this.lanesHeight);
  }

  /** Thin lines behind the bars; where they crowd, one for every three pixels. */
  drawCommits() {
    const { c, look } = this;
    c.fillStyle = look.commit;
    let last = -Infinity;
    for (const mark of this.marksInView("version")) {
      const x = this.snap(this.x(mark.at));
      if (x < last + 3) continue;
      if (mark.kind === "commit") c.fillRect(x, this.lanesTop, 1 / this.dpr, this.lanesHeight);
      else if (mark.kind !== "confirmed") this.dashes(x, mark.kind === "provisional" ? [1, 4] : [6, 3]);
      last = x;
    }
  }

  /** A broken line behind the bars: dotted where an artifact joined provisionally, dashed where it was rolled back. */
  dashes(x, pattern) {
    const { c, look } = this;
    c.strokeStyle = pattern[0] > 1 ? look.soft : look.commit;
    c.lineWidth = 1;
    c.setLineDash(pattern);
    c.beginPath();
    c.moveTo(x + 0.5, this.lanesTop);
    c.lineTo(x + 0.5, this.lanesTop + this.lanesHeight);
    c.stroke();
    c.setLineDash([]);
  }

  marksInView(kind) {
    return this.store.marks.filter((m) => (kind === "version") === VERSIONS.has(m.kind) && m.at >= this.t0 && m.at <= this.t1);
  }

  /** Every lane: bars where there is room, else a row of pixels that says how busy it was. */
  drawLanes() {
    const { store } = this;
    this.busy = store.stages.map((_, n) => this.busy[n]?.fill(0) || new Float32Array(this.dots + 1));
    this.bars = this.crowded = this.inside = this.running = 0;
    this.wanted = [];
    const crowds = [];
    if (this.raster.width !== this.dots || this.raster.height !== Math.max(1, 2 * this.rows.length)) {
      this.raster.width = this.dots;
      this.raster.height = Math.max(1, 2 * this.rows.length);
      this.pixels = new ImageData(this.dots, this.raster.height);
      this.words32 = new Uint32Array(this.pixels.data.buffer);
    }
    this.rows.forEach((row, n) => {
      const { lane } = row;
      const from = lane.e.above(this.t0), to = lane.s.above(this.t1);
      const crowd = to - from > this.plot / 5;
      this.measure(lane, from, to, crowd);
      if (row.y + this.row < this.lanesTop || row.y > this.lanesTop + this.lanesHeight) return;
      if (!crowd) this.drawBars(row, from, to);
      else {
        this.paint(n, this.shades[row.stage].rgb);
        crowds.push([n, row]);
        this.crowded += to - from;
      }
    });
    this.drawCrowds(crowds);
    if (this.wanted.length) store.tell(this.wanted);
  }

  /** How much of each device pixel the lane's spans cover, added to its stage's busy slots. */
  measure(lane, from, to, crowd) {
    const { cover, bad, dots, t0 } = this, s = lane.s.a, e = lane.e.a, f = lane.f.a;
    const k = dots / (this.t1 - t0), now = this.shown;
    cover.fill(0);
    if (crowd) bad.fill(0);
    for (let p = from; p < to; p++) {
      const a = Math.max(0, (s[p] - t0) * k), b = Math.min(dots, (Math.min(e[p], now) - t0) * k);
      if (b < a) continue;
      const first = a | 0, last = b | 0;
      if (first === last) cover[first] += b - a;
      else {
        cover[first] += first + 1 - a;
        for (let q = first + 1; q < last; q++) cover[q] += 1;
        cover[last] += b - last;
      }
      if (crowd && (f[p] & 7) >= FAILED) bad[first] = 1;
    }
    const busy = this.busy[lane.stage];
    for (let q = 0; q < dots; q++) busy[q] += cover[q];
  }

  paint(n, [r, g, b]) {
    const { cover, bad, dots, words32 } = this;
    const colour = (b << 16) | (g << 8) | r, ink = this.look.dark ? 0xffffff : 0x111111;
    let o = 2 * n * dots;
    for (let q = 0; q < dots; q++, o++) {
      const share = cover[q];
      words32[o] = share > 0.004 ? ((Math.round(70 + 185 * Math.min(1, share)) << 24) | colour) >>> 0 : 0;
      words32[o + dots] = bad[q] ? (0xff000000 | ink) >>> 0 : 0;
    }
  }

  drawCrowds(crowds) {
    if (!crowds.length) return;
    const { c, dots } = this, thick = this.row >= 5 ? this.row - 1 : this.row;
    this.raster.getContext("2d").putImageData(this.pixels, 0, 0);
    c.imageSmoothingEnabled = false;
    for (const [n, row] of crowds) {
      c.drawImage(this.raster, 0, 2 * n, dots, 1, this.gutter, row.y, this.plot, thick);
      c.drawImage(this.raster, 0, 2 * n + 1, dots, 1, this.gutter, row.y + thick - Math.min(3, thick / 2), this.plot, Math.min(3, thick / 2));
    }
  }

  drawBars(row, from, to) {
    const { c, store } = this, { lane, y } = row, stage = this.shades[row.stage];
    const h = this.row >= 5 ? this.row - 1 : this.row, ink = inkOn(stage.rgb);
    c.fillStyle = stage.colour;
    for (let p = from; p < to; p++) {
      const x0 = this.snap(Math.max(this.gutter - 4, this.x(lane.s.a[p])));
      const open = lane.e.a[p] === Infinity;
      const x1 = this.snap(Math.min(this.gutter + this.plot + 4, this.x(open ? this.shown : lane.e.a[p])));
      const w = Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 1 : 0)), flags = lane.f.a[p];
      this.bars++;
      if (open) this.running++;
      c.fillStyle = stage.colour;
      if (jobOf(flags) === 1 || w < 3) c.fillRect(x0, y, w, h);
      else if (open) this.drawOpen(x0, y, w, h, stage, p);
      else {
        c.globalAlpha = 0.55;
        c.fillRect(x0, y, w, h);
        c.globalAlpha = 1;
        c.fillStyle = this.hatches[this.look.dark ? "light" : "dark"][JOB[jobOf(flags)]] || this.look.ink;
        c.fillRect(x0, y, w, h);
        c.strokeStyle = this.look.ink;
        c.lineWidth = 1;
        c.strokeRect(x0 + 0.5, y + 0.5, w - 1, h - 1);
      }
      if (flags & SPECULATIVE && w >= 3) this.drawEarly(x0, y, w, h, this.x(lane.y.a[p]), flags, stage);
      this.drawEnd(x0, y, w, h, flags, ink);
      if (w >= 42 && h >= 10) this.drawInside(lane.i.a[p], x0, y, w, h, ink);
    }
  }

  /** A running job: lighter, with a bright growing edge. */
  drawOpen(x, y, w, h, stage) {
    const { c } = this;
    c.globalAlpha = 0.6;
    c.fillRect(x, y, w, h);
    c.globalAlpha = 1;
    c.fillRect(x, y, w, 1);
    c.fillRect(x, y + h - 1, w, 1);
    c.fillStyle = this.look.ink;
    c.fillRect(x + w - 2, y, 2, h);
  }

  /** From where a partial result went on: a released tail is pale and striped; a provisional artifact has a rail along its bar, broken if it was rolled back. */
  drawEarly(x, y, w, h, early, flags, stage) {
    const { c, look } = this, from = clamp(this.snap(early), x, x + w), wide = x + w - from;
    if (!(flags & INSERTED)) {
      c.fillStyle = look.page;
      c.globalAlpha = 0.62;
      c.fillRect(from, y, wide, h);
      c.globalAlpha = 0.8;
      c.fillStyle = this.hatches[look.dark ? "light" : "dark"].tail;
      if (h >= 5) c.fillRect(from, y, wide, h);
      c.globalAlpha = 1;
      c.fillStyle = stage.colour;
      c.fillRect(from, y, wide, 1);
      c.fillRect(from, y + h - 1, wide, 1);
      c.fillStyle = look.ink;
      c.fillRect(from, y, 1, h);
      return;
    }
    const thick = Math.max(2, Math.min(4, h / 4)), ink = inkOn(stage.rgb), rail = y + (h >= 5 ? 1 : 0), gone = fateOf(flags) === "rolled back";
    c.fillStyle = ink;
    if (gone) for (let q = from; q < x + w - 1; q += 5) c.fillRect(q, rail, Math.min(3, x + w - q), thick);
    else c.fillRect(from, rail, wide, thick);
    c.fillRect(from, y, 1.5, h);
    if (wide < 16 || h < 10) return;
    c.font = `${Math.min(11, h - 2)}px ${look.font}`;
    c.textAlign = "left";
    c.fillText("◇", from + 3, y + (h + thick) / 2 + 1);
  }

  /** What became of the item: a sign at the end of the bar, or a cap where there is no room for one. */
  drawEnd(x, y, w, h, flags, ink) {
    const fate = fateOf(flags), item = itemOf(flags);
    const word = fate === "proven" ? "proven" : fate === "rolled back" ? "rolled_back" : item || verdictOf(flags).replace("accept", "");
    if (!word) return;
    const { c, look } = this;
    if (w < 10 || h < 8) {
      if (w < 3 || !["committed", "discarded", "discard", "proven", "rolled_back"].includes(word)) return;
      c.fillStyle = look.ink;
      if (word === "committed" || word === "proven") c.fillRect(x + w - 2, y, 2, h);
      else c.fillRect(x + w - 2, y + h / 2, 2, h / 2);
      return;
    }
    c.fillStyle = jobOf(flags) === 1 ? ink : look.ink;
    c.font = `bold ${Math.min(11, h - 1)}px ${look.font}`;
    c.textAlign = "right";
    c.fillText(GLYPHS[word.replace(/^discard$/, "discarded")] || "!", x + w - 2, y + h / 2 + 0.5);
  }

  /** Calls as thin lines, and the name of the text it works on, as far as Python has told. */
  drawInside(i, x, y, w, h, ink) {
    this.wanted.push(i);
    const more = this.store.about.get(i);
    if (!more) return;
    const { c, look } = this;
    const calls = more.inside.length && h >= 9, top = calls ? (h < 16 ? h - 3 : 12) : h;
    if (calls) this.drawCalls(more, x, y + top, w, h - top, ink);
    if (jobOf(this.store.flags(i)) >= FAILED) return;
    const name = more.artifact || more.item, left = Math.max(x, this.gutter);
    c.font = `${Math.min(11, top)}px ${look.font}`;
    c.textAlign = "left";
    if (c.measureText(name).width > w - 20 - (left - x)) return;
    c.fillStyle = ink;
    c.fillText(name, left + 4, y + top / 2 + 0.5);
  }

  /** A line per call, from a tick at its start to its end, in as many rows as there is room for. */
  drawCalls(more, x, y, w, h, ink) {
    const { c } = this, rows = Math.max(1, Math.floor(h / 3)), free = new Array(rows).fill(-Infinity);
    for (const [start, end, bad] of more.inside) {
      let n = free.findIndex((until) => until <= start);
      if (n < 0) n = free.indexOf(Math.min(...free));
      const until = end < 0 ? this.shown : end;
      free[n] = Math.max(free[n], until);
      const x0 = Math.max(x, this.x(start)), x1 = Math.min(x + w, this.x(until));
      if (x1 < x0) continue;
      c.fillStyle = bad ? "#d00000" : ink;
      c.globalAlpha = 0.45;
      c.fillRect(x0, y + 3 * n + 1, Math.max(1, x1 - x0), 1);
      c.globalAlpha = 0.85;
      c.fillRect(x0, y + 3 * n, 1, 3);
      if (end >= 0) c.fillRect(Math.max(x0, x1 - 1), y + 3 * n, 1, 3);
      this.inside++;
    }
    c.globalAlpha = 1;
  }

  drawStageNames() {
    const { c, look, store } = this;
    c.save();
    c.beginPath();
    c.rect(0, this.lanesTop, this.gutter, this.lanesHeight);
    c.clip();
    for (let n = 0; n < this.rows.length; ) {
      let m = n;
      while (m + 1 < this.rows.length && this.rows[m + 1].stage === this.rows[n].stage) m++;
      const stage = this.shades[this.rows[n].stage], top = this.rows[n].y, bottom = this.rows[m].y + this.row - 1;
      c.fillStyle = stage.colour;
      c.fillRect(this.gutter - 5, top, 3, bottom - top);
      const low = clamp((top + bottom) / 2, this.lanesTop + 7, this.lanesTop + this.lanesHeight - 7);
      c.fillStyle = look.ink;
      this.clipText(stage.name, this.gutter - 10, clamp(low, top, bottom), this.gutter - 16, "right", `12px ${look.font}`);
      n = m + 1;
    }
    c.restore();
    const lanes = this.rows.length ? this.rows[this.rows.length - 1].y + this.row - this.rows[0].y + 6 : 0;
    if (lanes > this.lanesHeight + 1) {
      c.fillStyle = look.soft;
      const size = (this.lanesHeight * this.lanesHeight) / lanes;
      c.fillRect(this.width - 6, this.lanesTop + (this.scroll * this.lanesHeight) / lanes, 4, size);
    }
  }

  /** Text cut with an ellipsis to a width. */
  clipText(text, x, y, room, align, font) {
    const { c } = this;
    c.font = font;
    c.textAlign = align;
    let shown = text;
    while (shown.length > 1 && c.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
    c.fillText(shown, x, y);
  }

  // --- the strip: slots busy (area) and items waiting (line) per stage ----------------------------------------------

  drawStrip() {
    const { c, look, store, dots, dpr } = this;
    const high = Math.max(4, Math.round((this.stripRow - 5) * dpr)), most = this.used.length;
    if (!most) return;
    if (this.strip.width !== dots || this.strip.height !== high * most) {
      this.strip.width = dots;
      this.strip.height = high * most;
      this.stripPixels = new ImageData(dots, high * most);
      this.stripWords = new Uint32Array(this.stripPixels.data.buffer);
    }
    this.stripWords.fill(0);
    const slots = new Array(store.stages.length).fill(0), longest = [];
    for (const lane of store.lanes) slots[lane.stage]++;
    this.used.forEach((n, at) => {
      this.fillBusy(n, at, high, this.shades[n].rgb, Math.max(1, slots[n]));
      longest[n] = this.traceQueue(n, at, high);
    });
    this.strip.getContext("2d").putImageData(this.stripPixels, 0, 0);
    c.imageSmoothingEnabled = false;
    this.used.forEach((n, at) => {
      const stage = this.shades[n], y = 3 + at * this.stripRow, h = high / dpr;
      c.fillStyle = look.band;
      c.fillRect(this.gutter, y, this.plot, h);
      c.drawImage(this.strip, 0, at * high, dots, high, this.gutter, y, this.plot, h);
      c.fillStyle = look.line;
      c.fillRect(this.gutter, y + h, this.plot, 1);
      c.fillStyle = look.ink;
      this.clipText(stage.name, this.gutter - 8, y + h / 2 - (this.narrow ? 0 : 5), this.gutter - 14, "right", `11px ${look.font}`);
      if (this.narrow) return;
      c.fillStyle = look.soft;
      c.font = `9px ${look.font}`;
      c.fillText(`${this.busyNow(n)}/${slots[n]} busy · ${this.waiting(n)} waiting`, this.gutter - 8, y + h / 2 + 6);
      if (longest[n] > 0) {
        const most = `≤ ${longest[n]}`;
        c.textAlign = "left";
        c.globalAlpha = 0.75;
        c.fillStyle = look.page;
        c.fillRect(this.gutter, y, c.measureText(most).width + 6, 10);
        c.globalAlpha = 1;
        c.fillStyle = look.ink;
        c.fillText(most, this.gutter + 3, y + 5);
      }
    });
  }

  busyNow(stage) {
    return this.store.lanes.filter((lane) => lane.stage === stage && lane.e.n && lane.e.a[lane.e.n - 1] === Infinity).length;
  }

  waiting(stage) {
    const line = this.store.queues[stage];
    return line?.value.n ? line.value.a[line.value.n - 1] : 0;
  }

  fillBusy(n, at, high, [r, g, b], slots) {
    const { dots, stripWords } = this, busy = this.busy[n];
    const colour = ((0xc8 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    for (let q = 0; q < dots; q++) {
      const top = high - Math.round((Math.min(busy[q], slots) / slots) * high);
      for (let y = top, o = (at * high + top) * dots + q; y < high; y++, o += dots) stripWords[o] = colour;
    }
  }

  /** The longest the queue was in each pixel, as a line; returns the longest in the window. */
  traceQueue(n, place, high) {
    const line = this.store.queues[n], { dots, stripWords, t0 } = this;
    if (!line || !line.at.n) return 0;
    const k = dots / (this.t1 - t0), at = line.at.a, value = line.value.a;
    const begin = Math.max(0, line.at.above(t0) - 1), end = line.at.above(this.t1);
    let most = 0;
    for (let p = begin; p < end; p++) if (value[p] > most) most = value[p];
    if (!most) return 0;
    const ink = this.look.dark ? 0xd0ffffff : 0xd0202020, tall = Math.max(most, 4), last = Math.min(dots, (this.shown - t0) * k);
    let p = begin, now = value[begin], before = -1;
    for (let q = Math.max(0, Math.floor((at[begin] - t0) * k)); q < last; q++) {
      let top = now;
      while (p < end && (at[p] - t0) * k <= q + 1) {
        now = value[p++];
        if (now > top) top = now;
      }
      const y = high - 1 - Math.round((top / tall) * (high - 2));
      const [low, up] = before < 0 ? [y, y] : [Math.min(y, before), Math.max(y, before)];
      for (let v = low; v <= up; v++) stripWords[(place * high + v) * dots + q] = ink;
      before = y;
    }
    return most;
  }

  // --- marks, axis, map ----------------------------------------------------------------------------------------------

  /** Changes in front of the bars; labels of changes first, then of commits, as far as they fit. */
  drawChanges() {
    const { c, look } = this, changes = this.marksInView("change"), versions = this.marksInView("version");
    const bottom = this.axisTop;
    c.strokeStyle = look.ink;
    c.lineWidth = 1.2;
    c.setLineDash([4, 3]);
    let last = -Infinity;
    for (const mark of changes) {
      const x = this.snap(this.x(mark.at)) + 0.5;
      if (x < last + 2) continue;
      last = x;
      c.beginPath();
      c.moveTo(x, 2);
      c.lineTo(x, bottom);
      c.stroke();
    }
    c.setLineDash([]);
    this.labels = [];
    this.heads = [];
    const first = (mark) => (mark.kind === "setting" ? 0 : 1);
    this.within(this.top, LABELS, () => {
      const rare = (mark) => (mark.kind === "rolled back" ? 0 : mark.kind === "confirmed" ? 2 : 1); // roll-backs get room first
      this.drawLabels(versions.sort((a, b) => rare(a) - rare(b)), this.top + 21, look.soft);
      this.drawLabels(changes.sort((a, b) => first(a) - first(b)), this.top + 7, look.ink);
    });
    if (this.store.live) {
      c.fillStyle = look.brand;
      const x = this.snap(this.x(this.shown));
      if (x >= this.gutter && x <= this.gutter + this.plot) c.fillRect(x, this.top, 1, bottom - this.top);
    }
  }

  /** Heads, and as many labels as fit; one that does not fit in its place may stand a little to the right. */
  drawLabels(marks, y, ink) {
    const { c, look } = this, taken = [], end = this.gutter + this.plot;
    const crowded = marks.length > this.plot / 3;
    c.fillStyle = ink;
    for (const mark of marks) {
      const commit = VERSIONS.has(mark.kind), x = this.x(mark.at);
      this.heads.push([x, mark]);
      c.fillStyle = mark.kind === "rolled back" ? look.ink : ink;
      if (!(commit && crowded) || mark.kind === "rolled back") this.drawHead(x, this.lanesTop - 3, mark.kind);
      if (taken.length > 60) continue;
      c.font = `${commit ? "" : "bold "}10px ${look.font}`;
      const width = c.measureText(mark.label).width + 10;
      let left = clamp(x - width / 2, this.gutter, end - width);
      const clash = () => taken.find(([a, b]) => left < b && left + width > a);
      if (!commit && clash()) left = clamp(clash()[1], this.gutter, end - width);
      if (clash()) continue;
      taken.push([left, left + width]);
      this.labels.push(mark.label);
      c.textAlign = "center";
      c.fillText(mark.label, left + width / 2, y);
    }
  }

  /** A triangle for a commit (hollow while provisional, barred once confirmed), a cross for a roll-back, a diamond for a change. */
  drawHead(x, y, kind) {
    const { c } = this, commit = VERSIONS.has(kind);
    if (kind === "rolled back") return this.drawCross(x, y - 3);
    if (kind === "provisional" || kind === "confirmed") {
      c.strokeStyle = c.fillStyle;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(x - 3, y - 4);
      c.lineTo(x + 3, y - 4);
      c.lineTo(x, y - 0.5);
      c.closePath();
      c.stroke();
      if (kind === "confirmed") c.fillRect(x - 3.5, y - 7, 7, 1.2);
      return undefined;
    }
    c.beginPath();
    c.moveTo(x - 3, y - 3);
    if (!commit) c.lineTo(x, y - 6);
    c.lineTo(x + 3, y - 3);
    c.lineTo(x, y);
    c.fill();
    return undefined;
  }

  drawCross(x, y) {
    const { c } = this;
    c.strokeStyle = c.fillStyle;
    c.lineWidth = 1.6;
    c.beginPath();
    for (const way of [-3, 3]) {
      c.moveTo(x - 3, y - way);
      c.lineTo(x + 3, y + way);
    }
    c.stroke();
  }

  ticksAt() {
    const step = (this.tickStep = niceStep((this.t1 - this.t0) / Math.max(2, this.plot / 90)));
    const ticks = [];
    for (let n = Math.ceil(Math.max(0, this.t0) / step); n * step <= this.t1; n++) ticks.push(n * step);
    return ticks;
  }

  drawAxis() {
    const { c, look } = this, y = this.axisTop;
    c.fillStyle = look.soft;
    c.fillRect(this.gutter, y, this.plot, 1 / this.dpr);
    c.font = `10px ${look.font}`;
    c.textAlign = "center";
    for (const t of this.ticksAt()) {
      const x = this.snap(this.x(t));
      c.fillRect(x, y, 1 / this.dpr, 4);
      const text = timeText(t, this.tickStep, this.t1), half = c.measureText(text).width / 2;
      if (x - half > this.gutter - 10 && x + half < this.width) c.fillText(text, x, y + 11);
    }
    c.textAlign = "right";
    c.fillText(this.store.clock === "wall" ? "seconds" : "lab time", this.gutter - 18, y + 11);
  }

  /** The whole run, drawn anew once a second at most; in between it is stretched. */
  drawMap() {
    const { c, look } = this, all = this.all();
    if (!this.mapped || performance.now() - this.mapped > 1000) this.paintMap(all);
    c.fillStyle = look.band;
    c.fillRect(this.gutter, this.mapTop, this.plot, this.mapHeight);
    c.imageSmoothingEnabled = true;
    const width = Math.min(this.plot, (this.plot * this.mapAll) / all);
    if (this.rows.length) c.drawImage(this.map, 0, 0, this.map.width, this.map.height, this.gutter, this.mapTop + 1, width, this.mapHeight - 2);
    c.fillStyle = look.ink;
    for (const mark of this.store.marks) {
      if (!VERSIONS.has(mark.kind)) c.fillRect(this.gutter + (mark.at / all) * this.plot, this.mapTop, 1, this.mapHeight);
    }
    const [x0, x1] = this.mapWindow();
    c.fillStyle = look.page;
    c.globalAlpha = 0.6;
    c.fillRect(this.gutter, this.mapTop, x0 - this.gutter, this.mapHeight);
    c.fillRect(x1, this.mapTop, this.gutter + this.plot - x1, this.mapHeight);
    c.globalAlpha = 1;
    c.strokeStyle = look.brand;
    c.lineWidth = 1.5;
    c.strokeRect(x0, this.mapTop + 0.75, x1 - x0, this.mapHeight - 1.5);
    c.fillStyle = look.soft;
    c.font = `10px ${look.font}`;
    c.textAlign = "right";
    c.fillText("whole run", this.gutter - 8, this.mapTop + this.mapHeight / 2);
  }

  mapWindow() {
    const k = this.plot / this.all();
    const x0 = clamp(this.gutter + this.t0 * k, this.gutter, this.gutter + this.plot - 3);
    return [x0, clamp(this.gutter + this.t1 * k, x0 + 3, this.gutter + this.plot)];
  }

  paintMap(all) {
    const { store } = this, wide = Math.max(1, Math.min(1200, Math.round(this.plot))), high = Math.max(1, this.rows.length);
    this.map.width = wide;
    this.map.height = high;
    this.mapped = performance.now();
    this.mapAll = all;
    const image = new ImageData(wide, high), words = new Uint32Array(image.data.buffer), cover = new Float32Array(wide + 1);
    const k = wide / all;
    this.rows.forEach(({ lane, stage }, n) => {
      const [r, g, b] = this.shades[stage].rgb, s = lane.s.a, e = lane.e.a;
      cover.fill(0);
      for (let p = 0; p < lane.s.n; p++) {
        const x0 = s[p] * k, x1 = Math.min(wide, Math.min(e[p], this.shown) * k), first = x0 | 0, last = x1 | 0;
        if (first === last) cover[first] += x1 - x0;
        else {
          cover[first] += first + 1 - x0;
          for (let q = first + 1; q < last; q++) cover[q] = 1;
          cover[last] += x1 - last;
        }
      }
      for (let q = 0; q < wide; q++) {
        const alpha = Math.round(255 * Math.min(1, cover[q]));
        words[n * wide + q] = ((alpha << 24) | (b << 16) | (g << 8) | r) >>> 0;
      }
    });
    this.map.getContext("2d").putImageData(image, 0, 0);
  }

  // --- what is in words ------------------------------------------------------------------------------------------------

  words() {
    const { store } = this;
    const stop = store.status === "stopped" ? store.marks.findLast((mark) => mark.kind === "stop") : null;
    const kind = stop?.text.match(/^stopped \((\w+)\)/)?.[1];
    const states = { new: "waiting", running: store.growing ? "running" : "not being written", paused: "paused", stopped: kind ? `ended (${kind})` : "ended" };
    const text = `${states[store.status] || store.status} · ${timeText(this.shown, this.shown < 120 ? 0.1 : 1, this.shown)} · ${store.count.toLocaleString("en")} jobs`;
    if (this.state.textContent !== text) this.state.textContent = text;
    this.state.title = stop ? stop.text : "";
    this.state.dataset.state = store.live ? store.status : "stopped";
    this.empty.hidden = store.count > 0 || !this.failed.hidden;
    const waiting = store.status === "stopped" || !store.growing ? "The run ended before any job started." : "Waiting for the first job…";
    if (this.empty.textContent !== waiting) this.empty.textContent = waiting;
    this.followButton.setAttribute("aria-pressed", String(this.mode !== "free"));
    this.followButton.disabled = !store.live;
    const names = this.used.map((n) => store.stages[n].name + this.shades[n].colour).join("\n") + (store.early ? "\nearly" : "");
    if (names !== this.legendOf) this.drawLegend(names);
    this.showDetail();
    const label = `Timeline of ${store.count} jobs in ${store.lanes.length} worker slots, ${states[store.status]}. Arrows pan, plus and minus zoom, 0 shows all, f follows, brackets move between jobs, Escape deselects.`;
    if (this.labelled !== store.count) this.over.setAttribute("aria-label", label);
    this.labelled = store.count;
  }

  drawLegend(names) {
    this.legendOf = names;
    this.legend.replaceChildren();
    for (const n of this.used) {
      const stage = this.shades[n];
      const chip = make("span", "lab-gantt-chip", this.legend);
      make("i", "", chip).style.background = stage.colour;
      make("span", "", chip, stage.name);
    }
    for (const kind of ["failed", "abandoned", "lost"]) {
      const chip = make("span", "lab-gantt-chip", this.legend);
      make("i", `lab-gantt-${kind}`, chip);
      make("span", "", chip, kind);
    }
    const early = this.store.early ? [["", "late samples of a released job"], ["◇", "in the pool provisionally"], ["↶", "rolled back"], ["⊣", "proven unable to win"]] : [];
    for (const [sign, word] of [["▲", "committed"], ["–", "rejected"], ["×", "discarded"], ["↻", "updated"], ["+", "patched"], ...early]) {
      const chip = make("span", "lab-gantt-chip", this.legend);
      make(sign ? "b" : "i", sign ? "" : "lab-gantt-tail", chip, sign);
      make("span", "", chip, word);
    }
  }

  /** The selected job in words, below the chart; a running one anew four times a second. */
  showDetail() {
    const { store } = this, now = performance.now();
    if (this.selected < 0 || this.selected >= store.count) {
      if (this.detailOf !== "hint") this.detail.textContent = HINT;
      this.detailOf = "hint";
      return;
    }
    store.tell([this.selected]);
    if (this.detailOf === this.selected && now - this.detailAt < 250) return;
    const lines = describe(store, this.selected, this.shown), known = store.about.has(this.selected);
    this.detailAt = known ? now : 0;
    this.detailOf = this.selected;
    fill(this.detail, "span", lines);
    if (this.saidOf === this.selected || !known) return;
    this.saidOf = this.selected;
    this.said.textContent = lines.map((line) => line.join(" ")).join(", ");
  }

  // --- over the chart: pointer, tooltip, selection -------------------------------------------------------------------

  drawOver() {
    const { o, look } = this;
    o.setTransform(this.dpr, 0, 0, this.dpr, 0, 0);
    o.clearRect(0, 0, this.width, this.height);
    if (this.selected >= 0 && this.selected < this.store.count) {
      this.drawPath();
      this.outline(this.selected, look.brand, 2.5);
    }
    if (this.hover >= 0 && this.hover < this.store.count) this.outline(this.hover, look.ink, 1.5);
    if (this.pointer && this.pointer.x >= this.gutter && !this.drag) {
      o.fillStyle = look.soft;
      o.fillRect(this.pointer.x, this.top, 1, this.axisTop - this.top);
    }
    this.placeTip();
  }

  box(i) {
    const span = this.store.span(i), { row } = span.lane;
    if (!row) return null;
    const x0 = this.x(span.start), x1 = this.x(Math.min(span.end, this.shown));
    return { x: x0, y: row.y, w: Math.max(3, x1 - x0), h: Math.max(3, this.row - (this.row >= 5 ? 1 : 0)) };
  }

  outline(i, colour, width) {
    const { o } = this, box = this.box(i);
    if (!box || box.y + box.h < this.lanesTop || box.y > this.axisTop) return;
    const x = clamp(box.x, this.gutter - 5, this.gutter + this.plot + 5), right = clamp(box.x + box.w, this.gutter - 5, this.gutter + this.plot + 5);
    if (right <= this.gutter - 5 || x >= this.gutter + this.plot + 5) return;
    o.strokeStyle = this.look.page;
    o.lineWidth = width + 2;
    o.strokeRect(x - 1, box.y - 1, right - x + 2, box.h + 2);
    o.strokeStyle = colour;
    o.lineWidth = width;
    o.strokeRect(x - 1, box.y - 1, right - x + 2, box.h + 2);
  }

  /** The way of the selected job's item through the stages. */
  drawPath() {
    const more = this.store.about.get(this.selected), { o } = this;
    if (!more?.path || more.path.length < 2) return;
    o.save();
    o.beginPath();
    o.rect(this.gutter, this.lanesTop, this.plot, this.lanesHeight);
    o.clip();
    o.strokeStyle = this.look.brand;
    o.lineWidth = 1.5;
    o.setLineDash([3, 2]);
    o.beginPath();
    let before = null;
    for (const i of more.path.filter((n) => n < this.store.count)) {
      const box = this.box(i);
      if (!box) continue;
      if (before) {
        o.moveTo(before.x + before.w, before.y + before.h / 2);
        o.lineTo(box.x, box.y + box.h / 2);
      }
      before = box;
    }
    o.stroke();
    o.setLineDash([]);
    for (const i of more.path.filter((n) => n < this.store.count)) this.outline(i, this.look.brand, 1);
    o.restore();
  }

  /** The job under a point, within three pixels, or −1. */
  hit(x, y) {
    if (x < this.gutter || y < this.lanesTop || y > this.axisTop) return -1;
    const row = this.rows.find((r) => y >= r.y && y < r.y + this.row);
    if (!row) return -1;
    const { lane } = row, t = this.time(x), reach = 3 / this.k;
    const p = lane.e.above(t - reach);
    if (p >= lane.s.n || lane.s.a[p] > t + reach) return -1;
    const next = p + 1 < lane.s.n && lane.s.a[p + 1] <= t ? p + 1 : p;
    return lane.i.a[lane.e.a[p] >= t ? p : next];
  }

  point(i, event) {
    this.pointer = event ? { x: event.offsetX, y: event.offsetY } : null;
    this.hover = i;
    if (i >= 0) this.store.tell([i]);
    this.overDirty = true;
    this.request();
  }

  placeTip() {
    const { tip, store } = this, at = this.pointer;
    const lines = at && !this.drag ? this.tipLines(at) : null;
    tip.hidden = !lines;
    if (!lines) return;
    const key = lines.map((line) => line.join(" ")).join("\n");
    if (key !== this.tipOf) {
      this.tipOf = key;
      fill(tip, "div", lines);
    }
    const right = at.x + 16 + tip.offsetWidth > this.width, below = at.y + 16 + tip.offsetHeight > this.height;
    tip.style.left = `${Math.max(2, right ? at.x - tip.offsetWidth - 10 : at.x + 14)}px`;
    tip.style.top = `${Math.max(2, below ? at.y - tip.offsetHeight - 8 : at.y + 14)}px`;
    if (this.hover >= 0) store.tell([this.hover]);
  }

  tipLines(at) {
    if (this.hover >= 0 && this.hover < this.store.count) return describe(this.store, this.hover, this.shown);
    if (at.y > this.top && at.y < this.lanesTop) {
      const near = (this.heads || []).filter(([x]) => Math.abs(x - at.x) < 5).slice(0, 6);
      return near.length ? near.map(([, mark], n) => [n ? `${mark.at.toFixed(1)} s` : "", n ? mark.text : `${mark.text} · ${mark.at.toFixed(2)} s`]) : null;
    }
    if (at.y < this.top && at.x >= this.gutter) return this.stripLines(at);
    return null;
  }

  stripLines(at) {
    const n = this.used[Math.floor((at.y - 3) / this.stripRow)], stage = this.store.stages[n];
    if (!stage) return null;
    const t = this.time(at.x);
    if (t > this.shown || t < 0) return null;
    const line = this.store.queues[n], p = line ? line.at.above(t) - 1 : -1;
    const busy = this.store.lanes.filter((lane) => {
      const q = lane.e.above(t);
      return lane.stage === n && q < lane.s.n && lane.s.a[q] <= t;
    }).length;
    return [["", `${stage.name} at ${t.toFixed(2)} s`], ["busy", `${busy} slots (filled)`], ["waiting", `${p >= 0 ? line.value.a[p] : 0} items (line)`]];
  }

  select(i, tell = true) {
    if (i === this.selected) return;
    this.selected = i;
    this.detailOf = null;
    this.showDetail();
    this.overDirty = true;
    this.request();
    if (!tell) return;
    this.model.set("selected_index", i);
    this.model.save_changes();
  }

  /** Bring a job into the window. */
  reveal(i) {
    const span = this.store.span(i), end = Math.min(span.end, this.shown), wide = this.t1 - this.t0;
    if (span.start < this.t0 || span.start > this.t1 || (end > this.t1 && end - span.start < wide)) this.goTo(span.start - 0.3 * wide, wide);
    const { row } = span.lane;
    if (row && row.y < this.lanesTop) this.scroll -= this.lanesTop - row.y + 4;
    if (row && row.y + this.row > this.axisTop) this.scroll += row.y + this.row - this.axisTop + 4;
    this.changed();
  }

  // --- moving about ----------------------------------------------------------------------------------------------------

  /** Show `span` seconds from t0 on; at the right edge of a live run this means to follow. */
  goTo(t0, span) {
    const all = this.all();
    this.auto = false;
    span = clamp(span, 1e-4, all * 1.05);
    t0 = clamp(t0, Math.min(0, all - span) - 0.02 * span, Math.max(0, all - 0.2 * span));
    [this.t0, this.t1] = [t0, t0 + span];
    const edge = this.store.live && this.t1 >= this.shown;
    this.mode = span >= all * 0.999 ? "fit" : edge ? "follow" : "free";
    this.changed();
  }

  pan(share) {
    const span = this.t1 - this.t0;
    this.goTo(this.t0 + share * span, span);
  }

  zoom(factor, around) {
    const span = this.t1 - this.t0;
    const t = around ?? (this.selected >= 0 && this.selected < this.store.count ? this.store.span(this.selected).start : this.mode === "free" ? (this.t0 + this.t1) / 2 : this.shown);
    const anchor = clamp(t, this.t0, this.t1);
    const wide = clamp(span * factor, 1e-4, this.all() * 1.05);
    this.goTo(anchor - ((anchor - this.t0) / span) * wide, wide);
  }

  zoomTo(i) {
    if (i < 0) return;
    const span = this.store.span(i), wide = Math.max(1e-4, Math.min(span.end, this.shown) - span.start);
    this.goTo(span.start - 0.15 * wide, 1.3 * wide);
  }

  fit() {
    this.mode = "fit";
    this.auto = false;
    this.rowHeight = 0;
    this.changed();
  }

  toggleFollow() {
    if (this.mode !== "free") this.mode = "free";
    else {
      this.mode = "follow";
      this.follow(this.t1 - this.t0);
    }
    this.auto = false;
    this.changed();
  }

  thicken(factor) {
    this.rowHeight = clamp(this.row * factor, 3, 60);
    this.changed();
  }

  foreign(event) {
    if (!this.root.contains(event.target)) this.scrolledAt = performance.now();
  }

  /** Zooms around the pointer; a page scroll that began elsewhere passes through, and so does zooming out of all there is. */
  wheel(event) {
    const now = performance.now();
    if (!event.ctrlKey && now - (this.scrolledAt ?? -1e9) < 400) {
      this.scrolledAt = now;
      return;
    }
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 200 : 1;
    const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
    if (event.altKey) this.thicken(Math.exp(-dy / 300));
    else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) this.pan((Math.abs(dx) > Math.abs(dy) ? dx : dy) / this.plot);
    else if (dy > 0 && this.mode === "fit" && !this.auto && !event.ctrlKey) return;
    else this.zoom(Math.exp(clamp(dy, -200, 200) / (event.ctrlKey ? 100 : 400)), this.time(event.offsetX));
    event.preventDefault();
  }

  press(event) {
    if (event.button) return;
    this.fingers ??= new Map();
    this.fingers.set(event.pointerId, event.offsetX);
    this.over.setPointerCapture(event.pointerId);
    const inMap = event.offsetY >= this.mapTop;
    this.drag = { x: event.offsetX, y: event.offsetY, t0: this.t0, span: this.t1 - this.t0, scroll: this.scroll, inMap, far: false };
    if (this.fingers.size === 2) this.drag.pinch = this.spread();
    if (inMap) this.moveMap(event.offsetX, true);
  }

  spread() {
    const [a, b] = [...this.fingers.values()];
    return { wide: Math.max(8, Math.abs(a - b)), middle: (a + b) / 2 };
  }

  move(event) {
    const { drag } = this;
    if (this.fingers?.has(event.pointerId)) this.fingers.set(event.pointerId, event.offsetX);
    if (!drag) return this.point(this.hit(event.offsetX, event.offsetY), event);
    const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
    if (!drag.far && Math.hypot(dx, dy) < 4) return undefined;
    if (!drag.far) {
      drag.far = true;
      this.tip.hidden = true;
    }
    if (drag.inMap) return this.moveMap(event.offsetX, false);
    if (drag.pinch && this.fingers.size === 2) {
      const { wide, middle } = this.spread(), span = (drag.span * drag.pinch.wide) / wide;
      const t = drag.t0 + ((drag.pinch.middle - this.gutter) / this.plot) * drag.span;
      return this.goTo(t - ((middle - this.gutter) / this.plot) * span, span);
    }
    this.scroll = drag.scroll - dy;
    return this.goTo(drag.t0 - (dx / this.plot) * drag.span, drag.span);
  }

  moveMap(x, begin) {
    const [x0, x1] = this.mapWindow(), span = this.t1 - this.t0;
    if (begin) this.drag.grip = x >= x0 && x <= x1 ? x - x0 : (x1 - x0) / 2;
    this.goTo(((x - this.drag.grip - this.gutter) / this.plot) * this.all(), span);
  }

  release(event) {
    const { drag } = this;
    this.fingers?.delete(event.pointerId);
    if (this.fingers?.size) return;
    this.drag = null;
    if (drag && !drag.far && !drag.inMap && event.type === "pointerup") this.select(this.hit(event.offsetX, event.offsetY));
    this.overDirty = true;
    this.request();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey) return;
    const step = event.shiftKey ? 0.5 : 0.1;
    const acts = {
      ArrowLeft: () => this.pan(-step), ArrowRight: () => this.pan(step),
      ArrowUp: () => this.lift(-1, event), ArrowDown: () => this.lift(1, event),
      "+": () => this.zoom(1 / 1.4), "=": () => this.zoom(1 / 1.4), "-": () => this.zoom(1.4), _: () => this.thicken(1 / 1.25), "*": () => this.thicken(1.25),
      0: () => this.fit(), f: () => this.toggleFollow(), Escape: () => this.select(-1),
      "[": () => this.step(-1), "]": () => this.step(1), Enter: () => this.zoomTo(this.selected),
      Home: () => this.goTo(0, this.t1 - this.t0), End: () => this.goTo(this.shown, this.t1 - this.t0),
    };
    const act = acts[event.key];
    if (!act) return;
    act();
    event.preventDefault();
    event.stopPropagation();
  }

  /** Up and down: with Alt to the job in the neighbouring lane, else the lanes scroll. */
  lift(way, event) {
    if (!event.altKey || this.selected < 0 || this.selected >= this.store.count) {
      this.scroll += 40 * way;
      return this.changed();
    }
    const span = this.store.span(this.selected), n = this.rows.indexOf(span.lane.row) + way;
    const lane = this.rows[n]?.lane;
    if (lane?.s.n) this.choose(lane.i.a[clamp(lane.s.above(span.start) - 1, 0, lane.s.n - 1)]);
    return undefined;
  }

  /** To the job before or after the selected one in its lane; without one, to the last that began in the window. */
  step(way) {
    const { store } = this;
    if (!store.count) return;
    if (this.selected < 0 || this.selected >= store.count) {
      let best = -1;
      for (const { lane } of this.rows) {
        const p = lane.s.above(this.t1) - 1;
        if (p >= 0 && (best < 0 || lane.s.a[p] > store.span(best).start)) best = lane.i.a[p];
      }
      this.choose(best < 0 ? 0 : best);
      return;
    }
    const { lane, p } = store.span(this.selected);
    this.choose(lane.i.a[clamp(p + way, 0, lane.s.n - 1)]);
  }

  choose(i) {
    this.select(i);
    this.reveal(i);
  }
}

// ---------------------------------------------------------------------------------------------------------- anywidget

export default () => {
  let store;
  return {
    initialize({ model }) {
      store = new Store((message) => model.send(message));
      const whole = () => store.whole(model.get("snapshot"));
      const grow = () => {
        store.growing = model.get("growing") !== false;
        for (const view of store.views) view.changed();
      };
      const hear = (message, buffers) => {
        if (message.kind === "add") store.add(message, buffers);
        else if (message.kind === "about") store.told(message.jobs);
      };
      model.on("change:snapshot", whole);
      model.on("change:growing", grow);
      model.on("msg:custom", hear);
      grow();
      whole();
      store.send({ kind: "follows" });
      return () => {
        model.off("change:snapshot", whole);
        model.off("change:growing", grow);
        model.off("msg:custom", hear);
      };
    },
    render({ model, el }) {
      const view = new View(model, store, el);
      store.views.add(view);
      el.labGantt = view; // for tests
      return () => view.destroy();
    },
  };
};
