// Finds nodes of both models by operator, name, or the values they read and make.

const SHOWN = 60;

class Search {
  constructor(form, models, select) {
    this.input = form.querySelector("input");
    this.list = form.querySelector("ul");
    this.models = models;
    this.select = select;
    this.fate = "";
    this.found = [];
    this.at = -1;
    this.input.addEventListener("input", () => this.run());
    this.input.addEventListener("focus", () => this.run());
    this.input.addEventListener("keydown", (e) => this.#key(e));
    form.addEventListener("focusout", (e) => { if (!form.contains(e.relatedTarget)) this.#close(); });
    document.addEventListener("keydown", (e) => {
      if (e.key === "/" && !/^(input|textarea)$/i.test(e.target.tagName)) {
        e.preventDefault();
        this.input.focus();
      }
    });
  }

  /** Every word has to be in the node's text; a fate narrows it down. */
  run() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length && !this.fate) return this.#close();
    const text = (model, n) => [n.op, n.name, ...[...n.inputs, ...n.outputs].filter((v) => v >= 0).map((v) => model.values[v].name)].join("\n").toLowerCase();
    this.found = this.models.flatMap((model) =>
      model.nodes.filter((n) => (!this.fate || n.fate === this.fate) && words.every((w) => text(model, n).includes(w))));
    const own = (n) => `${n.op}\n${n.name}`.toLowerCase();
    const rank = (n) => (words.includes(n.name.toLowerCase()) ? 2 : Number(words.every((w) => own(n).includes(w))));
    this.found.sort((a, b) => rank(b) - rank(a));
    this.at = -1;
    this.#show();
  }

  #show() {
    const rows = this.found.slice(0, SHOWN).map((node, i) => {
      const name = node.name || this.models[node.side].values[node.outputs.find((v) => v >= 0)]?.name || "";
      return html("li", { role: "option", id: `hit${i}`, "aria-selected": String(i === this.at), tabindex: "-1", onmousedown: (e) => { e.preventDefault(); this.#take(i); } },
        ...this.#told(node), html("small", {}, name));
    });
    const n = this.found.length;
    const count = html("li", { class: "count", role: "status" }, n ? `${n.toLocaleString("en")} found${n > SHOWN ? `, the first ${SHOWN}` : ""}` : "nothing found");
    this.list.replaceChildren(count, ...rows);
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.input.setAttribute("aria-activedescendant", this.at >= 0 ? `hit${this.at}` : "");
    this.list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  /** The operator; with two models, in which one, and what became of the node. */
  #told(node) {
    if (this.models.length < 2) return [html("span", {}, "·"), html("span", {}, node.op)];
    const sign = html("span", { class: node.fate, "aria-label": node.fate }, SIGNS[node.fate] || "·");
    return [sign, html("span", {}, node.op), html("em", {}, node.side ? "after" : "before")];
  }

  #key(e) {
    const count = Math.min(this.found.length, SHOWN);
    if (e.key === "Escape") this.#close();
    else if (e.key === "Enter") this.#take(Math.max(this.at, 0));
    else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      if (!count) return;
      this.at = e.key === "ArrowDown" ? (this.at + 1) % count : (this.at - 1 + count) % count;
      this.#show();
    }
  }

  #take(index) {
    const node = this.found[index];
    if (!node) return;
    this.#close();
    this.select(node);
  }

  #close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
