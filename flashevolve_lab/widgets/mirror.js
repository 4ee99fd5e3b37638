// What every mirror shares (see mirror.py): the copy of the document, small builders of DOM and SVG, numbers in words.
// Texts from models and users reach the page only through textContent.

const decoder = new TextDecoder();
const parsed = (bytes) => (bytes && bytes.byteLength ? JSON.parse(decoder.decode(bytes)) : null);

/** The document as far as it is known here; `changed(fn)` subscribes and returns the way to unsubscribe. */
function mirrored(model) {
  const doc = { revision: 0, now: {}, rows: [] };
  const listeners = new Set();
  let scheduled = false;
  const tell = () => {
    if (scheduled) return;
    scheduled = true;
    const run = () => { if (scheduled) { scheduled = false; listeners.forEach((listener) => listener()); } };
    requestAnimationFrame(run);
    setTimeout(run, 500); // a hidden tab has no animation frames
  };
  const take = (message) => {
    if (!message) return;
    if (message.whole && message.revision >= doc.revision) { doc.now = {}; doc.rows = []; }
    else if (message.revision <= doc.revision) return;
    else if (message.revision !== doc.revision + 1 || message.rows_from !== doc.rows.length) {
      model.send({ kind: "follows", revision: doc.revision });
      return;
    }
    Object.assign(doc.now, message.now);
    doc.rows = doc.rows.concat(message.rows);
    doc.revision = message.revision;
    tell();
  };
  take(parsed(model.get("snapshot")));
  model.on("change:snapshot", () => take(parsed(model.get("snapshot"))));
  model.on("msg:custom", (content, buffers) => { if (content.kind === "document") take(parsed(buffers[0])); });
  model.send({ kind: "follows", revision: doc.revision }); // answered only if something was missed while this was loading
  doc.changed = (listener) => { listeners.add(listener); return () => listeners.delete(listener); };
  return doc;
}

function put(parent, tag, attributes = {}, text = null) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) el.setAttribute(name, value);
  if (text !== null) el.textContent = text;
  parent.appendChild(el);
  return el;
}

function draw(parent, tag, attributes = {}, text = null) {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) el.setAttribute(name, value);
  if (text !== null) el.textContent = text;
  parent.appendChild(el);
  return el;
}

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });
const scored = (x) => (x === null || x === undefined ? "–" : (Math.round(x * 1000) / 1000).toString());
const short = (x) => (Math.abs(x) >= 1e6 ? `${+(x / 1e6).toFixed(2)}M` : Math.abs(x) >= 1e4 ? `${+(x / 1e3).toFixed(1)}k` : grouped.format(x));
const time = (s) => {
  if (s < 60) return `${s.toFixed(1)} s`;
  const [h, m, rest] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, Math.floor(s % 60)];
  return (h ? `${h}:${String(m).padStart(2, "0")}` : `${m}`) + `:${String(rest).padStart(2, "0")}`;
};

/** About `count` round numbers from `low` to `high`. */
function ticks(low, high, count) {
  const span = high - low || 1;
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
  const found = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) found.push(+x.toPrecision(12));
  return found;
}

/** Calls `redraw` when the element's width changes; returns the way to stop. */
function sized(el, redraw) {
  let width = 0;
  const observer = new ResizeObserver(() => {
    if (Math.abs(el.clientWidth - width) < 1) return;
    width = el.clientWidth;
    redraw();
  });
  observer.observe(el);
  return () => observer.disconnect();
}

/** Shows the failure of a view in the view. */
function failing(model, el) {
  const note = put(el, "div", { class: "fl-failed", role: "alert" });
  const show = () => { note.textContent = model.get("failed"); note.hidden = !model.get("failed"); };
  model.on("change:failed", show);
  show();
  return () => model.off("change:failed", show);
}
