// The button of a fold (see fold.py): what it hides is hidden by overview.css, by `aria-expanded`.
// One rule a change must keep: words go only into textContent.

function render({ model, el }) {
  const make = (tag, cls, parent) => {
    const node = document.createElement(tag);
    node.className = cls;
    parent.append(node);
    return node;
  };
  const button = make("button", "fl-more-button", el);
  button.type = "button";
  const title = make("span", "fl-more-title", button), said = make("span", "fl-more-said", button);
  const redraw = () => {
    button.setAttribute("aria-expanded", String(model.get("opened")));
    title.textContent = model.get("title");
    said.replaceChildren();
    model.get("parts").forEach(([words, tooltip, marked], i) => {
      if (i) said.append(" · ");
      const part = make(marked ? "strong" : "span", "", said);
      part.textContent = words;
      part.title = tooltip;
    });
  };
  button.onclick = () => {
    model.set("opened", !model.get("opened"));
    model.save_changes();
  };
  model.on("change", redraw);
  redraw();
  return () => model.off("change", redraw);
}

export default { render };
