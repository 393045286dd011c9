// One pane, or two with one selection and the same blocks open in both.

const VISIBLE = 70; // items that are opened at first, in the larger model

const data = JSON.parse(document.getElementById("data").textContent);
const models = readModels(data);
const places = readPlaces(data, models);
const open = new Set();
const settings = { constants: false };
const section = document.getElementById("graphs");
const layouts = models.map((model) => new Layout(model, open, settings));

/** Open blocks from the outside in, while both pictures stay small. */
const openFirst = () => {
  const shown = (id) => Math.max(...layouts.map((layout) => layout.model.blocks[id].items.filter((item) => layout.shown(item)).length));
  const inner = (id) => models.flatMap((model) => model.blocks[id].items.filter(isBlock).map((block) => block.id));
  let total = shown(0);
  const queue = [...new Set(inner(0))];
  for (const id of queue) {
    if (total + shown(id) > VISIBLE) continue;
    total += shown(id) - 1;
    open.add(id);
    for (const next of inner(id)) if (!queue.includes(next)) queue.push(next);
  }
};

const redraw = () => {
  for (const layout of layouts) layout.cache.clear();
  for (const pane of panes) pane.draw();
};

const toggle = (block, pane) => {
  const held = panes.map((p) => [p, p.model.blocks[block.id], p.layout.locate(p.model.blocks[block.id])]);
  if (!open.delete(block.id)) open.add(block.id);
  for (const layout of layouts) layout.changed(layout.model.blocks[block.id]);
  for (const [p, b, was] of held) {
    const now = p.layout.locate(b); // it stays where it was on the screen
    if (was && now) p.shift((was.x + was.width / 2 - now.x - now.width / 2) * p.view.scale, (was.y - now.y) * p.view.scale);
    p.draw();
  }
  pane.elements.get(block)?.focus({ preventScroll: true });
};

const reveal = (node, pane) => {
  const closed = pane.model.path(node).filter((item) => isBlock(item) && !layouts[0].isOpen(item));
  if (!pane.layout.shown(node)) showConstants(true);
  for (const block of closed) open.add(block.id);
  return closed.length > 0;
};

/** What is selected is left first, then the block around the focused item. */
const leave = (item, pane) => {
  const around = item ? pane.model.path(item).find((i) => isBlock(i) && i.kind !== "root" && layouts[0].isOpen(i)) : undefined;
  if (panes.some((p) => p.selected)) select(null, pane);
  else if (around) toggle(around, pane);
};

const showConstants = (on) => {
  settings.constants = on;
  section.querySelector("[name=constants]").checked = on;
  redraw();
};

const select = (item, from) => {
  const found = item && isNode(item) ? counterparts(item) : [];
  const shown = item ? [[item, panes[item.side]], ...(found.length ? [[found[0], panes[found[0].side]]] : [])] : [];
  if (shown.map(([node, pane]) => reveal(node, pane)).some(Boolean)) redraw();
  for (const pane of panes) {
    pane.selected = item && pane.model.side === item.side ? item : null;
    pane.partners = new Set(found.filter((n) => n.side === pane.model.side));
    pane.mark();
  }
  details.show(item);
  for (const [node, pane] of shown) if (pane !== from || !pane.sees(node)) pane.center(node);
};

const filter = (fate) => {
  for (const chip of section.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(chip.value === fate));
  for (const pane of panes) {
    pane.fate = fate;
    pane.mark();
  }
  search.fate = fate;
  if (fate) search.input.focus();
  search.run();
};

const figures = [...section.querySelectorAll(".pane")];
const panes = figures.map((figure, side) => new Pane(figure, models[side], layouts[side], { toggle, select, leave }, models.length > 1));
const details = new Details(section.querySelector(".info"), models, (node) => select(node, null));
const go = (node) => {
  section.querySelector(".panes").scrollIntoView({ block: "nearest", behavior: "instant" }); // as the graphs move, too
  select(node, null);
  panes[node.side].elements.get(node)?.focus({ preventScroll: true });
};
/** Show a place in both graphs: all its nodes, with the one that makes the value selected. */
const visit = (k) => {
  at = k;
  const { sides } = places[k], node = sides[1].at(-1) ?? sides[0].at(-1);
  if (!node) return;
  go(node);
  const shown = sides.map((nodes, side) => nodes.filter((n) => layouts[side].shown(n)));
  if (shown.flat().map((n) => reveal(n, panes[n.side])).some(Boolean)) redraw();
  for (const pane of panes) {
    pane.mark();
    pane.frame(shown[pane.model.side]);
  }
};
let at = -1; // the place that was shown last
const search = new Search(section.querySelector(".search"), models, go);

section.querySelector("[name=expand]").addEventListener("click", () => {
  for (const block of models[0].blocks) open.add(block.id);
  redraw();
  for (const pane of panes) pane.fit(true);
});
section.querySelector("[name=collapse]").addEventListener("click", () => {
  open.clear();
  redraw();
  for (const pane of panes) pane.fit(true);
});
section.querySelector("[name=full]").addEventListener("click", () =>
  (document.fullscreenElement ? document.exitFullscreen() : section.requestFullscreen()));
section.querySelector("[name=constants]").addEventListener("change", (e) => showConstants(e.target.checked));
for (const chip of section.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => filter(chip.getAttribute("aria-pressed") === "true" ? "" : chip.value));
}
for (const link of document.querySelectorAll("[data-node]")) {
  link.addEventListener("click", () => go(models[link.dataset.side].nodes[link.dataset.node]));
}
for (const link of document.querySelectorAll("[data-place]")) link.addEventListener("click", () => visit(Number(link.dataset.place)));
if (places.length) {
  const next = () => visit((at + 1) % places.length);
  section.querySelector("[name=differs]").addEventListener("click", next);
  document.addEventListener("keydown", (e) => {
    if (e.key === "d" && !e.ctrlKey && !e.metaKey && !e.altKey && !/^(input|textarea)$/i.test(e.target.tagName)) next();
  });
}
new ResizeObserver(() => { for (const pane of panes) if (pane.drawn.size) pane.move(); }).observe(section);

attempt("No block is opened", openFirst);
for (const pane of panes) {
  attempt(`The graph ${pane.name} is not drawn`, () => {
    pane.draw();
    pane.fit(true);
  });
}
