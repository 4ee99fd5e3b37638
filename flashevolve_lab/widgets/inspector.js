// The inspector in the browser: texts side by side, evidence, verdicts, scores, relatives, and acts by hand. Owns pixels only.
// One rule a change must keep: text from a log goes only into textContent (see `el`), never into markup.

const SIGNS = { accept: "✓", update: "↻", patch: "✎", discard: "✕" };
const EARLY = { released: "⇥", provisional: "◇", confirmed: "◆", "rolled back": "↶", proven: "⊣" }; // what a completion policy does
const GAP_MEANS = "version gap: commits between the version this was made from and the pool's version then; a gap without touch is often harmless";
const TAGS = {
  touched: "touched: a commit since then changed something this work read",
  superseded: "superseded: a commit since then replaced what this work would change",
};
const FOLD = 3000; // characters of a text before "show all"
const EQUAL = 1600; // an equal stretch longer than this is folded, EDGE characters of it left at either end
const EDGE = 500;
const CHIPS = 30; // relatives before "show more"
const SVG = "http://www.w3.org/2000/svg";
const COLUMNS = {
  own: "This text", parent: "Made from", current: "Current version", best: "Best of the pool", earlier: "Before the change", later: "After the change",
};

const AFTER = { update: "Updated", patch: "Patched" }; // what a later text is called, by its origin
const beside = (role) => role.startsWith("beside"); // beside1, beside2, …: the other texts of a batch
const titled = (role, text) => (role === "later" && AFTER[text.origin]) || (beside(role) ? "Read together" : COLUMNS[role]);

/** An element with a class, attributes and children (strings become text; nothing becomes nothing). */
function el(tag, cls = "", attributes = {}, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function button(words, act, cls = "", attributes = {}) {
  const node = el("button", cls, { type: "button", ...attributes }, words);
  node.addEventListener("click", act);
  return node;
}

function svg(tag, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const count = (n) => Number(n).toLocaleString("en-US");
const many = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;
const score = (x) => (x === null || x === undefined ? "–" : Number(Number(x).toFixed(3)).toString());
const known = (action) => (action in SIGNS ? action : "other");

/** Where a text stands in the pool, in a few words: a promise is never shown as a score. */
function standing(text) {
  if (text.rolled_back) return "rolled back";
  if (text.version === null) return "not in the pool";
  const part = `${Math.round(text.coverage * 100)} %`;
  return text.provisional ? `v${text.version}, provisional: ${score(text.mean)} on ${part}` : `v${text.version}, mean ${score(text.mean)}`;
}

function clock(at) {
  if (at < 60) return `${at.toFixed(1)} s`;
  const hours = Math.floor(at / 3600), minutes = Math.floor((at % 3600) / 60), two = (n) => String(Math.floor(n)).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(at % 60)}` : `${minutes}:${two(at % 60)}`;
}

/** Cut where no surrogate pair is split. */
function cut(text, n) {
  const code = text.charCodeAt(n - 1);
  return text.slice(0, code >= 0xd800 && code <= 0xdbff ? n - 1 : n);
}

/** A stand-in that puts the folded text in its place when clicked. */
function folded(words, rest) {
  const node = button(words, () => node.replaceWith(...rest()), "lab-fold");
  return node;
}

/** Text in a box of its own, folded when long. */
function prose(text, cls = "") {
  const node = el("div", `lab-text ${cls}`, { dir: "auto" });
  const start = text.length > FOLD * 1.2 ? cut(text, FOLD) : text;
  node.append(start);
  if (start.length < text.length) node.append(folded(`Show all ${count(text.length)} characters`, () => [text.slice(start.length)]));
  return node;
}

/** A text in segments: what only this side has is marked, long equal stretches are folded. */
function marked(segments, tag, cls) {
  const node = el("div", "lab-text", { dir: "auto" });
  segments.forEach(([kind, text], i) => {
    if (kind === "only") {
      const mark = (part) => el(tag, cls, {}, part), start = text.length > FOLD * 2 ? cut(text, FOLD * 2) : text;
      node.append(mark(start));
      if (start.length < text.length) node.append(folded(`Show all ${count(text.length)} characters`, () => [mark(text.slice(start.length))]));
      return;
    }
    const head = i === 0 ? 0 : EDGE, tail = i === segments.length - 1 ? 0 : EDGE;
    if (text.length <= EQUAL || segments.length === 1) return void node.append(...(segments.length === 1 ? prose(text).childNodes : [text]));
    const from = cut(text, Math.max(head, i === 0 && !tail ? FOLD : head)), rest = text.slice(from.length);
    const to = tail ? rest.slice(cut(rest, rest.length - tail).length) : "", middle = rest.slice(0, rest.length - to.length);
    node.append(from, folded(`⋯ ${count(middle.length)} equal characters ⋯`, () => [middle]), to);
  });
  return node;
}

function copier(text) {
  const node = button("Copy", async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      const area = el("textarea", "lab-offscreen", { "aria-hidden": "true" });
      area.value = text;
      node.after(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    node.textContent = done ? "Copied" : "Copying is not allowed here";
    setTimeout(() => (node.textContent = "Copy"), 1500);
  }, "lab-small", { "aria-label": "Copy the whole text" });
  return node;
}

/** One drawing of the inspector. */
class View {
  constructor(model, data, root) {
    Object.assign(this, { model, data, root, drawn: new Map(), opened: new Set(), frame: 0, editing: null });
    this.build();
    this.draw();
  }

  send = (message) => this.model.send(message);
  go = (id) => this.send({ kind: "show", id });
  chip = (id, words = id, cls = "") => button(words, () => this.go(id), `lab-chip ${cls}`, { "data-id": id, title: `Inspect ${id}` });

  build() {
    this.trouble = el("div", "lab-trouble", { role: "alert" });
    this.back = button("‹", () => this.send({ kind: "go", steps: -1 }), "lab-square", { "aria-label": "Back", title: "Back" });
    this.forward = button("›", () => this.send({ kind: "go", steps: 1 }), "lab-square", { "aria-label": "Forward", title: "Forward" });
    this.shut = button("×", () => this.send({ kind: "close" }), "lab-square", { "aria-label": "Close", title: "Close (Esc)" });
    this.title = el("h2");
    this.find = el("input", "lab-find", { placeholder: "p12, a7, j33", "aria-label": "Show an item, an artifact or a job by its id", size: 11, spellcheck: "false" });
    this.find.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !this.find.value.trim()) return; // no form: JupyterLab keeps Enter from submitting
      event.preventDefault();
      this.go(this.find.value.trim());
      this.find.value = "";
    });
    const top = el("header", "lab-top", {}, this.back, this.forward, this.title, this.find, this.shut);
    this.answer = el("div", "lab-answer", { role: "status" });
    this.empty = el("div", "lab-empty");
    this.body = el("div", "lab-body");
    this.parts = Object.fromEntries(["lead", "hand", "columns", "early", "verdicts", "evidence", "scores", "relatives"].map((name) => [name, el("section", `lab-${name}`)]));
    this.body.append(...Object.values(this.parts));
    this.buildHand();
    this.root.classList.add("lab-inspector");
    Object.entries({ tabindex: "-1", role: "region", "aria-label": "Inspector", "data-lm-suppress-shortcuts": "true" }).forEach((pair) => this.root.setAttribute(...pair));
    this.root.replaceChildren(this.trouble, top, this.answer, this.empty, this.body);
    this.onKey = (event) => event.key === "Escape" && this.escape(event);
    this.root.addEventListener("keydown", this.onKey);
  }

  escape(event) {
    event.stopPropagation();
    event.preventDefault();
    if (this.editing) this.edit(false);
    else if (this.data.facts.id) this.send({ kind: "close" });
  }

  soon() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const { facts, evidence, texts } = this.data, trouble = this.model.get("trouble");
    this.trouble.textContent = trouble;
    this.trouble.hidden = !trouble;
    this.back.disabled = !facts.back;
    this.forward.disabled = !facts.forward;
    this.shut.disabled = !facts.id;
    this.empty.hidden = Boolean(facts.id);
    this.body.hidden = !facts.id;
    this.title.textContent = facts.id ? facts.artifact || facts.item : "Inspector";
    this.part("answer", [facts.said, facts.acts], () => this.drawAnswer(facts), this.answer);
    if (!facts.id) this.part("empty", facts.newest, () => this.drawEmpty(facts), this.empty);
    if (facts.id !== this.shown) {
      this.shown = facts.id;
      this.edit(false);
    }
    if (facts.id) {
      this.part("lead", [facts.id, facts.place, facts.own, facts.version, facts.spent, facts.base, facts.verdicts.length], () => this.drawLead(facts));
      this.drawHand(facts);
      if (texts.id === facts.id) this.part("columns", [texts, facts.recorded_at, facts.component], () => this.drawColumns(facts, texts));
      this.part("early", [facts.completion, facts.own, facts.scores, facts.gone], () => this.drawEarly(facts));
      this.part("verdicts", [facts.verdicts, facts.gates, facts.work], () => this.drawVerdicts(facts));
      if (evidence.id === facts.id) this.part("evidence", evidence, () => this.drawEvidence(evidence, facts));
      this.part("scores", [facts.scores, facts.best, facts.id], () => this.drawScores(facts, texts));
      this.part("relatives", [facts.ancestors, facts.descendants, facts.artifact], () => this.drawRelatives(facts));
    }
    this.report();
  }

  /** Redraws a part only when what it shows has changed, so that focus, folds and scrolling stay. */
  part(name, shows, draw, node = this.parts[name]) {
    const key = JSON.stringify(shows);
    if (this.drawn.get(name) === key) return;
    this.drawn.set(name, key);
    const children = draw();
    node.replaceChildren(...children);
    node.hidden = !children.length;
  }

  /** A fold that stays as the reader left it. */
  details(key, summary, children, open = false) {
    const node = el("details", "", {}, el("summary", "", {}, ...summary), ...children);
    node.open = this.opened.has(key) || (open && !this.opened.has(`-${key}`));
    node.addEventListener("toggle", () => {
      this.opened.delete(node.open ? `-${key}` : key);
      this.opened.add(node.open ? key : `-${key}`);
    });
    return node;
  }

  // --- what it is -----------------------------------------------------------------------------------------------------

  drawLead(facts) {
    const row = (words, ...value) => [el("dt", "", {}, words), el("dd", "", {}, ...value)];
    const { own, spent } = facts, stale = facts.verdicts[facts.verdicts.length - 1], base = facts.base;
    const made = { seed: "the seed", reflection: "a reflection", update: "an update", patch: "a patch", merge: "a merge", human: "a person" }[facts.origin] ?? facts.origin;
    const by = facts.item ? [" as ", el("code", "", {}, facts.item)] : [];
    const what = own ? [`made by ${made}`, ...by, ...(facts.component ? [" in ", el("bdi", "", {}, facts.component)] : [])] : [el("code", "", {}, facts.item), ` (${facts.kind}) has no text yet`];
    const part = own?.coverage ? `${Math.round(own.coverage * 100)} % of the validation set` : "", gone = (facts.completion ?? []).findLast((row) => row.kind === "rolled back");
    const version = !own || (own.version === null && !own.rolled_back) ? ["not in the pool"]
      : own.rolled_back ? [el("strong", "", {}, "rolled back"), gone ? ` at version ${gone.version}: ` : "", gone ? el("bdi", "", {}, gone.reason) : ""]
      : own.provisional ? [el("strong", "", {}, "provisional"), ` as version ${own.version}: ${score(own.mean)} on ${part} so far, which is a promise and no score`]
      : [`version ${own.version}, mean ${score(own.mean)} over ${part}`, (facts.completion ?? []).some((row) => row.kind === "confirmed") ? ", confirmed after a provisional start" : ""];
    const asked = facts.job ? row("Asked for", el("code", "", {}, facts.job), ", a job of this item") : [];
    return [el("dl", "lab-facts", {},
      ...asked,
      ...row("Text", ...what),
      ...row("Pool", ...version),
      ...(facts.gone ? row("Descent", "made from ", this.chip(facts.gone), ", which was rolled back") : []),
      ...row("Item", el("bdi", "", {}, facts.place || "–")),
      ...row("Base", `version ${base}; the pool is now at ${facts.version}`, stale ? `; judged ${["", "once", "twice"][facts.verdicts.length] ?? `${facts.verdicts.length} times`}, last at ` : "", stale ? el("span", "lab-gap", { title: GAP_MEANS }, `gap ${stale.gap}`) : ""),
      ...row("Cost", `${many(spent.tokens, "token")} in ${many(spent.llm_calls, "call")}, ${many(spent.metric_calls, "metric call")}`, spent.dollars ? `, $${spent.dollars.toFixed(4)}` : ""))];
  }

  /** What to do when nothing is shown. */
  drawEmpty({ newest }) {
    const key = (words) => el("kbd", "", {}, words), row = (keys, ...words) => [el("dt", "", {}, ...keys.map(key)), el("dd", "", {}, ...words)];
    const keys = el("dl", "lab-facts lab-keys", {},
      ...row(["↑", "↓", "Enter"], "in the feed: go through the verdicts, show one"),
      ...row(["[", "]"], "in the chart: from job to job"),
      ...row(["←", "→", "Enter"], "in score and lineage: between artifacts, show one"),
      ...row(["Esc"], "here: close what is shown"));
    const open = newest ? el("div", "lab-line", {}, button(`Show the newest verdict (${newest})`, () => this.go(newest), "lab-newest")) : "";
    return [el("p", "", {}, "An artifact beside the version it was made from and the current one, with the evidence. Click a verdict in the feed, a job in the chart or an artifact in the lineage, or type an id above."), open, keys];
  }

  drawAnswer(facts) {
    const { said = {}, acts = [] } = facts, lines = [];
    if (said.error) lines.push(el("div", "lab-error", { role: "alert" }, el("bdi", "", {}, said.error)));
    if (said.sent) lines.push(el("div", "lab-sent", {}, `Sent: ${said.sent}. ${acts.length ? "The log says:" : "Waiting for the log…"}`));
    for (const act of acts) lines.push(el("div", "lab-act", {}, el("time", "", {}, clock(act.at)), " ", el("bdi", "", {}, act.words), act.item ? this.chip(act.item) : ""));
    return lines;
  }

  // --- by hand --------------------------------------------------------------------------------------------------------

  buildHand() {
    this.reason = el("input", "lab-reason", { placeholder: "Reason (kept in the log)", "aria-label": "Reason" });
    const judge = (action) => () => {
      this.send({ kind: "judge", action, reason: this.reason.value });
      this.reason.value = "";
    };
    this.accept = button("Accept", judge("accept"), "", { title: "Whatever the policy says later" });
    this.discard = button("Discard", judge("discard"));
    this.editor = button("Edit & inject…", () => this.edit(!this.editing), "", { "aria-expanded": "false" });
    this.why = el("span", "lab-soft");
    this.form = el("div", "lab-editor");
    const line = el("div", "lab-line", {}, el("h3", "", {}, "By hand"), this.reason, this.accept, this.discard, this.editor, this.why);
    this.parts.hand.append(line, this.form);
  }

  drawHand(facts) {
    const cannot = facts.cannot, judged = cannot || (facts.in_flight && facts.kind !== "seed" ? "" : facts.item ? `${facts.item} has ended: its text can still be injected.` : "");
    this.accept.disabled = this.discard.disabled = this.reason.disabled = Boolean(judged);
    this.editor.disabled = Boolean(cannot) || !facts.own;
    this.why.textContent = judged;
  }

  /** Opens or closes the editor of the text. */
  edit(open) {
    this.editing = open ? {} : null;
    this.editor?.setAttribute("aria-expanded", String(open));
    this.form.replaceChildren();
    if (!open) return this.report();
    const { texts } = this.data, own = texts.own, areas = {};
    const pool = [own, texts.columns.current, texts.columns.parent, texts.columns.best].filter((text) => text && text.version !== null);
    const parents = [...new Map(pool.map((text) => [text.id, text])).values()];
    const parent = el("select", "", { "aria-label": "Parent" }, ...parents.map((text) => el("option", "", { value: text.id }, `${text.id} (${standing(text)})`)));
    for (const [name, text] of Object.entries(own.components)) {
      areas[name] = el("textarea", "", { dir: "auto", rows: Math.min(14, 3 + text.split("\n").length), "aria-label": `Text of ${name}`, spellcheck: "false" });
      areas[name].value = text;
      this.form.append(el("label", "", {}, el("bdi", "", {}, name), areas[name]));
    }
    const inject = button("Inject at the gate", () => {
      const components = Object.fromEntries(Object.entries(areas).map(([name, area]) => [name, area.value]));
      this.send({ kind: "inject", parent: parent.value, components });
      this.edit(false);
    }, "lab-main");
    const note = el("span", "lab-soft", {}, "It is recorded as yours and must beat its parent on the next minibatch.");
    this.form.append(el("div", "lab-line", {}, el("label", "lab-line", {}, "as a child of", parent), inject, button("Cancel", () => this.edit(false)), note));
    Object.values(areas)[0]?.focus();
    this.report();
  }

  // --- texts side by side ---------------------------------------------------------------------------------------------

  drawColumns(facts, texts) {
    const columns = this.columns(texts), { against } = texts;
    if (!columns.length) return [];
    const names = [...new Set(columns.flatMap((column) => Object.keys(column.text.components)))];
    const blocks = names.map((name) => this.component(name, columns, texts, names.length > 1));
    this.shownColumns = columns.map((column) => column.text.id);
    return [el("h3", "", {}, "Side by side"), this.chooser(facts, texts, against), ...blocks];
  }

  /** The distinct texts to show, each with all the roles it has. The best takes the current one's place when asked for. */
  columns(texts) {
    const roles = ["parent", texts.against === "best" ? "best" : "current", "earlier", "later", ...Object.keys(texts.columns).filter(beside)], found = new Map();
    if (texts.own) found.set(texts.own.id, { text: texts.own, roles: ["own"] });
    for (const role of roles) {
      const text = texts.columns[role];
      if (!text) continue;
      if (found.has(text.id)) found.get(text.id).roles.push(role);
      else found.set(text.id, { text, roles: [role] });
    }
    return [...found.values()];
  }

  chooser(facts, texts, against) {
    if (!texts.own) return el("p", "lab-soft", {}, "There is no text of its own yet; this is what it is made from.");
    const chosen = texts.columns[against], seen = new Set([texts.own.id]);
    const buttons = Object.entries(texts.columns).filter(([, text]) => !seen.has(text.id) && seen.add(text.id)).map(([role, text]) =>
      button(`${titled(role, text).toLowerCase()} ${text.id}`, () => this.send({ kind: "compare", column: role }), "lab-choice", { "aria-pressed": String(text.id === chosen?.id) }));
    const notes = [];
    if (texts.columns.current?.id === texts.own.id) notes.push("This text itself stands in its parent's place now.");
    else if (facts.recorded_at !== null && texts.columns.current) notes.push(`${texts.columns.current.id} was the current version when it was judged, at ${clock(facts.recorded_at)}.`);
    if (!buttons.length) return el("p", "lab-soft", {}, "There is nothing to compare it with.");
    return el("div", "lab-line lab-chooser", { role: "group", "aria-label": "Compare with" }, el("span", "lab-soft", {}, "Differences from"), ...buttons, el("span", "lab-soft", {}, notes.join(" ")));
  }

  component(name, columns, texts, several) {
    const cells = columns.map((column) => this.cell(name, column, texts));
    const grid = el("div", "lab-grid", {}, ...cells);
    if (!several) return grid;
    const same = columns.every((column) => column.text.components[name] === columns[0].text.components[name]);
    const changed = columns.some((column) => column.text.component === name);
    const summary = [el("bdi", "lab-name", {}, name), el("span", "lab-soft", {}, same ? " the same everywhere" : changed ? " changed" : " differs")];
    return this.details(`component ${name}`, summary, [grid], !same);
  }

  cell(name, { text, roles }, texts) {
    const body = text.components[name] ?? "", d = texts.differences[name], own = roles[0] === "own";
    const other = texts.columns[texts.against]?.id === text.id && !own;
    const shown = own && d ? marked(d.own, "ins", "lab-own") : other && d ? marked(d.other, "del", "lab-other-only") : prose(body);
    if (!body) shown.append(el("span", "lab-soft", {}, "(empty)"));
    const words = roles.map((role, i) => (i ? titled(role, text).toLowerCase() : titled(role, text))).join(" · ");
    const differs = !d || !(own || other) ? "" : d.equal ? "equal" : `${many(own ? d.added : d.gone, "word")} only here`;
    const head = el("div", "lab-cellhead", {}, el("strong", "", {}, words), own ? el("code", "", {}, text.id) : this.chip(text.id), el("span", "lab-soft", {}, standing(text)), el("span", "lab-soft", {}, differs), copier(body));
    shown.setAttribute("tabindex", "0");
    shown.setAttribute("role", "group");
    shown.setAttribute("aria-label", `${words} ${text.id}`);
    return el("div", `lab-cell${own ? " lab-cell-own" : other ? " lab-cell-other" : ""}`, { "data-id": text.id }, head, shown);
  }

  // --- what went on before it was complete ------------------------------------------------------------------------------

  drawEarly(facts) {
    const rows = facts.completion ?? [];
    if (!rows.length) return [];
    return [el("h3", "", {}, "Partial results"), el("ol", "lab-story", {}, ...rows.map((row) => this.early(row, rows))), ...this.prefix(facts, rows)];
  }

  early(row, rows) {
    const sign = el("span", `lab-sign lab-${row.kind.replace(" ", "-")}`, { "aria-hidden": "true" }, EARLY[row.kind] ?? "•");
    const line = el("div", "lab-line", {}, el("time", "", {}, clock(row.at)), sign, el("strong", "", {}, row.kind), el("span", "lab-words", {}, ...this.earlyWords(row, rows)));
    const made = row.derived.length ? el("div", "lab-line lab-made", {}, el("span", "lab-soft", {}, "made from it, to be judged again:"), ...row.derived.map((id) => this.chip(id))) : "";
    return el("li", "", {}, line, made, row.reason ? prose(row.reason, "lab-plain lab-soft") : "");
  }

  earlyWords(row, rows) {
    const rival = row.rival ? [` against ${score(row.rival_score)} of `, this.chip(row.rival)] : [];
    const promise = rows.filter((other) => other.kind === "provisional" && other.seq < row.seq).pop();
    const promised = promise ? `; promised ${score(promise.prefix_score ?? promise.score)} on ${promise.prefix || promise.scored}` : "";
    switch (row.kind) {
      case "released": return [`went on with ${row.scored} of ${row.wanted} samples`, row.late.length ? `; late: ${row.late.length === 1 ? "example" : "examples"} ${row.late.join(", ")}` : ""];
      case "provisional": return [`joined the pool as v${row.version}; ${row.prefix ? `promises ${score(row.prefix_score)} on its prefix of ${row.prefix}; ` : ""}${score(row.score)} on the ${row.scored} of ${row.wanted} examples that are in,`, ...rival];
      case "confirmed": return [`came to ${score(row.score)} on all ${row.wanted} examples`, ...rival, promised];
      case "rolled back": return [`left the pool, now v${row.version}`, row.score === null ? "" : `; came to ${score(row.score)} on ${row.scored} of ${row.wanted} examples`, ...rival, promised];
      case "proven": return [`can reach ${score(row.bound)} at most after ${row.scored} of ${row.wanted} examples: a bound, no score; ${many(row.saved, "call")} saved`];
      default: return [];
    }
  }

  /** The speculative prefix, example by example: this text, and what it has to beat. */
  prefix({ scores }, rows) {
    const early = rows.filter((row) => row.kind === "provisional").pop(), at = new Map(scores.example.map((example, i) => [example, i]));
    if (!early) return [];
    const cells = early.examples.filter((example) => at.has(example)).map((example) => [example, ...["score", "parent", "best"].map((name) => score(scores[name][at.get(example)]))]);
    const heads = ["example", "this text", "parent", "best"].map((words) => el("th", "", { scope: "col" }, words));
    const lines = cells.map((cell) => el("tr", "", {}, ...cell.map((words) => el("td", "", {}, String(words)))));
    const table = el("table", "", {}, el("thead", "", {}, el("tr", "", {}, ...heads)), el("tbody", "", {}, ...lines));
    return [this.details("prefix", [`Scored when it joined: ${many(cells.length, "example")}`], [el("div", "lab-scroll", {}, table)])];
  }

  // --- what was decided -----------------------------------------------------------------------------------------------

  drawVerdicts(facts) {
    const lines = [...facts.verdicts.map((row) => [row.at, this.verdict(row)]), ...facts.gates.map((gate) => [gate.at, this.gate(gate)])];
    lines.sort((a, b) => a[0] - b[0]);
    const work = facts.work.map((job) => el("tr", "", {}, ...[job.job, job.stage, String(job.slot), clock(job.started), job.ended === null ? "running" : clock(job.ended), job.released === null ? job.outcome : `${job.outcome}, released at ${clock(job.released)}`].map((words) => el("td", "", {}, words)), el("td", "lab-message", {}, el("bdi", "", {}, job.message))));
    const heads = ["job", "stage", "slot", "from", "to", "outcome", ""].map((words) => el("th", "", { scope: "col" }, words));
    const table = el("table", "", {}, el("thead", "", {}, el("tr", "", {}, ...heads)), el("tbody", "", {}, ...work));
    const jobs = work.length ? [this.details("jobs", [many(work.length, "job")], [el("div", "lab-scroll", {}, table)])] : [];
    const none = lines.length ? [] : [el("p", "lab-soft", {}, "No gate and no staleness verdict so far.")];
    return [el("h3", "", {}, "Verdicts"), ...none, el("ol", "lab-story", {}, ...lines.map(([, line]) => line)), ...jobs];
  }

  verdict(row) {
    const where = row.where === "dequeue" ? `before ${row.stage}` : row.where === "commit" ? "at commit" : row.where === "hand" ? "by hand" : row.where;
    const tags = [row.touched && "touched", row.superseded && "superseded"].filter(Boolean).map((words) => el("span", "lab-tag", { title: TAGS[words] }, words));
    const sign = el("span", `lab-sign lab-${known(row.action)}`, { "aria-hidden": "true" }, SIGNS[row.action] ?? "•");
    const head = el("div", "lab-line", {}, el("time", "", {}, clock(row.at)), sign, el("strong", "", {}, el("bdi", "", {}, row.action)), `${where}, v${row.base} → v${row.version},`, el("span", "lab-gap", { title: GAP_MEANS }, `gap ${row.gap}`), ...tags, el("bdi", "lab-soft", {}, row.policy), row.counterpart ? el("span", "lab-soft", {}, "current: ", this.chip(row.counterpart)) : "", row.target && row.target !== row.counterpart ? el("span", "lab-soft", {}, "onto: ", this.chip(row.target)) : "");
    return el("li", "", {}, head, prose(row.reason, "lab-plain"), row.why ? prose(row.why, "lab-plain lab-soft") : "");
  }

  gate(gate) {
    const sign = el("span", `lab-sign ${gate.passed ? "lab-accept" : "lab-discard"}`, { "aria-hidden": "true" }, gate.passed ? "▲" : "▼");
    return el("li", "", {}, el("div", "lab-line", {}, el("time", "", {}, clock(gate.at)), sign, el("strong", "", {}, gate.passed ? "gate passed" : "gate failed"), this.chip(gate.artifact), gate.bound ? `can reach ${score(gate.child_sum)} on the minibatch at most, against ${score(gate.parent_sum)} of` : `scored ${score(gate.child_sum)} on the minibatch against ${score(gate.parent_sum)} of`, this.chip(gate.parent)), gate.reason ? prose(gate.reason, "lab-plain lab-soft") : "");
  }

  // --- what it came from ----------------------------------------------------------------------------------------------

  drawEvidence(evidence, facts) {
    const trials = evidence.trials.map((trial, i) => this.trial(trial, i === 0));
    const said = evidence.spoken.map((reply) => this.details(`reply ${reply.call}`,
      [`${reply.role}: ${reply.outcome !== "ok" ? reply.outcome : reply.prompt ? "prompt and raw reply" : "raw reply"} `, el("span", "lab-soft", {}, `${reply.call}, ${clock(reply.at)}, ${many(reply.tokens, "token")}${reply.finish ? `, finish: ${reply.finish}` : ""}`)],
      [...this.asked(reply), copier(reply.text), el("span", "lab-soft", {}, " ", el("bdi", "", {}, reply.model)), prose(reply.text)]));
    const raw = evidence.raw.map((work) => this.details(`raw ${work.job}`, [`${work.stage}: a text that could not be used `, el("span", "lab-soft", {}, work.job)], [prose(work.message, "lab-plain"), copier(work.raw), prose(work.raw)]));
    const notes = evidence.notes.map((note) => prose(note, "lab-plain lab-soft"));
    if (!trials.length && !said.length && !raw.length) return [];
    const digest = evidence.spoken.some((reply) => !reply.prompt);
    const asked = digest ? [el("p", "lab-soft", {}, "Where no prompt is shown, the log has only a digest of what was asked.")] : [];
    return [el("h3", "", {}, "Evidence"), ...trials, ...notes, ...said, ...raw, ...asked];
  }

  /** The prompt that a reply answers, in a fold of its own. */
  asked({ call, prompt }) {
    if (!prompt) return [];
    return [this.details(`prompt ${call}`, ["prompt ", el("span", "lab-soft", {}, many(prompt.length, "character"))], [copier(prompt), prose(prompt)])];
  }

  trial({ example, input, parent, child, current, late }, first) {
    const words = (side) => (side ? (side.trouble && side.score === undefined ? "failed" : score(side.score)) : "not run");
    const summary = [`Example ${example} `, el("span", "lab-soft", {}, `parent ${words(parent)}, this text ${words(child)}`), late ? el("span", "lab-tag", { title: "this sample came after the rollout was released: the reflection has not seen it" }, "came late") : ""].flatMap((part) => (part instanceof Element && part.classList.contains("lab-tag") ? [" ", part] : [part]));
    const side = (title, one) => el("div", "lab-side", {}, el("strong", "", {}, title, el("span", "lab-soft", {}, ` score ${words(one)}`)),
      ...(one?.trouble ? [prose(one.trouble, "lab-plain lab-error")] : []),
      ...(one?.output !== undefined ? [el("span", "lab-soft", {}, "output"), prose(one.output)] : []),
      ...(one?.feedback ? [el("span", "lab-soft", {}, "feedback"), prose(one.feedback, "lab-plain")] : []));
    const asked = input ? [el("span", "lab-soft", {}, "input"), prose(input)] : [];
    return this.details(`trial ${example}`, summary, [...asked, el("div", "lab-sides", {}, side("Parent", parent), side("This text", child), current ? side("Current version", current) : "")], first);
  }

  // --- scores ---------------------------------------------------------------------------------------------------------

  drawScores(facts, texts) {
    const { scores } = facts, scored = scores.score.filter((x) => x !== null).length;
    if (!scores.example.length) return [];
    const title = el("h3", "", {}, "Validation, sample by sample");
    if (!scored) return [title, el("p", "lab-soft", {}, "It has not been validated.")];
    const proven = (facts.completion ?? []).findLast((row) => row.kind === "proven" && row.stage === "validate");
    if (proven) title.append(el("span", "lab-soft", {}, ` stopped after ${proven.scored} of ${proven.wanted}: what is here is no score of it`));
    const seen = new Set([facts.artifact]), roles = ["parent", "current", "best"];
    const strips = roles.map((role) => [role, texts.columns?.[role]]).filter(([, text]) => text && !seen.has(text.id) && seen.add(text.id)).map(([role, text]) => this.strip(role, text.id, scores));
    return [title, ...strips, ...(strips.length ? [] : [el("p", "lab-soft", {}, `${scored} samples scored; there is nothing to compare with.`)])];
  }

  strip(role, id, scores) {
    const n = scores.example.length, gaps = scores.example.map((_, i) => (scores.score[i] === null || scores[role][i] === null ? null : scores.score[i] - scores[role][i]));
    const most = Math.max(...gaps.map((gap) => Math.abs(gap ?? 0)), 1e-9), number = (test) => gaps.filter(test).length;
    const better = number((gap) => gap > 1e-9), worse = number((gap) => gap !== null && gap < -1e-9), missing = number((gap) => gap === null), equal = n - better - worse - missing;
    const words = `better on ${better}, worse on ${worse}, equal on ${equal}${missing ? `, not scored on ${missing}` : ""}`;
    const picture = svg("svg", { viewBox: `0 0 ${n} 40`, preserveAspectRatio: "none", role: "img", "aria-label": `Against ${id}: ${words}` });
    gaps.forEach((gap, i) => {
      const height = gap === null ? 0 : (Math.abs(gap) / most) * 18, kind = gap === null ? "missing" : gap > 1e-9 ? "better" : gap < -1e-9 ? "worse" : "equal";
      const y = { missing: 10, better: 20 - height, worse: 20, equal: 19 }[kind];
      const bar = svg("rect", { x: i + 0.1, width: 0.8, y, height: { missing: 20, equal: 2 }[kind] ?? Math.max(2, height), class: `lab-${kind}` });
      const title = svg("title");
      title.textContent = `example ${scores.example[i]}: ${score(scores.score[i])} against ${score(scores[role][i])}`;
      bar.append(title);
      picture.append(bar);
    });
    picture.append(svg("line", { x1: 0, x2: n, y1: 20, y2: 20, class: "lab-axis" }));
    const caption = el("div", "lab-line", {}, `Against the ${{ parent: "parent", current: "current version", best: "best" }[role]}`, this.chip(id), el("strong", "", {}, words));
    return el("div", "lab-strip", {}, caption, picture);
  }

  // --- relatives ------------------------------------------------------------------------------------------------------

  drawRelatives(facts) {
    if (!facts.ancestors.length && !facts.descendants.length) return [];
    const early = (one) => one.outcome === "provisional";
    const chip = (one) => this.chip(one.id, one.version === null ? `${one.id} ${one.outcome.replace("_", " ")}` : `${one.id} v${one.version} ${early(one) ? "provisional" : score(one.mean)}`, one.version === null || early(one) ? "lab-outside" : "");
    const row = (words, list) => {
      if (!list.length) return [];
      const more = list.length > CHIPS ? [folded(`${list.length - CHIPS} more`, () => list.slice(CHIPS).map(chip))] : [];
      return [el("div", "lab-line", {}, el("span", "lab-soft", {}, words), ...list.slice(0, CHIPS).map(chip), ...more)];
    };
    return [el("h3", "", {}, "Relatives"), ...row(`${many(facts.ancestors.length, "ancestor")}, nearest first`, facts.ancestors), ...row(many(facts.descendants.length, "descendant"), facts.descendants)];
  }

  /** What the inspector shows, for tests. */
  report() {
    const { facts, texts } = this.data;
    this.root.dataset.labStatus = JSON.stringify({
      id: facts.id ?? "", item: facts.item ?? "", artifact: facts.artifact ?? "", against: texts.against ?? "", columns: facts.id ? this.shownColumns ?? [] : [],
      only: this.root.querySelectorAll("ins, del").length, verdicts: facts.verdicts?.length ?? 0, said: facts.said ?? {}, acts: facts.acts ?? [],
      cannot: facts.cannot ?? "", editing: Boolean(this.editing), trouble: this.model.get("trouble"),
    });
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.frame = -1;
    this.root.removeEventListener("keydown", this.onKey);
  }
}

export default () => {
  const data = { facts: {}, evidence: {}, texts: {} }, views = new Set();
  const read = (model, name) => {
    const bytes = model.get(name);
    data[name] = bytes?.byteLength ? JSON.parse(new TextDecoder().decode(bytes)) : {};
  };
  return {
    initialize({ model }) {
      for (const name of Object.keys(data)) {
        read(model, name);
        model.on(`change:${name}`, () => {
          read(model, name);
          views.forEach((view) => view.soon());
        });
      }
      model.on("change:trouble", () => views.forEach((view) => view.soon()));
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
