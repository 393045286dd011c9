// The data of the page as objects: nodes, blocks, and for each block the edges between what is in it.

/** One of the two models. `ends` are its inputs and outputs, as if they were nodes of the root block. */
class Model {
  constructor(data, side) {
    const graph = data.graphs[side];
    this.side = side;
    this.values = graph.values.map(([name, type, constant]) => ({ name, type, constant, producer: null, users: [] }));
    this.scopes = graph.scopes;
    this.nodes = graph.nodes.map(([op, name, scope, inputs, outputs, attributes, fate, block, rewrite], index) =>
      ({ index, side, op, name, scope, inputs, outputs, attributes, fate, block, rewrite, partner: null, parts: [], into: [], places: [] }));
    for (const node of this.nodes) {
      for (const v of node.outputs) if (v >= 0) this.values[v].producer = node;
      for (const v of new Set(node.inputs)) if (v >= 0) this.values[v].users.push(node);
    }
    this.#constants();
    this.ends = [...this.#ends("input"), ...this.#ends("output")];
    this.blocks = data.blocks.map(({ label, kind, parent }, id) =>
      ({ id, label, kind, parent, items: [], size: 0, counts: { kept: 0, changed: 0, merged: 0, gone: 0, new: 0 }, places: [] }));
    this.root = this.blocks[0];
    this.#fill();
    this.#connect();
  }

  /** A Constant is told with the nodes that read it. One that nobody reads, or that is a result, stands for itself. */
  #constants() {
    const results = new Set(this.scopes.flatMap((scope) => scope.outputs));
    const isTold = (v) => v < 0 || (this.values[v].users.length > 0 && !results.has(v));
    for (const node of this.nodes) node.isDetail = node.op === "Constant" && node.outputs.every(isTold);
  }

  /** The graph's inputs or outputs; many of them as one. */
  #ends(kind) {
    const weights = (v) => kind === "input" && this.values[v].constant !== undefined;
    const values = this.scopes[0][`${kind}s`].filter((v) => !weights(v));
    const groups = values.length > 12 ? [values] : values.map((v) => [v]);
    return groups.map((group, k) => ({
      index: `${kind}${k}`, side: this.side, kind, block: 0, values: group, inputs: [], outputs: [], places: [],
      label: group.length > 1 ? `${group.length} ${kind}s` : this.values[group[0]].name,
    }));
  }

  #fill() {
    for (const block of this.blocks) if (block.parent >= 0) this.blocks[block.parent].items.push(block);
    for (const node of this.nodes) {
      this.blocks[node.block].items.push(node);
      for (let b = this.blocks[node.block]; b; b = this.blocks[b.parent]) {
        b.size += 1;
        b.counts[node.fate] += 1;
      }
    }
    for (const block of this.blocks) block.items = block.items.filter((item) => !isBlock(item) || item.size);
    this.root.items.push(...this.ends);
  }

  /** The items from a node up to the root: the node, its block, the block around that, ... */
  path(item) {
    const found = [item];
    for (let id = isBlock(item) ? item.parent : item.block; id >= 0; id = this.blocks[id].parent) found.push(this.blocks[id]);
    return found;
  }

  /** Each edge belongs to the innermost block that holds both ends; blocks it enters or leaves have a port for it. */
  #connect() {
    for (const block of this.blocks) Object.assign(block, { edges: new Map(), entries: new Map(), exits: new Map() });
    const add = (map, key, from, to, ends) => {
      if (!map.has(key)) map.set(key, { from, to, ends: new Set() });
      for (const end of ends) map.get(key).ends.add(end);
    };
    const keys = new Map();
    const key = (item) => {
      if (!keys.has(item)) keys.set(item, keys.size);
      return keys.get(item);
    };
    const connect = (source, target) => {
      const up = this.path(source).reverse(), down = this.path(target).reverse();
      let k = 1;
      while (k < up.length - 1 && k < down.length - 1 && up[k] === down[k]) k += 1;
      if (up[k] === down[k]) return;
      const ends = [source, target];
      add(up[k - 1].edges, `${key(up[k])} ${key(down[k])}`, up[k], down[k], ends);
      for (let i = k + 1; i < up.length; i += 1) add(up[i - 1].exits, key(up[i]), up[i], null, ends);
      for (let i = k + 1; i < down.length; i += 1) add(down[i - 1].entries, key(down[i]), null, down[i], ends);
    };
    const inputs = new Map(), outputs = new Map();
    for (const end of this.ends) for (const v of end.values) (end.kind === "input" ? inputs : outputs).set(v, end);
    this.values.forEach((value, v) => {
      const source = value.producer ?? inputs.get(v);
      if (!source) return;
      for (const user of value.users) connect(source, user);
      if (outputs.has(v)) connect(source, outputs.get(v));
    });
    for (const scope of this.scopes) {
      if (scope.owner === null) continue;
      for (const v of scope.outputs) if (this.values[v].producer) connect(this.values[v].producer, this.nodes[scope.owner]);
    }
  }
}

const isBlock = (item) => item.items !== undefined;
const isNode = (item) => item.op !== undefined;

/** The models, with counterparts as references to nodes. */
function readModels(data) {
  const models = data.graphs.map((_, side) => new Model(data, side));
  for (const [i, j] of data.pairs) {
    models[0].nodes[i].partner = models[1].nodes[j];
    models[1].nodes[j].partner = models[0].nodes[i];
  }
  for (const [i, targets] of data.merged) {
    for (const j of targets) {
      models[0].nodes[i].into.push(models[1].nodes[j]);
      models[1].nodes[j].parts.push(models[0].nodes[i]);
    }
  }
  return models;
}

/** Where the models part: `sides` are the nodes of both. Nodes, and the blocks around them, know their places. */
function readPlaces(data, models) {
  return (data.places ?? []).map(({ value, how, nodes }) => {
    const sides = models.map((model, side) => nodes[side].filter((i) => i !== null).map((i) => model.nodes[i]));
    const place = { value, how, sides };
    for (const node of sides.flat()) {
      for (const item of models[node.side].path(node)) if (item.places.at(-1) !== place) item.places.push(place);
    }
    return place;
  });
}

/** The nodes of the other model that stand for this one. */
const counterparts = (node) => [...(node.partner ? [node.partner] : []), ...(node.into ?? []), ...(node.parts ?? [])];
