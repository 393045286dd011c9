// What is known about the selected node.

const FATES = {
  kept: "kept", changed: "changed", merged: "merged into another node", gone: "vanished", new: "new",
};

const html = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
};

class Details {
  constructor(element, models, select) {
    this.element = element;
    this.models = models;
    this.select = select;
  }

  show(item) {
    this.element.hidden = !item;
    this.element.parentNode.classList.toggle("open", Boolean(item));
    if (!item) return;
    const model = this.models[item.side];
    const close = html("button", { type: "button", class: "close", "aria-label": "Close details", onclick: () => this.select(null) }, "✕");
    const parts = [html("header", {}, html("h3", {}, item.op ?? item.label), close)];
    parts.push(...(isNode(item) ? this.#node(model, item) : this.#end(model, item)));
    this.element.replaceChildren(...parts);
    this.element.scrollTop = 0;
  }

  #end(model, end) {
    const list = html("ul", {}, ...end.values.map((v) => html("li", {}, model.values[v].name, this.#type(model.values[v]))));
    const which = this.models.length < 2 ? "" : model.side ? " of the model after" : " of the model before";
    return [html("p", {}, `${end.kind}${which}`), list];
  }

  #node(model, node) {
    const scope = model.scopes[node.scope];
    const compared = this.models.length > 1;
    const facts = [["name", node.name || "(none)"], ...(compared ? [["model", model.side ? "after" : "before"]] : [])];
    if (scope.path !== "main") facts.push(["scope", scope.path]);
    if (node.rewrite) facts.push([node.side ? "made by" : node.partner ? "rewritten by" : "removed by", node.rewrite]);
    return [
      ...(compared ? [this.#badge(node)] : []),
      ...node.places.map(({ value, how }) => html("p", { class: "differs" }, "at ", html("code", {}, value), `: ${how}`)),
      html("dl", {}, ...facts.flatMap(([key, value]) => [html("dt", {}, key), html("dd", {}, value)])),
      ...this.#nodes(node.side ? "Before" : "After", node.partner ? [node.partner] : []),
      ...this.#nodes("Merged into", node.into),
      ...this.#nodes("Merged from", node.parts),
      ...this.#attributes(node),
      ...this.#values(model, "Inputs", node.inputs, (value) => (value.producer ? [value.producer] : [])),
      ...this.#values(model, "Outputs", node.outputs, (value) => value.users),
    ];
  }

  #badge(node) {
    return html("p", {}, html("span", { class: `badge ${node.fate}` }, `${SIGNS[node.fate]} ${FATES[node.fate]}`.trim()));
  }

  #nodes(title, nodes) {
    if (!nodes.length) return [];
    return [html("h4", {}, title), html("ul", { class: "nodes" }, ...nodes.slice(0, 30).map((n) => html("li", {}, this.#link(n))))];
  }

  #link(node) {
    const name = node.name || this.models[node.side].values[node.outputs.find((v) => v >= 0)]?.name || "";
    return html("button", { type: "button", class: "link", onclick: () => this.select(node) }, `${node.op} ${name}`);
  }

  #attributes(node) {
    if (!node.attributes.length) return [];
    const other = new Map(node.partner?.attributes ?? []);
    const rows = node.attributes.flatMap(([key, value]) => {
      const was = other.get(key);
      const differs = node.partner && was !== value ? ` (${node.side ? "before" : "after"}: ${was ?? "default"})` : "";
      return [html("dt", {}, key), html("dd", { class: "mono" }, value + differs)];
    });
    return [html("h4", {}, "Attributes"), html("dl", {}, ...rows)];
  }

  #values(model, title, indices, neighbours) {
    const rows = indices.map((v) => {
      if (v < 0) return html("li", {}, html("span", { class: "type" }, "left out"));
      const value = model.values[v];
      const links = neighbours(value).slice(0, 6).map((n) => html("div", {}, title === "Inputs" ? "from " : "to ", this.#link(n)));
      return html("li", {}, value.name, this.#type(value), ...links);
    });
    return rows.length ? [html("h4", {}, title), html("ul", {}, ...rows)] : [];
  }

  #type(value) {
    const constant = value.constant === undefined ? "" : value.constant ? ` = ${value.constant}` : " constant";
    return html("span", { class: "type" }, (value.type || "type unknown") + constant);
  }
}
