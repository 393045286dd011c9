// One graph on the screen: drawn block by block as they come into view; moved, enlarged, walked through.

const SIGNS = { kept: "", changed: "~", merged: "⤳", gone: "−", new: "+" };
const SVG = "http://www.w3.org/2000/svg";

const svg = (name, attributes = {}, ...children) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

const svgText = (text, attributes) => {
  const element = svg("text", attributes);
  element.textContent = text;
  return element;
};

/** A smooth line through the middles between points. */
const curve = (points) => {
  const at = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;
  const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  let path = `M${at(points[0])}`;
  for (let i = 1; i < points.length - 1; i += 1) path += `Q${at(points[i])} ${at(middle(points[i], points[i + 1]))}`;
  return `${path}L${at(points[points.length - 1])}`;
};

/** Lines below each other from `y` on, with the full text for whoever points at them. */
const svgLines = (lines, { y, ...attributes }) => lines.map((line, i) => svgText(line, { ...attributes, y: y + i * LINE }));

const counted = (n) => `${n.toLocaleString("en")} node${n === 1 ? "" : "s"}`;

const svgTitle = (text) => {
  const element = svg("title");
  element.textContent = text;
  return element;
};

class Pane {
  /** `compared`: is there another model, so that it matters what became of nodes? */
  constructor(figure, model, layout, actions, compared) {
    this.figure = figure;
    this.svg = figure.querySelector("svg");
    this.name = figure.querySelector("figcaption").textContent;
    this.model = model;
    this.layout = layout;
    this.actions = actions; // toggle(block), select(item, pane), leave(item, pane)
    this.compared = compared;
    this.view = { x: 0, y: 0, scale: 1 };
    this.selected = null;
    this.partners = new Set();
    this.fate = "";
    this.stage = svg("g");
    this.drawn = new Map(); // block -> its group, and the places of opened blocks in it
    this.elements = new Map(); // item -> element
    const arrow = svg("marker", { id: `arrow${model.side}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse", markerUnits: "userSpaceOnUse" }, svg("path", { d: "M0 .8 7 4 0 7.2z", class: "port" }));
    this.svg.append(svg("defs", {}, arrow), this.stage);
    this.#listen();
  }

  // -- drawing --------------------------------------------------------------------------------------------

  /** Draw again, after blocks were opened or closed. */
  draw() {
    this.stage.replaceChildren();
    this.drawn.clear();
    this.elements.clear();
    this.#content(this.model.root, this.stage);
    this.move();
  }

  #content(block, parent) {
    const layout = this.layout.of(block);
    const lines = svg("g"), boxes = svg("g");
    const record = { layout, edges: [], inner: [] };
    this.drawn.set(block, record);
    for (const edge of layout.edges) {
      const line = svg("path", { class: "edge", d: curve(edge.points), "marker-end": `url(#arrow${this.model.side})` });
      record.edges.push([line, edge]);
      lines.append(line);
    }
    for (const { start, end, middle, ends } of layout.far) {
      const d = `M${start.x},${start.y}C${middle.map(({ x, y }) => `${x},${y}`).join(" ")} ${end.x},${end.y}`;
      const line = svg("path", { class: "edge leap", d, "marker-end": `url(#arrow${this.model.side})` });
      record.edges.push([line, { ends }]);
      lines.append(line);
      for (const { x, y } of [start, end]) lines.append(svg("circle", { class: "stub", r: 3.5, cx: x, cy: y }));
    }
    if ("in" in layout.ports) lines.append(svg("circle", { class: "port", r: 3, cx: layout.ports.in, cy: HEAD }));
    if ("out" in layout.ports) lines.append(svg("circle", { class: "port", r: 3, cx: layout.ports.out, cy: layout.height }));
    for (const place of layout.places) {
      const { op, label } = place.item;
      attempt(`${op ?? label} is not drawn`, () => boxes.append(this.#item(place, record)));
    }
    parent.append(lines, boxes);
    this.#mark(record);
  }

  #item(place, record) {
    const { item, x, y, width, height } = place;
    const element = svg("g", { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, role: "button", tabindex: -1 });
    element.itemOfGraph = item;
    this.elements.set(item, element);
    if (!isBlock(item)) this.#node(element, item, width, height);
    else if (this.layout.isOpen(item)) this.#frame(element, item, place, record);
    else this.#closed(element, item, width, height);
    return element;
  }

  #node(element, node, width, height) {
    const end = !isNode(node);
    element.setAttribute("class", end ? "item end" : `item ${node.fate}`);
    const name = end ? node.label : shortName(this.model, node);
    const fate = (this.compared ? `, ${node.fate}` : "") + (node.places.length ? ", differs" : "");
    element.setAttribute("aria-label", end ? `${node.kind} ${node.label}` : `${node.op} ${node.name || name}${fate}`);
    this.#ring(element, node, width, height);
    element.append(svgTitle(end ? name : `${node.op} ${node.name || name}`), svg("rect", { class: "box", width, height, rx: end ? 14 : 9 }));
    if (end) {
      element.append(...svgLines(wrapped(name), { class: "title", x: width / 2, y: 14, "text-anchor": "middle" }));
    } else if (node.op === "Constant") {
      const value = this.model.values[node.outputs[0]]?.constant || "Constant";
      element.append(svgText(cut(value, 14), { class: "sub", x: 10, y: height / 2 }));
    } else {
      const ops = wrapped(node.op);
      element.append(...svgLines(ops, { class: "op", x: 13, y: 15 }));
      element.append(...svgLines(wrapped(name), { class: "sub", x: 13, y: 17 + LINE * ops.length }));
    }
    if (!end && SIGNS[node.fate]) element.append(svgText(SIGNS[node.fate], { class: "mark", x: width - 9, y: Math.min(15, height / 2) }));
  }

  /** Around what is at a place where the models part. */
  #ring(element, item, width, height) {
    if (!item.places.length) return;
    element.classList.add("differs");
    element.append(svg("rect", { class: "ring", x: -4, y: -4, width: width + 8, height: height + 8, rx: 12 }));
  }

  #closed(element, block, width, height) {
    element.setAttribute("class", "item block");
    const lines = wrapped(block.label), below = LINE * (lines.length - 1);
    element.setAttribute("aria-label", `block ${block.label}, ${this.#contents(block)}; closed${block.places.length ? ", differs" : ""}`);
    element.setAttribute("aria-expanded", "false");
    this.#ring(element, block, width, height - 2);
    element.append(
      svgTitle(block.label),
      svg("rect", { class: "pile", x: 8, y: 6, width: width - 10, height: height - 2, rx: 9 }),
      svg("rect", { class: "box", width, height: height - 2, rx: 9 }),
      ...svgLines(lines, { class: "title", x: 13, y: 17 }),
      svgText("+", { class: "sign", x: width - 16, y: 17 }),
      svgText(counted(block.size), { class: "sub", x: 13, y: 34 + below }),
    );
    if (!this.compared) return;
    let x = 13;
    for (const [fate, n] of Object.entries(block.counts)) {
      const share = ((width - 26) * n) / block.size;
      if (n) element.append(svg("rect", { class: `fate-${fate}`, x, y: height - 11, width: Math.max(share - 1, 1), height: 4, rx: 1.5 }));
      x += share;
    }
  }

  #frame(element, block, { width, height }, record) {
    element.setAttribute("class", "group");
    element.setAttribute("aria-label", `block ${block.label}, ${this.#contents(block)}; open`);
    element.setAttribute("aria-expanded", "true");
    const inside = svg("g");
    const head = svg("g", { class: "head" }, svgTitle(block.label),
      svg("rect", { width: width - 2, height: HEAD - 4, x: 1, y: 1, rx: 11 }),
      svgText(cut(block.label, 40), { class: "title", x: 14, y: HEAD / 2 }),
      svgText("−", { class: "sign", x: width - 16, y: HEAD / 2 }));
    element.append(svg("rect", { class: "frame box", width, height, rx: 12 }), head, inside);
    record.inner.push({ block, inside, element });
  }

  #contents(block) {
    const fates = Object.entries(block.counts).filter(([, n]) => n).map(([fate, n]) => `${n} ${fate}`).join(", ");
    return `${counted(block.size)}${this.compared ? `: ${fates}` : ""}`;
  }

  /** Draw what came into view; leave the rest for when it does. */
  #reveal(block, x, y) {
    const { scale } = this.view, box = this.size;
    for (const { block: inner, inside } of this.drawn.get(block).inner) {
      const place = this.layout.of(block).at.get(inner);
      const left = x + place.x, top = y + place.y;
      const seen = this.view.x + left * scale < box.width && this.view.x + (left + place.width) * scale > 0 &&
        this.view.y + top * scale < box.height && this.view.y + (top + place.height) * scale > 0;
      inside.style.display = seen ? "" : "none";
      if (!seen) continue;
      if (!this.drawn.has(inner)) this.#content(inner, inside);
      this.#reveal(inner, left, top);
    }
  }

  #mark({ edges, layout }) {
    for (const { item } of layout.places) {
      const element = this.elements.get(item);
      if (!element) continue; // it is not drawn
      element.classList.toggle("selected", item === this.selected);
      element.classList.toggle("partner", this.partners.has(item));
      element.classList.toggle("hit", this.fate !== "" && (isBlock(item) ? item.counts[this.fate] > 0 : item.fate === this.fate));
    }
    for (const [line, { ends }] of edges) {
      const near = this.selected !== null && ends.has(this.selected);
      line.classList.toggle("near", near);
      if (near) line.parentNode.append(line);
    }
  }

  /** Show what is selected, what stands for it, and what is filtered. */
  mark() {
    this.svg.classList.toggle("filtered", this.fate !== "");
    for (const record of this.drawn.values()) this.#mark(record);
  }

  // -- moving ---------------------------------------------------------------------------------------------

  get size() {
    return this.svg.getBoundingClientRect();
  }

  move() {
    const { x, y, scale } = this.view;
    this.stage.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
    this.svg.classList.toggle("far", scale < 0.28);
    this.#reveal(this.model.root, 0, 0);
  }

  /** Enlarge around a point of the screen, by default the middle. */
  zoom(factor, point) {
    const { width, height } = this.size, { x, y } = point ?? { x: width / 2, y: height / 2 };
    const scale = Math.min(3, Math.max(0.01, this.view.scale * factor)), k = scale / this.view.scale;
    this.view = { x: x - (x - this.view.x) * k, y: y - (y - this.view.y) * k, scale };
    this.move();
  }

  shift(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
  }

  pan(dx, dy) {
    this.shift(dx, dy);
    this.move();
  }

  /** All of it; `legible`: not smaller than can be read, from the top. */
  fit(legible = false) {
    const box = this.size, { width, height } = this.layout.of(this.model.root);
    const whole = Math.min(box.width / (width + 16), (box.height - 60) / (height + 16), 1.1);
    const scale = legible ? Math.max(whole, Math.min(0.8, box.width / (width + 16)), 0.6) : Math.max(whole, 0.02);
    const { places } = this.layout.of(this.model.root);
    const top = places.reduce((a, b) => (b.y < a.y ? b : a), places[0] ?? { x: 0, y: 0, width: 0 });
    const first = places.find(({ item }) => item.kind === "input") ?? top; // where one begins to read
    const half = Math.min(width, box.width / scale) / 2;
    const center = Math.min(Math.max(first.x + first.width / 2, half), width - half);
    const isTall = scale * height > box.height - 60, start = legible && isTall ? 56 - first.y * scale : 44;
    this.view = { x: box.width / 2 - center * scale, y: legible || isTall ? start : (box.height - height * scale) / 2 + 16, scale };
    this.move();
  }

  /** Is the item on the screen? */
  sees(item) {
    const place = this.layout.locate(item), { x, y, scale } = this.view, box = this.size;
    return place !== null && x + place.x * scale > 0 && y + place.y * scale > 0 &&
      x + (place.x + place.width) * scale < box.width && y + (place.y + place.height) * scale < box.height;
  }

  /** Bring an item to the middle. */
  center(item) {
    const place = this.layout.locate(item);
    if (!place) return;
    const box = this.size, scale = Math.max(this.view.scale, 0.7);
    this.view = { x: box.width / 2 - (place.x + place.width / 2) * scale, y: box.height / 2 - (place.y + Math.min(place.height, 200) / 2) * scale, scale };
    this.move();
  }

  /** Bring items to the middle together, as large as they can be read and fit. */
  frame(items) {
    const places = items.map((item) => this.layout.locate(item)).filter(Boolean);
    if (!places.length) return;
    const left = Math.min(...places.map((p) => p.x)), right = Math.max(...places.map((p) => p.x + p.width));
    const top = Math.min(...places.map((p) => p.y)), bottom = Math.max(...places.map((p) => p.y + p.height));
    const box = this.size, room = Math.min(box.width / (right - left + 60), (box.height - 60) / (bottom - top + 60));
    const scale = Math.max(0.1, Math.min(1, room));
    this.view = { x: box.width / 2 - ((left + right) / 2) * scale, y: box.height / 2 - ((top + bottom) / 2) * scale, scale };
    this.move();
  }

  // -- listening ------------------------------------------------------------------------------------------

  #listen() {
    const fingers = new Map();
    let moved = 0;
    const point = ({ clientX, clientY }) => ({ x: clientX - this.size.left, y: clientY - this.size.top });
    this.svg.addEventListener("pointerdown", (e) => {
      fingers.set(e.pointerId, point(e));
      if (fingers.size === 1) moved = 0;
    });
    this.svg.addEventListener("pointermove", (e) => {
      const was = fingers.get(e.pointerId);
      if (!was) return;
      const now = point(e);
      moved += Math.abs(now.x - was.x) + Math.abs(now.y - was.y);
      if (moved > 4 && !this.svg.hasPointerCapture(e.pointerId)) this.svg.setPointerCapture(e.pointerId);
      const others = [...fingers].filter(([id]) => id !== e.pointerId).map(([, p]) => p);
      fingers.set(e.pointerId, now);
      if (!others.length) this.pan(now.x - was.x, now.y - was.y);
      else {
        const far = (p) => Math.hypot(p.x - others[0].x, p.y - others[0].y) || 1;
        this.zoom(far(now) / far(was), { x: (now.x + others[0].x) / 2, y: (now.y + others[0].y) / 2 });
      }
    });
    for (const name of ["pointerup", "pointercancel", "pointerleave"]) this.svg.addEventListener(name, (e) => fingers.delete(e.pointerId));
    this.svg.addEventListener("click", (e) => {
      if (moved > 4) return;
      const element = e.target.closest("[role=button]");
      if (!element) return this.actions.select(null, this);
      const item = element.itemOfGraph;
      if (isBlock(item)) { if (!this.layout.isOpen(item) || e.target.closest(".head")) this.actions.toggle(item, this); }
      else this.actions.select(item, this);
    });
    this.svg.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey && !this.figure.contains(document.activeElement) && !document.fullscreenElement) return;
      e.preventDefault();
      this.zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.0016)), point(e));
    }, { passive: false });
    this.svg.addEventListener("keydown", (e) => this.#key(e));
    for (const button of this.figure.querySelectorAll(".zoom button")) {
      button.addEventListener("click", () => {
        if (button.name === "fit") this.fit();
        else this.zoom(button.name === "in" ? 1.3 : 1 / 1.3);
      });
    }
  }

  #key(e) {
    const step = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [1, 0], ArrowRight: [-1, 0] }[e.key];
    if (step && (e.shiftKey || !this.#walk(step))) this.pan(step[0] * 60, step[1] * 60);
    else if (e.key === "+" || e.key === "=") this.zoom(1.25);
    else if (e.key === "-") this.zoom(0.8);
    else if (e.key === "0") this.fit();
    else if (e.key === "Escape") this.actions.leave(document.activeElement.itemOfGraph, this);
    else if ((e.key === "Enter" || e.key === " ") && document.activeElement.itemOfGraph) {
      const item = document.activeElement.itemOfGraph;
      if (isBlock(item)) this.actions.toggle(item, this);
      else this.actions.select(item, this);
    } else if (!step) return;
    e.preventDefault();
  }

  /** Focus the nearest visible item in a direction; from nowhere, the first. */
  #walk([dx, dy]) {
    const focused = document.activeElement.itemOfGraph ?? this.selected;
    const items = [...this.elements].filter(([item, el]) => el.isConnected && !(isBlock(item) && this.layout.isOpen(item)));
    const middle = (el, part = 0.5) => {
      const box = el.querySelector(".box").getBoundingClientRect();
      return { x: box.left + box.width / 2, y: box.top + box.height * part };
    };
    let best = null, least = Infinity;
    const isFrame = focused && isBlock(focused) && this.layout.isOpen(focused); // one goes into it from its head
    const from = this.elements.has(focused) ? middle(this.elements.get(focused), isFrame ? 0 : 0.5) : null;
    for (const [item, element] of items) {
      if (item === focused) continue;
      const at = middle(element);
      const ahead = from ? (from.x - at.x) * dx + (from.y - at.y) * dy : 2;
      if (ahead <= 1) continue;
      const aside = from ? Math.abs((from.x - at.x) * dy) + Math.abs((from.y - at.y) * dx) : at.y;
      const cost = ahead + 2.5 * aside;
      if (cost < least) [best, least] = [item, cost];
    }
    if (!best) return false;
    this.center(best);
    this.elements.get(best)?.focus({ preventScroll: true });
    return true;
  }
}
