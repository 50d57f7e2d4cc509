"use strict";
// The graph of a method: the tree of its operations, the drawing, search, and details of the selection.
(() => {
  const MOST_FOUND = 60;
  const SLICE = 30; // milliseconds of work without a pause
  const { element, find } = hatch;

  hatch.GraphView = class {
    constructor(data) {
      this.data = data;
      this.drawing = new hatch.Drawing(find("drawing"), find("canvas"), {
        select: (item) => this.select(item),
        toggle: (item) => this.toggle(item),
        fill: (item) => this.fill(item),
      });
      this.rows = new Map(); // item to its list item in the tree
      this.made = 0; // list items so far, for their ids
      for (const id of ["model", "recipe", "method", "grouping"]) find(id).addEventListener("change", () => this.choose(id));
      find("colouring").addEventListener("change", () => this.recolour());
      find("choice").addEventListener("submit", (event) => event.preventDefault());
      find("fit").addEventListener("click", () => this.drawing.fit());
      find("expand").addEventListener("click", () => this.openAll(true));
      find("collapse").addEventListener("click", () => this.openAll(false));
      find("search").addEventListener("input", () => this.search());
      find("search").addEventListener("keydown", (event) => {
        const first = find("results").querySelector("button");
        if (event.key === "Enter" && first) first.click();
      });
      find("tree").addEventListener("keydown", (event) => this.key(event));
      hatch.options(find("model"), data.models.map((model) => model.name));
      this.choose("model");
    }

    get model() { return this.data.models[find("model").selectedIndex]; }
    get recipe() { return this.model.recipes[find("recipe").value]; }

    choose(changed) {
      if (changed === "model") hatch.options(find("recipe"), this.model.order);
      if (changed === "model" || changed === "recipe") {
        const before = find("method").value;
        hatch.options(find("method"), Object.keys(this.recipe.methods), before);
      }
      this.build();
    }

    build() {
      const { graph } = this.recipe.methods[find("method").value];
      const times = hatch.timesOf(this.data, this.model.name, find("method").value, find("recipe").value, graph);
      const colourings = times ? ["engine", "time"] : ["engine"];
      hatch.options(find("colouring"), colourings, find("colouring").value);
      this.tree = hatch.buildTree(graph, this.data.strings, find("grouping").value === "partition", (at) => (times ? times[at] : 0));
      this.slowest = Math.max(0, ...this.tree.operations.map((item) => item.seconds));
      this.graph = graph;
      this.readers = null;
      this.chosen = null;
      find("details").replaceChildren(element("p", { class: "faint" }, "Select an operation in the tree, the drawing or the search results."));
      const isKnown = graph.flows || !graph.calls.some(([, engine]) => engine);
      find("note").textContent = isKnown ? "" : "The wheel does not say how operations inside delegates are connected: it was built by an older hatch-lower.";
      find("canvas").setAttribute("aria-label", `Graph of ${this.model.name}.${find("method").value}, recipe ${find("recipe").value}: ${hatch.count(this.tree.root.count, "operation")}`);
      this.drawing.chosen = null;
      this.showTree();
      this.showLegend();
      this.refresh();
      this.drawing.start();
      if (find("search").value) this.search();
    }

    refresh() {
      this.drawing.show(hatch.layOut(this.tree.root));
    }

    recolour() {
      this.showLegend();
      this.drawing.recolour();
    }

    fill(item) {
      if (find("colouring").value === "time") {
        if (item.open) return "--group";
        const most = item.children ? this.tree.root.seconds : this.slowest;
        const share = most ? Math.min(1, item.seconds / most) : 0;
        return share ? this.heat(Math.ceil(share * 10)) : "--plain";
      }
      if (item.kind === "input" || item.engine === null) return "--group";
      return hatch.engineColour(item.engine);
    }

    heat(step) {
      const colour = hatch.colour("--heat");
      return colour.replace(/^rgba?\(([^,]+,[^,]+,[^,)]+).*$/, `rgba($1, ${0.1 + 0.09 * step})`);
    }

    showLegend() {
      const swatch = (name, text, dashed) => {
        const box = element("span", { class: dashed ? "swatch dashed" : "swatch" });
        if (name) box.style.background = name.startsWith("--") ? `var(${name})` : name;
        return element("li", {}, box, text);
      };
      const rows = find("colouring").value === "time"
        ? [swatch(this.heat(10), `slowest operation: ${hatch.timeText(this.slowest)}`), swatch("--plain", "no time measured")]
        : [...this.tree.root.engines].sort().map((engine) => swatch(hatch.engineColour(engine), hatch.engineName(engine)));
      if (this.tree.operations.some((item) => item.why)) rows.push(swatch("", "no engine took it", true));
      find("legend").replaceChildren(...rows);
    }

    // the tree: items are made when their group is opened

    showTree() {
      this.rows.clear();
      find("tree").replaceChildren(...this.tree.root.children.map((item) => this.treeItem(item, 1)));
      const first = find("tree").firstElementChild;
      if (first) first.tabIndex = 0;
    }

    treeItem(item, level) {
      const engine = item.kind === "input" ? "input" : item.engine === null ? "several engines" : hatch.engineName(item.engine);
      const told = item.children ? `${hatch.count(item.count, "operation")}, ${engine}` : item.why ? "not delegated" : engine;
      const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = `var(${item.kind === "input" || item.engine === null ? "--group" : hatch.engineColour(item.engine)})`;
      const id = `row-${(this.made += 1)}`;
      const row = element("div", { class: "row", id }, element("span", { class: "twist", "aria-hidden": "true" }, item.children ? "▸" : ""), swatch, item.label, element("span", { class: "faint" }, told));
      const made = element("li", { role: "treeitem", tabindex: "-1", "aria-level": level, "aria-selected": "false", "aria-labelledby": id }, row);
      if (item.children) made.setAttribute("aria-expanded", "false");
      this.rows.set(item, made);
      made.hatchItem = item;
      row.addEventListener("click", () => {
        if (item.children) this.toggle(item);
        this.select(item);
      });
      if (item.children && item.open) this.showChildren(item);
      return made;
    }

    showChildren(item) {
      const row = this.rows.get(item);
      if (!row) return;
      row.setAttribute("aria-expanded", item.open ? "true" : "false");
      row.querySelector(".twist").textContent = item.open ? "▾" : "▸";
      const inner = row.querySelector(":scope > ul");
      if (inner) inner.remove();
      if (item.open) {
        const level = Number(row.getAttribute("aria-level")) + 1;
        row.append(element("ul", { role: "group" }, ...item.children.map((child) => this.treeItem(child, level))));
      }
    }

    key(event) {
      const row = event.target.closest('[role="treeitem"]');
      if (!row) return;
      const item = row.hatchItem;
      const all = [...find("tree").querySelectorAll('[role="treeitem"]')];
      const at = all.indexOf(row);
      let next = null;
      if (event.key === "ArrowDown") next = all[at + 1];
      else if (event.key === "ArrowUp") next = all[at - 1];
      else if (event.key === "Home") next = all[0];
      else if (event.key === "End") next = all[all.length - 1];
      else if (event.key === "ArrowRight" && item.children && !item.open) this.toggle(item);
      else if (event.key === "ArrowRight" && item.children) next = all[at + 1];
      else if (event.key === "ArrowLeft" && item.children && item.open) this.toggle(item);
      else if (event.key === "ArrowLeft") next = row.parentElement.closest('[role="treeitem"]');
      else if (event.key === "Enter" || event.key === " ") this.select(item);
      else return;
      event.preventDefault();
      if (next) this.focus(next);
    }

    focus(row) {
      for (const other of find("tree").querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
      row.tabIndex = 0;
      row.focus();
    }

    toggle(item) {
      item.open = !item.open;
      this.showChildren(item);
      this.refresh();
    }

    async openAll(open) {
      for (const item of hatch.walk(this.tree.root)) if (item.children && item !== this.tree.root) item.open = open;
      // thousands of list items are not made at once: the tree shows the first two levels
      const { root } = this.tree;
      const hidden = open && root.count > 500 ? [...hatch.walk(root)].filter((item) => item.open && item !== root && item.parent !== root) : [];
      for (const item of hidden) item.open = false;
      this.showTree();
      for (const item of hidden) item.open = true;
      if (!(await this.layOutSlowly())) return;
      this.refresh();
      this.drawing.fit();
    }

    // lets the browser respond; returns whether no other layout began meanwhile
    async layOutSlowly() {
      const { tree } = this;
      const before = find("note").textContent;
      let slice = performance.now() + SLICE;
      for (const count of hatch.measure(tree.root)) {
        if (performance.now() < slice) continue;
        find("note").textContent = `Laid out ${hatch.count(count, "operation")} of ${tree.root.count.toLocaleString("en")}.`;
        await new Promise((done) => setTimeout(done));
        if (this.tree !== tree) return false;
        slice = performance.now() + SLICE;
      }
      find("note").textContent = before;
      return true;
    }

    select(item) {
      for (let above = item.parent; above && above.parent; above = above.parent) above.open = true;
      const way = [];
      for (let above = item.parent; above && above.parent; above = above.parent) way.unshift(above);
      for (const above of way) {
        const row = this.rows.get(above);
        if (row && !row.querySelector(":scope > ul")) this.showChildren(above);
      }
      if (this.chosen && this.rows.get(this.chosen)) this.rows.get(this.chosen).setAttribute("aria-selected", "false");
      this.chosen = item;
      const row = this.rows.get(item);
      if (row) {
        row.setAttribute("aria-selected", "true");
        for (const other of find("tree").querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
        row.tabIndex = 0;
        row.scrollIntoView({ block: "nearest" });
      }
      this.drawing.chosen = item;
      this.refresh();
      this.showDetails(item);
    }

    // selects and brings into view
    reveal(item) {
      this.select(item);
      this.drawing.centre(item);
    }

    showDetails(item) {
      const rows = [];
      const add = (name, ...values) => rows.push(element("dt", {}, name), ...values.map((value) => element("dd", {}, value)));
      const link = (other) => element("button", { class: "link", type: "button", onclick: () => this.reveal(other) }, [other.source ? `${other.label} (${other.source})` : other.label, other.result].filter(Boolean).join(": "));
      if (item.kind === "operation") {
        add("operation", element("code", {}, item.op));
        add("module", item.module || "the model itself");
        add("source", item.source ? element("button", { class: "link", type: "button", onclick: () => hatch.showLine(this, item.source) }, item.source) : "not known");
        add("computed by", item.engine ? `${item.engine}, partition ${item.call}` : `the plan itself, instruction ${item.call}`);
        if (item.result) add("result", element("code", {}, item.result));
        if (item.arguments.length) add("arguments", ...item.arguments.map((text) => element("code", {}, text)));
        if (item.why) add("not delegated because", element("span", { class: "wrong" }, item.why));
        if (item.seconds) add("time of a call", hatch.timeText(item.seconds));
        const before = this.graph.reads[item.at].map((at) => (at < 0 ? this.tree.inputs[-1 - at] : this.tree.operations[at]));
        if (before.length) add("reads", ...before.map(link));
        const after = this.readersOf(item.at);
        if (after.length) add("read by", ...after.map(link));
      } else if (item.kind === "input") {
        add("input", item.text);
      } else {
        add(item.kind, item.label);
        add("operations", item.count.toLocaleString("en"));
        add("computed by", [...item.engines].map(hatch.engineName).join(", "));
        if (item.seconds) add("time of a call", hatch.timeText(item.seconds));
        rows.push(element("dd", {}, element("button", { type: "button", onclick: () => this.toggle(item) }, item.open ? "collapse" : "expand")));
      }
      find("details").replaceChildren(element("h2", {}, item.label), element("dl", {}, ...rows));
    }

    readersOf(at) {
      if (!this.readers) {
        this.readers = new Map();
        this.graph.reads.forEach((read, reader) => read.forEach((number) => {
          if (!this.readers.has(number)) this.readers.set(number, []);
          this.readers.get(number).push(this.tree.operations[reader]);
        }));
      }
      return this.readers.get(at) || [];
    }

    search() {
      const wanted = find("search").value.trim().toLowerCase();
      const matches = wanted ? this.tree.operations.filter((item) => `${item.op} ${item.module} ${item.source} ${item.engine} ${item.why} ${item.result} ${item.arguments.join(" ")}`.toLowerCase().includes(wanted)) : [];
      const more = matches.length > MOST_FOUND ? `, the first ${MOST_FOUND} are listed` : "";
      find("found").textContent = wanted ? `${hatch.count(matches.length, "operation")} found${more}` : "";
      find("results").replaceChildren(...matches.slice(0, MOST_FOUND).map((item) => element("li", {}, element(
        "button", { type: "button", onclick: () => this.reveal(item) },
        item.label, " ", element("span", { class: "faint" }, [item.module, item.source].filter(Boolean).join(", ")),
      ))));
    }
  };

  hatch.profileOf = (data, model, method, recipe) => {
    const found = data.profiles.find((profile) => profile.model === model && profile.method === method && Object.hasOwn(profile.recipes, recipe));
    return found ? found.recipes[recipe] : null;
  };

  // seconds of each operation, from the rows of a profile; operations of a row share its time
  hatch.timesOf = (data, model, method, recipe, graph) => {
    const found = hatch.profileOf(data, model, method, recipe);
    if (!found) return null;
    const name = (row) => JSON.stringify([row.source, row.module, row.op]);
    const alike = new Map();
    graph.op.forEach((op, at) => {
      const key = name({ source: data.strings[graph.source[at]], module: data.strings[graph.module[at]], op: data.strings[op] });
      if (!alike.has(key)) alike.set(key, []);
      alike.get(key).push(at);
    });
    const times = new Array(graph.op.length).fill(0);
    for (const row of found.rows) {
      const places = alike.get(name(row)) || [];
      for (const at of places) times[at] += row.seconds / places.length;
    }
    return times;
  };
})();
