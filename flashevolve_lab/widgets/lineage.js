// The lineage: the pool's artifacts by version and score (or as a tree by generation), the Pareto front filled, the best named.
// What is provisional is dotted (its score is of a part), what was rolled back is crossed out, what descends from that is dashed.

const MOST = 1500; // beyond, old artifacts that are neither on the front nor an ancestor of it are left out
const C = { artifact: 0, version: 1, at: 2, parents: 3, origin: 4, component: 5, mean: 6, coverage: 7, standing: 8, reason: 9, from_gone: 10 };

/** Ids from an artifact back to the seed, by first parent. */
function descent(byId, id) {
  const found = [];
  for (let node = byId.get(id); node && found.length < 1e5; node = byId.get(node[C.parents][0])) found.push(node[C.artifact]);
  return found;
}

/** Generation and a row for each, so that no two lines of a family cross. */
function tree(nodes, byId) {
  const children = new Map(), depth = new Map(), rows = new Map();
  for (const node of nodes) {
    const parent = node[C.parents].find((id) => byId.has(id));
    if (parent !== undefined) (children.get(parent) || children.set(parent, []).get(parent)).push(node[C.artifact]);
    depth.set(node[C.artifact], parent === undefined ? 0 : depth.get(parent) + 1);
  }
  let next = 0;
  const roots = nodes.filter((node) => depth.get(node[C.artifact]) === 0).map((node) => node[C.artifact]).reverse();
  const stack = roots.map((id) => [id, false]);
  while (stack.length) {
    const [id, done] = stack.pop(), own = children.get(id) || [];
    if (!own.length) rows.set(id, next++);
    else if (done) rows.set(id, (rows.get(own[0]) + rows.get(own[own.length - 1])) / 2);
    else { stack.push([id, true]); [...own].reverse().forEach((child) => stack.push([child, false])); }
  }
  return { depth, rows, last: Math.max(1, next - 1) };
}

function lineage(model, doc, el) {
  const root = put(el, "section", { class: "fl-card", "aria-label": "Lineage" });
  const head = put(root, "div", { class: "fl-row" });
  put(head, "span", { class: "fl-title" }, "Lineage");
  const choice = put(head, "span", { class: "fl-choice", role: "radiogroup", "aria-label": "Layout" });
  const svg = draw(root, "svg", { class: "fl-chart", role: "img", tabindex: "0", height: 230, "data-lm-suppress-shortcuts": "true" });
  const note = put(root, "div", { class: "fl-note", "aria-live": "polite" });
  let layout = "score", pointed = "", places = new Map();
  for (const [key, label] of [["score", "by score"], ["tree", "as a tree"]]) {
    const button = put(choice, "button", { type: "button", class: "fl-button", role: "radio", "data-layout": key }, label);
    button.onclick = () => { layout = key; redraw(); };
  }
  const byId = () => new Map(doc.rows.map((node) => [node[C.artifact], node])); // the last row of an artifact is the valid one

  const visible = (ids) => {
    const all = [...ids.values()];
    if (all.length <= MOST) return all;
    const keep = new Set([...Object.keys(doc.now.front || {}), doc.now.best].flatMap((id) => descent(ids, id)));
    return all.filter((node, i) => i >= all.length - MOST / 2 || keep.has(node[C.artifact]));
  };
  const positions = (nodes, ids, width, height) => {
    const [left, right, top, bottom] = [layout === "score" ? 40 : 14, 46, 12, layout === "score" ? 22 : 12];
    const found = new Map(), last = Math.max(1, ...nodes.map((node) => node[C.version]));
    if (layout === "tree") {
      const { depth, rows, last: lastRow } = tree(nodes, ids);
      const deepest = Math.max(1, ...depth.values());
      for (const node of nodes) {
        const id = node[C.artifact];
        found.set(id, [left + (depth.get(id) / deepest) * (width - left - right), top + ((rows.get(id) + 0.5) / (lastRow + 1)) * (height - top - bottom)]);
      }
      return found;
    }
    const means = nodes.filter((node) => node[C.standing] === "in the pool").map((node) => node[C.mean]); // a promise sets no scale
    let low = Math.min(...means), high = Math.max(...means);
    const pad = (high - low) * 0.06 || 0.05;
    low -= pad; high += pad;
    const Y = (score) => {
      const y = Math.min(high, Math.max(low, score));
      return height - bottom - ((y - low) / (high - low)) * (height - top - bottom);
    };
    const X = (v) => left + (v / last) * (width - left - right);
    for (const y of ticks(low, high, 4)) {
      draw(svg, "line", { x1: left, x2: width - right, y1: Y(y), y2: Y(y), class: "fl-grid" });
      draw(svg, "text", { x: left - 6, y: Y(y) + 3.5, class: "fl-tick", "text-anchor": "end" }, scored(y));
    }
    for (const v of ticks(0, last, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger)) {
      draw(svg, "text", { x: X(v), y: height - 6, class: "fl-tick", "text-anchor": "middle" }, `v${v}`);
    }
    for (const node of nodes) found.set(node[C.artifact], [X(node[C.version]), Y(node[C.mean])]);
    return found;
  };
  const describe = (node) => {
    const won = (doc.now.front || {})[node[C.artifact]];
    const from = node[C.parents].length ? `from ${node[C.parents].join(" and ")} by ${node[C.origin]}` : "the seed";
    const part = `${Math.round(100 * node[C.coverage])} % of the validation set`;
    const heir = node[C.from_gone] ? ` It descends from ${node[C.from_gone]}, which was rolled back.` : "";
    if (node[C.standing] === "rolled back") return `${node[C.artifact]} was rolled back: ${node[C.reason]}. It joined as version ${node[C.version]}, ${from}.${heir}`;
    if (node[C.standing] === "provisional") return `${node[C.artifact]}, version ${node[C.version]}, is provisional: ${scored(node[C.mean])} on ${part}, ${from}.${heir}`;
    return `${node[C.artifact]}, version ${node[C.version]}: mean score ${scored(node[C.mean])}, ${from}, ` + (won ? `on the Pareto front (best on ${won} examples)` : "not on the Pareto front") + (heir && `.${heir}`);
  };

  const redraw = () => {
    const width = Math.max(240, root.clientWidth - 2), height = 230;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.replaceChildren();
    for (const button of choice.children) button.setAttribute("aria-checked", button.dataset.layout === layout);
    const { front = {}, best = "" } = doc.now, selected = model.get("selected");
    const ids = byId(), standing = (words) => [...ids.values()].filter((node) => node[C.standing] === words).length;
    const gone = standing("rolled back"), early = standing("provisional");
    el.dataset.labStatus = JSON.stringify({ nodes: ids.size, provisional: early, gone, front: Object.keys(front).length, best, selected, layout });
    if (!doc.rows.length) { note.textContent = "No artifact is committed yet."; places = new Map(); return; }
    const nodes = visible(ids), shown = new Map(nodes.map((node) => [node[C.artifact], node]));
    places = positions(nodes, shown, width, height);
    const toBest = new Set(descent(ids, best)), toChosen = new Set(selected ? descent(ids, selected) : []);
    const edges = [];
    for (const node of nodes) for (const parent of node[C.parents]) {
      if (!places.has(parent)) continue;
      const kind = toBest.has(node[C.artifact]) ? 1 : toChosen.has(node[C.artifact]) ? 2 : 0;
      edges.push([kind, places.get(parent), places.get(node[C.artifact]), node[C.from_gone] || node[C.standing] === "rolled back"]);
    }
    edges.sort((a, b) => a[0] - b[0]);
    for (const [kind, [x1, y1], [x2, y2], broken] of edges) {
      const middle = (x1 + x2) / 2;
      draw(svg, "path", { d: `M${x1.toFixed(1)},${y1.toFixed(1)}C${middle.toFixed(1)},${y1.toFixed(1)} ${middle.toFixed(1)},${y2.toFixed(1)} ${x2.toFixed(1)},${y2.toFixed(1)}`,
        class: `fl-edge${["", " fl-descent", " fl-chosen"][kind]}${broken ? " fl-broken" : ""}` });
    }
    const crowded = nodes.length > 150;
    for (const node of nodes) {
      const id = node[C.artifact], [x, y] = places.get(id), on = id in front;
      const kind = `fl-node${on ? " fl-front" : ""}${id === selected ? " fl-chosen" : ""}${id === pointed ? " fl-pointed" : ""}${node[C.standing] === "provisional" ? " fl-early" : node[C.standing] === "rolled back" ? " fl-gone" : ""}`;
      const r = id === selected || id === pointed ? 6 : on ? (crowded ? 3.6 : 4.6) : crowded ? 2.2 : 3.4;
      if (id === best) draw(svg, "path", { d: `M${x},${y - r - 3}L${x + r + 3},${y}L${x},${y + r + 3}L${x - r - 3},${y}Z`, class: kind, "data-artifact": id });
      else draw(svg, "circle", { cx: x, cy: y, r, class: kind, "data-artifact": id });
      if (node[C.standing] === "rolled back") draw(svg, "path", { d: `M${x - r},${y - r}L${x + r},${y + r}M${x - r},${y + r}L${x + r},${y - r}`, class: "fl-cross" });
    }
    for (const id of new Set([best, selected, pointed])) {
      if (!places.has(id)) continue;
      const [x, y] = places.get(id);
      draw(svg, "text", { x: x + 10, y: y + 4, class: "fl-name-tag" }, id);
    }
    const left = ids.size - nodes.length;
    const others = [early ? `${early} provisional (dotted)` : "", gone ? `${gone} rolled back (crossed out)` : ""].filter(Boolean).map((words) => ` ${words},`).join("");
    const said = `${ids.size - gone} artifacts,${others} ${Object.keys(front).length} on the Pareto front (filled); the diamond is the best, ${best}, the thick line its descent.${left ? ` ${left} older ones are not drawn.` : ""}`;
    note.textContent = shown.has(pointed) ? describe(shown.get(pointed)) : said;
    svg.setAttribute("aria-label", said);
  };

  const point = (id) => { if (id !== pointed) { pointed = id; redraw(); } };
  const choose = (id) => {
    if (!id) return;
    model.set("selected", id);
    model.save_changes();
  };
  svg.onmousemove = (event) => {
    let near = "", least = 196;
    for (const [id, [x, y]] of places) {
      const d = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (d < least) { least = d; near = id; }
    }
    point(near);
  };
  svg.onmouseleave = () => point("");
  svg.onclick = () => choose(pointed);
  svg.onkeydown = (event) => {
    const ids = byId(), at = pointed || model.get("selected") || doc.now.best, node = ids.get(at);
    if (!node) return;
    const all = [...ids.values()], children = all.filter((other) => other[C.parents].includes(at));
    const siblings = all.filter((other) => other[C.parents][0] === node[C.parents][0]), place = siblings.indexOf(node);
    const moves = { ArrowLeft: node[C.parents][0], ArrowRight: children[0]?.[C.artifact], ArrowUp: siblings[place - 1]?.[C.artifact], ArrowDown: siblings[place + 1]?.[C.artifact] };
    if (event.key === "Enter") choose(at);
    else if (event.key in moves) point(moves[event.key] ?? at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  model.on("change:selected", redraw);
  const stops = [doc.changed(redraw), sized(root, redraw), () => model.off("change:selected", redraw)];
  redraw();
  return () => stops.forEach((stop) => stop());
}

export default () => {
  let doc;
  return {
    initialize({ model }) { doc = mirrored(model); },
    render({ model, el }) {
      el.classList.add("fl-lab");
      const stops = [failing(model, el), lineage(model, doc, el)];
      return () => stops.forEach((stop) => stop());
    },
  };
};
