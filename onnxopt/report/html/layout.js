// Where everything is. Each block is laid out by itself, when it is opened; what is closed is a box of fixed size.

const HEAD = 30, PAD = 16, CLOSED = { width: 196, height: 56 };

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

/** What is written under the operator: the node's own name, without the modules around it. */
const shortName = (model, node) => {
  const name = node.name || (model.values[node.outputs.find((v) => v >= 0)]?.name ?? "");
  return tail(name.split("/").pop() || name, 26);
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
    return !isNode(item) || item.op !== "Constant" || this.settings.constants;
  }

  /** Forget the block and those around it: its size has changed. */
  changed(block) {
    for (const b of this.model.path(block)) this.cache.delete(b.id);
  }

  size(item) {
    if (isBlock(item)) {
      if (!this.isOpen(item)) return CLOSED;
      const { width, height } = this.of(item);
      return { width, height };
    }
    if (!isNode(item)) return { width: Math.max(64, measure(cut(item.label, 26), "600 12px system-ui") + 28), height: 28 };
    if (item.op === "Constant") return { width: 104, height: 26 };
    const op = measure(cut(item.op, 26), "600 13px system-ui") + 44;
    const name = measure(shortName(this.model, item), "11px system-ui") + 26;
    return { width: Math.round(Math.max(96, op, name)), height: 44 };
  }

  /** `{ width, height, places: [{ item, x, y, width, height }], edges: [{ points, ends }], ports }`, from the top left. */
  of(block) {
    if (!this.cache.has(block.id)) this.cache.set(block.id, this.#lay(block));
    return this.cache.get(block.id);
  }

  #lay(block) {
    const items = block.items.filter((item) => this.shown(item));
    const graph = new dagre.graphlib.Graph();
    const many = items.length > 200;
    graph.setGraph({ nodesep: 22, ranksep: 34, edgesep: 12, marginx: PAD, marginy: PAD, ...(many && { ranker: "longest-path" }) });
    graph.setDefaultEdgeLabel(() => ({}));
    const names = new Map(items.map((item, i) => [item, `${i}`]));
    for (const [item, name] of names) graph.setNode(name, { ...this.size(item) });
    const edges = [];
    const connect = (edge, from, to) => {
      if (from === undefined || to === undefined || from === to || graph.hasEdge(from, to)) return;
      graph.setEdge(from, to, {});
      edges.push({ edge, from, to });
    };
    for (const edge of block.edges.values()) connect(edge, names.get(edge.from), names.get(edge.to));
    const entries = [...block.entries.values()].filter((e) => names.has(e.to));
    const exits = [...block.exits.values()].filter((e) => names.has(e.from));
    if (entries.length) graph.setNode("in", { width: 8, height: 1 });
    if (exits.length) graph.setNode("out", { width: 8, height: 1 });
    for (const edge of entries) connect(edge, "in", names.get(edge.to));
    for (const edge of exits) connect(edge, names.get(edge.from), "out");
    dagre.layout(graph);
    const { width = 0, height = 0 } = graph.graph();
    const head = block.kind === "root" ? 0 : HEAD;
    const least = head ? measure(cut(block.label, 40), "600 12px system-ui") + 96 : 0;
    const shift = Math.max(0, (least - width) / 2);
    const place = (name) => {
      const { x, y, width: w, height: h } = graph.node(name);
      return { x: x - w / 2 + shift, y: y - h / 2 + head, width: w, height: h };
    };
    const layout = { width: Math.max(width, least), height: height + head, places: [], edges: [], ports: {}, at: new Map() };
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
    return layout;
  }

  /** Edges go on inside opened blocks: they end at the block's port, not somewhere on its border. */
  #join(layout, edge, from, to, points) {
    const last = points.length - 1;
    if (from === "in") points[0] = { x: layout.ports.in, y: HEAD };
    if (to === "out") points[last] = { x: layout.ports.out, y: layout.height };
    for (const [item, index, port] of [[edge.from, 0, "out"], [edge.to, last, "in"]]) {
      if (!item || !isBlock(item) || !this.isOpen(item)) continue;
      const place = layout.at.get(item), x = this.of(item).ports[port];
      if (x !== undefined) points[index] = { x: place.x + x, y: port === "in" ? place.y : place.y + place.height };
    }
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
