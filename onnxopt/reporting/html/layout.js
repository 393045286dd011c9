// Where everything is. Each block is laid out by itself, when it is opened; what is closed is a box of fixed size.

const HEAD = 30, PAD = 16, FAN = 5, LINE = 14, LETTERS = 26, WIDE = 196;

const measure = (() => {
  const context = document.createElement("canvas").getContext("2d");
  const known = new Map();
  return (text, font) => {
    const key = `${font}|${text}`;
    if (!known.has(key)) {
      context.font = font;
      known.set(key, context.measureText(text).width);
    }
    return known.get(key);
  };
})();

/** `text` cut to `length`: names are told apart by how they end. */
const tail = (text, length) => (text.length <= length ? text : `…${text.slice(1 - length)}`);
const cut = (text, length) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);

/** One line, or two, the first of which ends with a part of the name. */
const wrapped = (name) => {
  const text = tail(name, 2 * LETTERS);
  if (text.length <= LETTERS) return [text];
  const end = Math.max(...[..."/._-: "].map((c) => text.lastIndexOf(c, LETTERS - 1))) + 1;
  const at = text.length - end <= LETTERS ? end : LETTERS;
  return [text.slice(0, at), text.slice(at)];
};

/** What is written under the operator: the node's own name, with the module around it where it only repeats the operator. */
const shortName = (model, node) => {
  const name = node.name || (model.values[node.outputs.find((v) => v >= 0)]?.name ?? "");
  const parts = name.split("/").filter(Boolean), own = parts.pop() ?? name, module = parts.pop();
  return module && own === node.op ? module : own;
};

/** What is read everywhere would tie everything to it. Such edges are left out, unless nothing else holds the other end. */
const sparse = (edges) => {
  const out = Map.groupBy(edges, (e) => e.from), into = Map.groupBy(edges, (e) => e.to);
  const wide = (e) => out.get(e.from).length > FAN, deep = (e) => into.get(e.to).length > FAN;
  const kept = new Set(edges);
  for (const [ends, crowded] of [[into, wide], [out, deep]]) {
    for (const group of ends.values()) {
      const rest = group.filter((e) => kept.has(e)), thin = rest.filter((e) => !crowded(e));
      for (const e of rest) if (crowded(e) && e !== (thin[0] ?? rest[0])) kept.delete(e);
    }
  }
  return [[...kept], edges.filter((e) => !kept.has(e))];
};

class Layout {
  /** `open`: the ids of opened blocks, shared by both models. */
  constructor(model, open, settings) {
    this.model = model;
    this.open = open;
    this.settings = settings;
    this.cache = new Map();
  }

  isOpen(block) {
    return block.kind === "root" || this.open.has(block.id);
  }

  shown(item) {
    return !isNode(item) || !item.isDetail || this.settings.constants;
  }

  /** Forget the block and those around it: its size has changed. */
  changed(block) {
    for (const b of this.model.path(block)) this.cache.delete(b.id);
  }

  size(item) {
    if (isBlock(item)) {
      if (!this.isOpen(item)) return { width: WIDE, height: 56 + LINE * (wrapped(item.label).length - 1) };
      const { width, height } = this.of(item);
      return { width, height };
    }
    const widest = (lines, font, room) => Math.max(...lines.map((line) => measure(line, font) + room));
    if (!isNode(item)) {
      const lines = wrapped(item.label);
      return { width: Math.max(64, widest(lines, "600 12px system-ui", 28)), height: 28 + LINE * (lines.length - 1) };
    }
    if (item.op === "Constant") return { width: 104, height: 26 };
    const ops = wrapped(item.op), names = wrapped(shortName(this.model, item));
    const width = Math.max(96, widest(ops, "600 13px system-ui", 44), widest(names, "11px system-ui", 26));
    return { width: Math.round(width), height: 44 + LINE * (ops.length + names.length - 2) };
  }

  /** `{ width, height, places: [{ item, x, y, width, height }], edges: [{ points, ends }], ports }`, from the top left. */
  of(block) {
    if (!this.cache.has(block.id)) {
      const what = `the edges of block ${block.label} are not drawn`;
      this.cache.set(block.id, attempt(what, () => this.#checked(this.#lay(block)), () => this.#list(block)));
    }
    return this.cache.get(block.id);
  }

  /** A layout with a size that is no number would hide everything around it. */
  #checked(layout) {
    const sizes = [layout.width, layout.height, ...layout.places.flatMap(({ x, y, width, height }) => [x, y, width, height])];
    if (!sizes.every(Number.isFinite)) throw new Error("a size is no number");
    return layout;
  }

  /** The items of a block one below the other, without edges: what is shown where it cannot be laid out. */
  #list(block) {
    const layout = { width: WIDE, height: (block.kind === "root" ? 0 : HEAD) + PAD, places: [], edges: [], far: [], ports: {}, at: new Map() };
    for (const item of block.items.filter((i) => this.shown(i))) {
      const place = { item, x: PAD, y: layout.height, ...this.size(item) };
      layout.places.push(place);
      layout.at.set(item, place);
      layout.height += place.height + PAD;
      layout.width = Math.max(layout.width, place.width + 2 * PAD);
    }
    return layout;
  }

  #lay(block) {
    const items = block.items.filter((item) => this.shown(item));
    const graph = new dagre.graphlib.Graph();
    const many = items.length > 200;
    graph.setGraph({ nodesep: 22, ranksep: 34, edgesep: 12, marginx: PAD, marginy: PAD, ...(many && { ranker: "longest-path" }) });
    graph.setDefaultEdgeLabel(() => ({}));
    const names = new Map(items.map((item, i) => [item, `${i}`]));
    for (const [item, name] of names) graph.setNode(name, { ...this.size(item) });
    const all = [...block.edges.values(), ...block.entries.values(), ...block.exits.values()]
      .map((edge) => ({ edge, from: edge.from ? names.get(edge.from) : "in", to: edge.to ? names.get(edge.to) : "out" }))
      .filter(({ from, to }) => from !== undefined && to !== undefined);
    const [edges, far] = sparse(all);
    for (const { from, to } of edges) {
      if (from === "in") graph.setNode("in", { width: 8, height: 1 });
      if (to === "out") graph.setNode("out", { width: 8, height: 1 });
      graph.setEdge(from, to, {});
    }
    if (items.length) dagre.layout(graph); // of nothing it says that it is smaller than anything
    const { width = 0, height = 0 } = graph.graph();
    const head = block.kind === "root" ? 0 : HEAD;
    const least = head ? measure(cut(block.label, 40), "600 12px system-ui") + 96 : 0;
    const bends = edges.flatMap(({ from, to }) => graph.edge(from, to).points.map(({ x }) => x));
    const left = Math.max(0, PAD / 2 - Math.min(PAD, ...bends)), right = Math.max(0, Math.max(0, ...bends) + PAD / 2 - width);
    const shift = left + Math.max(0, (least - width - left - right) / 2);
    const place = (name) => {
      const { x, y, width: w, height: h } = graph.node(name);
      return { x: x - w / 2 + shift, y: y - h / 2 + head, width: w, height: h };
    };
    const layout = { width: Math.max(width + left + right, least), height: height + head, places: [], edges: [], far: [], ports: {}, at: new Map() };
    for (const [item, name] of names) {
      const found = { item, ...place(name) };
      layout.places.push(found);
      layout.at.set(item, found);
    }
    for (const name of ["in", "out"]) if (graph.hasNode(name)) layout.ports[name] = graph.node(name).x + shift;
    for (const { edge, from, to } of edges) {
      const points = graph.edge(from, to).points.map(({ x, y }) => ({ x: x + shift, y: y + head }));
      this.#join(layout, edge, from, to, points);
      layout.edges.push({ points, ends: edge.ends });
    }
    for (const { edge } of far) if (edge.from && edge.to) layout.far.push(this.#leap(layout, edge));
    return layout;
  }

  /** An edge that is only shown on demand: straight from one item to the other. */
  #leap(layout, edge) {
    const from = layout.at.get(edge.from), to = layout.at.get(edge.to);
    const start = { x: from.x + from.width - 14, y: from.y + from.height }, end = { x: to.x + to.width - 14, y: to.y };
    const bend = Math.max(30, Math.min(120, Math.abs(end.y - start.y) / 2));
    return { start, end, ends: edge.ends, middle: [{ x: start.x, y: start.y + bend }, { x: end.x, y: end.y - bend }] };
  }

  /** Edges go on inside opened blocks: they end at the block's port, not somewhere on its border. */
  #join(layout, edge, from, to, points) {
    const start = (x, y) => points.splice(0, 1, { x, y }, { x, y: y + 12 });
    const end = (x, y) => points.splice(-1, 1, { x, y: y - 12 }, { x, y });
    const port = (item, name) => (item && isBlock(item) && this.isOpen(item) ? this.of(item).ports[name] : undefined);
    const out = port(edge.from, "out"), into = port(edge.to, "in");
    if (points.length === 3 && (out ?? into) !== undefined) points.splice(1, 1); // from one rank to the next: no detour
    if (from === "in") start(layout.ports.in, HEAD);
    else if (out !== undefined) start(layout.at.get(edge.from).x + out, layout.at.get(edge.from).y + layout.at.get(edge.from).height);
    if (to === "out") end(layout.ports.out, layout.height);
    else if (into !== undefined) end(layout.at.get(edge.to).x + into, layout.at.get(edge.to).y);
  }

  /** Where a visible item is in the whole picture; null inside a closed block. */
  locate(item) {
    const path = this.model.path(item).reverse();
    let x = 0, y = 0, found = null;
    for (let i = 1; i < path.length; i += 1) {
      if (!this.isOpen(path[i - 1])) return found;
      const place = this.of(path[i - 1]).at.get(path[i]);
      if (!place) return found;
      x += place.x;
      y += place.y;
      found = { x, y, width: place.width, height: place.height, item: path[i] };
    }
    return found;
  }
}
