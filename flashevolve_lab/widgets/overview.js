// The overview: header, score chart and facts, each a view (`part`) of its own mirrored document.

const MOST_TEXT = 4000;

// --- header ---------------------------------------------------------------------------------------------------------

function header(model, doc, el) {
  const root = put(el, "section", { class: "fl-head", "aria-label": "Overview of the run" });
  const row = put(root, "div", { class: "fl-row" });
  const state = put(row, "span", { class: "fl-state", role: "status" });
  const name = put(row, "strong", { class: "fl-name" });
  const chips = put(row, "span", { class: "fl-chips" });
  const figures = put(row, "span", { class: "fl-figures" });
  const proposer = put(root, "div", { class: "fl-note fl-proposer" });
  const company = put(root, "div", { class: "fl-note fl-company" });
  const stop = put(root, "div", { class: "fl-stop" });
  const line = put(root, "div", { class: "fl-line" });
  const best = put(root, "details", { class: "fl-best" });
  const summary = put(best, "summary");
  const texts = put(best, "div");
  let shown = "", whole = "";

  const drawTexts = () => {
    const now = doc.now;
    const key = `${now.best_artifact}/${whole === now.best_artifact}`;
    if (shown === key || !now.best_texts) return;
    shown = key;
    texts.replaceChildren();
    for (const [component, text, length] of now.best_texts) {
      put(texts, "div", { class: "fl-component" }, component);
      put(texts, "pre", { class: "fl-text", dir: "auto", tabindex: "0" }, text);
      if (length > text.length) {
        const more = put(texts, "button", { type: "button", class: "fl-button" }, `show all ${grouped.format(length)} characters`);
        more.onclick = () => model.send({ kind: "whole text" });
      }
    }
  };
  const redraw = () => {
    const now = doc.now;
    state.textContent = now.state === "stopped" ? "ended" : now.state || "new"; // as every other view says it
    state.dataset.state = now.state || "new";
    name.textContent = now.run || "";
    name.title = [now.algorithm, now.task, now.created].filter(Boolean).join(" · ");
    chips.replaceChildren();
    if (now.simulated) put(chips, "span", { class: "fl-chip" }, "simulated model");
    if (now.clock && now.clock !== "wall") put(chips, "span", { class: "fl-chip" }, `${now.clock} clock`);
    if (now.elsewhere) put(chips, "span", { class: "fl-chip" }, "another process runs it");
    const gain = now.best === null || now.best === undefined ? "" : ` (seed’s score ${scored(now.seed)})`;
    const facts = [
      ["best", `${scored(now.best)}${gain}`],
      ["proposals", `${short(now.proposals || 0)}, ${short(now.accepted || 0)} accepted`],
      ["a minute", `${short(Math.round(10 * (now.pace || 0)) / 10)} proposals`],
      ["in flight", `${now.in_flight || 0} of ${now.depth || 0}`],
      ["time", time(now.at || 0)],
    ];
    figures.replaceChildren();
    for (const [label, value] of facts) {
      const pair = put(figures, "span", { class: "fl-figure" });
      put(pair, "span", { class: "fl-label" }, label);
      put(pair, "span", { class: "fl-value" }, value);
    }
    proposer.textContent = now.proposer || "";
    proposer.hidden = !now.proposer;
    company.textContent = now.company || "";
    company.hidden = !now.company;
    stop.textContent = now.stopped || "";
    stop.hidden = !now.stopped;
    line.textContent = now.line || "";
    summary.textContent = now.best_artifact ? `Best text so far: ${now.best_artifact}, score ${scored(now.best)}` : "";
    best.hidden = !now.best_artifact;
    drawTexts();
    el.dataset.labStatus = JSON.stringify({ seq: now.seq || 0, state: now.state || "", best: now.best ?? null, line: now.line || "" });
  };
  const hear = (content, buffers) => {
    if (content.kind !== "whole text") return;
    doc.now.best_texts = parsed(buffers[0]);
    whole = doc.now.best_artifact;
    drawTexts();
  };
  model.on("msg:custom", hear);
  const unsubscribe = doc.changed(redraw);
  redraw();
  return () => { unsubscribe(); model.off("msg:custom", hear); };
}

// --- score chart ----------------------------------------------------------------------------------------------------

const AXES = [["at", "seconds"], ["metric_calls", "metric calls"], ["llm_calls", "model calls"], ["tokens", "tokens"], ["dollars", "dollars"]];
const COLUMN = { at: 0, metric_calls: 1, llm_calls: 2, tokens: 3, dollars: 4, version: 5, artifact: 6, mean: 7, best: 8 };

function score(model, doc, el) {
  const root = put(el, "section", { class: "fl-card", "aria-label": "Score" });
  const head = put(root, "div", { class: "fl-row" });
  put(head, "span", { class: "fl-title" }, "Score");
  const choice = put(head, "span", { class: "fl-choice", role: "radiogroup", "aria-label": "Horizontal axis" });
  const svg = draw(root, "svg", { class: "fl-chart", role: "img", tabindex: "0", height: 230, "data-lm-suppress-shortcuts": "true" });
  const note = put(root, "div", { class: "fl-note", "aria-live": "polite" });
  let axis = "at", pointed = -1, places = [];

  for (const [key, label] of AXES) {
    const button = put(choice, "button", { type: "button", class: "fl-button", role: "radio", "data-axis": key }, label);
    button.onclick = () => { axis = key; redraw(); };
  }
  const describe = (i) => {
    const p = doc.rows[i];
    const spent = AXES.map(([key, label]) => `${short(p[COLUMN[key]])} ${label}`).filter((t) => !t.startsWith("0 ")).join(", ");
    return `${p[COLUMN.artifact]}, version ${p[COLUMN.version]}: mean score ${scored(p[COLUMN.mean])} after ${spent}`;
  };
  const point = (i) => { pointed = i; redraw(); };
  svg.onmousemove = (event) => {
    const x = event.offsetX, y = event.offsetY;
    let near = -1, least = 900;
    places.forEach(([px, py], i) => {
      const d = (px - x) ** 2 + (py - y) ** 2;
      if (d < least) { least = d; near = i; }
    });
    if (near !== pointed) point(near);
    svg.style.cursor = near >= 0 ? "pointer" : "default";
  };
  svg.onmouseleave = () => point(-1);
  const choose = () => {
    if (pointed < 0) return;
    model.set("selected", doc.rows[pointed][COLUMN.artifact]);
    model.save_changes();
  };
  svg.onclick = choose;
  svg.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && doc.rows.length) point(Math.min(doc.rows.length - 1, Math.max(0, pointed + step)));
    else if (event.key === "Enter") choose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const redraw = () => {
    const width = Math.max(240, root.clientWidth - 2), height = 230;
    const [left, right, top, bottom] = [44, 12, 10, 24];
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.replaceChildren();
    const rows = doc.rows, now = doc.now;
    for (const button of choice.children) {
      button.setAttribute("aria-checked", button.dataset.axis === axis);
      button.hidden = button.dataset.axis === "dollars" && !now.dollars;
    }
    places = [];
    el.dataset.labStatus = JSON.stringify({ points: rows.length, axis, selected: model.get("selected") });
    if (!rows.length) { note.textContent = "Nothing is scored yet."; return; }
    const xs = rows.map((p) => p[COLUMN[axis]]);
    const end = Math.max(now[axis] || 0, xs[xs.length - 1], 1e-9);
    const means = rows.map((p) => p[COLUMN.mean]);
    let low = Math.min(...means), high = Math.max(...means);
    const pad = (high - low) * 0.06 || 0.05;
    low -= pad; high += pad;
    const X = (x) => left + (x / end) * (width - left - right);
    const Y = (y) => height - bottom - ((y - low) / (high - low)) * (height - top - bottom);
    for (const y of ticks(low, high, 4)) {
      draw(svg, "line", { x1: left, x2: width - right, y1: Y(y), y2: Y(y), class: "fl-grid" });
      draw(svg, "text", { x: left - 6, y: Y(y) + 3.5, class: "fl-tick", "text-anchor": "end" }, scored(y));
    }
    for (const x of ticks(0, end, Math.max(2, Math.floor(width / 110)))) {
      draw(svg, "text", { x: X(x), y: height - 7, class: "fl-tick", "text-anchor": "middle" }, axis === "at" ? time(x).replace(".0 s", " s") : short(x));
    }
    let path = "";
    rows.forEach((p, i) => {
      const y = Y(p[COLUMN.best]);
      path += i ? `H${X(xs[i]).toFixed(1)}V${y.toFixed(1)}` : `M${X(xs[0]).toFixed(1)},${y.toFixed(1)}`;
    });
    draw(svg, "path", { d: `${path}H${X(end).toFixed(1)}`, class: "fl-best-line" });
    const every = Math.max(1, Math.ceil(rows.length / 800));
    const selected = model.get("selected");
    rows.forEach((p, i) => {
      places.push([X(xs[i]), Y(means[i])]);
      const leads = p[COLUMN.mean] === p[COLUMN.best], chosen = p[COLUMN.artifact] === selected;
      if (i % every && !leads && !chosen && i !== pointed) return;
      const kind = `fl-dot${leads ? " fl-lead" : ""}${chosen ? " fl-chosen" : ""}${i === pointed ? " fl-pointed" : ""}`;
      draw(svg, "circle", { cx: X(xs[i]), cy: Y(means[i]), r: chosen || i === pointed ? 5 : leads ? 3.2 : 2.2, class: kind });
    });
    const said = `Best ${scored(rows[rows.length - 1][COLUMN.best])} after ${rows.length} commits; dots are committed artifacts, the line is the best so far.`;
    note.textContent = pointed >= 0 ? describe(pointed) : said;
    svg.setAttribute("aria-label", said);
  };
  model.on("change:selected", redraw);
  const stops = [doc.changed(redraw), sized(root, redraw), () => model.off("change:selected", redraw)];
  redraw();
  return () => stops.forEach((stop) => stop());
}

// --- facts ----------------------------------------------------------------------------------------------------------

const WORDS = { metric_calls: "metric calls", llm_calls: "model calls", tokens: "tokens", dollars: "dollars", seconds: "seconds", proposals: "proposals" };

function bar(parent, label, value, share, reserved, text, kind = "") {
  const row = put(parent, "div", { class: `fl-bar-row ${kind}` });
  put(row, "span", { class: "fl-bar-label" }, label);
  const track = put(row, "span", { class: "fl-track", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 1,
    "aria-valuenow": Math.min(1, share).toFixed(3), "aria-valuetext": text });
  put(track, "span", { class: "fl-fill", style: `width:${(100 * Math.min(1, share)).toFixed(2)}%` });
  if (reserved > 0) put(track, "span", { class: "fl-reserved", style: `width:${(100 * Math.min(1 - Math.min(1, share), reserved)).toFixed(2)}%` });
  put(row, "span", { class: "fl-bar-text" }, value);
}

function table(parent, heads, rows) {
  const el = put(parent, "table", { class: "fl-table" });
  const head = put(put(el, "thead"), "tr");
  heads.forEach((text, i) => put(head, "th", i ? { scope: "col", class: "fl-number" } : { scope: "col" }, text));
  const body = put(el, "tbody");
  for (const row of rows) {
    const line = put(body, "tr");
    row.forEach((text, i) => put(line, "td", i ? { class: "fl-number" } : {}, text));
  }
}

const address = (name) => name.replace(/^https?:\/\//, "").replace(/\/v1$/, "");
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;

function facts(model, doc, el) {
  const root = put(el, "div", { class: "fl-facts" });
  const card = (title) => {
    const section = put(root, "section", { class: "fl-card", "aria-label": title });
    put(section, "div", { class: "fl-title" }, title);
    return put(section, "div");
  };
  const [budget, slots, servers, costs, failures, early] = ["Budget", "Worker slots busy", "Model servers", "Tokens and cost", "Failures", "Partial results"].map(card);
  const redraw = () => {
    const now = doc.now;
    budget.replaceChildren();
    for (const [name, limit, spent, reserved, eta] of now.budget || []) {
      const left = eta === null ? "" : now.over ? "" : `, about ${time(eta)} left`;
      bar(budget, WORDS[name] || name, `${short(spent)} of ${short(limit)}${left}`, spent / limit, reserved / limit,
        `${grouped.format(spent)} of ${grouped.format(limit)} spent, ${grouped.format(reserved)} reserved`, "fl-long");
    }
    slots.replaceChildren();
    for (const [stage, count, busy, waiting, lately] of now.slots || []) {
      bar(slots, stage, `${busy} of ${count}${waiting ? ` (+${waiting} waiting)` : ""}`, busy / count, 0, `${busy} of ${count} busy, lately ${lately}%`);
    }
    servers.replaceChildren();
    servers.parentElement.hidden = !(now.servers || []).length;  // only servers that tell
    table(servers, ["server", "running", "waiting", "KV cache"], (now.servers || []).map(([name, at, running, waiting, cache]) =>
      [address(name), short(running), short(waiting), cache === null ? "not told" : percent(cache)]));
    for (const [name, at, , , , speed, hits] of now.servers || []) {
      const told = [speed === null ? "" : `${short(Math.round(speed))} tokens/s`, hits === null ? "" : `${percent(hits)} of the prompts from its prefix cache`];
      const who = now.servers.length > 1 ? `${address(name)}: ` : "";
      put(servers, "div", { class: "fl-note" }, `${who}${[...told, `told at ${time(at)}`].filter(Boolean).join(", ")}.`);
    }
    costs.replaceChildren();
    const money = (now.costs || []).some((row) => row[5]);
    table(costs, ["stage (role)", "calls", "tokens", ...(money ? ["dollars"] : [])], (now.costs || []).map(([stage, role, calls, failed, tokens, dollars]) =>
      [`${stage} (${role})`, `${short(calls)}${failed ? ` (${short(failed)} failed)` : ""}`, short(tokens), ...(money ? [dollars.toFixed(4)] : [])]));
    failures.replaceChildren();
    if (Object.keys(now.failures || {}).length) table(failures, ["kind", "count"], Object.entries(now.failures).map(([kind, count]) => [kind, short(count)]));
    else put(failures, "div", { class: "fl-note" }, "None so far.");
    if ((now.outcomes || []).length) put(failures, "div", { class: "fl-note" }, `Proposals: ${now.outcomes.map(([kind, count]) => `${short(count)} ${kind.replace("_", " ")}`).join(", ")}.`);
    early.replaceChildren();
    early.parentElement.hidden = !Object.keys(now.early || {}).length; // only where a completion policy lets them go on
    drawEarly(early, now.early || {});
    put(failures, "div", { class: "fl-note" }, `Lately ${short(Math.round(10 * (now.lately || 0)) / 10)} proposals and ${short(Math.round(10 * (now.accepted_lately || 0)) / 10)} accepted a minute.`);
    el.dataset.labStatus = JSON.stringify({ budget: (now.budget || []).length, slots: (now.slots || []).length, servers: (now.servers || []).length, costs: (now.costs || []).length });
  };
  redraw();
  return doc.changed(redraw);
}

/** What went on before it was complete, and what came of it. */
function drawEarly(parent, { provisional = 0, confirmed = 0, rolled_back = 0, proven = 0, saved = 0, saved_at_gates = 0, released = 0 }) {
  table(parent, ["in the pool before its full score", "artifacts"], [["◇ provisional now", short(provisional)], ["◆ confirmed", short(confirmed)], ["↶ rolled back", short(rolled_back)]]);
  const told = [saved && `${short(saved)} validation calls`, saved_at_gates && `${short(saved_at_gates)} at gates`].filter(Boolean);
  const calls = told.length ? `, which saved ${told.join(" and ")}` : "";
  put(parent, "div", { class: "fl-note" }, `⊣ ${short(proven)} ${proven === 1 ? "rejection was" : "rejections were"} proven before all was scored${calls}.`);
  put(parent, "div", { class: "fl-note" }, `⇥ ${short(released)} ${released === 1 ? "rollout" : "rollouts"} went on before the last sample.`);
}

export default () => {
  let doc;
  return {
    initialize({ model }) { doc = mirrored(model); },
    render({ model, el }) {
      el.classList.add("fl-lab");
      const parts = { header, score, facts };
      const stops = [failing(model, el), parts[model.get("part")](model, doc, el)];
      return () => stops.forEach((stop) => stop());
    },
  };
};
