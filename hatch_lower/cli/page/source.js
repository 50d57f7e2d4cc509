"use strict";
// The source: which operations come from a line, who computes them, how long they take, and why no engine took them.
(() => {
  const { element, find } = hatch;
  const LONG = 200; // lines; of a longer file only lines around operations are shown first
  const AROUND = 3;
  const STATES = {
    same: "as it was when the model was lowered",
    changed: "changed since the model was lowered: lines may belong to other operations",
    unknown: "the wheel does not say whether this is the text that was lowered",
    missing: "not on this machine when the page was made: lines are without their text",
  };

  hatch.SourceView = class {
    constructor(data, graphView) {
      this.data = data;
      this.graphView = graphView;
      hatch.options(find("file"), this.filesOf(data));
      for (const id of ["source-recipe", "source-method", "near"]) find(id).addEventListener("change", () => this.show());
      find("file").addEventListener("change", () => this.chooseFile());
      this.chooseModel();
    }

    // files with the most operations come first
    filesOf(data) {
      const counts = new Map(Object.keys(data.sources).map((path) => [path, 0]));
      const { graph } = this.graphView.recipe.methods[find("method").value];
      for (const number of graph.source) {
        const path = data.strings[number].replace(/:\d+$/, "");
        if (counts.has(path)) counts.set(path, counts.get(path) + 1);
      }
      return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
    }

    chooseFile() {
      const text = this.data.sources[find("file").value];
      find("near").checked = Boolean(text) && text.parts.reduce((sum, part) => sum + part[1].split("\n").length, 0) > LONG;
      this.show();
    }

    // the model is that of the graph
    chooseModel() {
      const { model } = this.graphView;
      hatch.options(find("source-recipe"), model.order, find("recipe").value);
      hatch.options(find("source-method"), Object.keys(model.methods), find("method").value);
      this.chooseFile();
    }

    linesOf(path, recipe, method) {
      const { graph } = this.graphView.model.recipes[recipe].methods[method];
      const call = hatch.profileOf(this.data, this.graphView.model.name, method, recipe);
      const lines = new Map();
      const lineOf = (source) => {
        const colon = source.lastIndexOf(":");
        if (source.slice(0, colon) !== path) return null;
        const line = Number(source.slice(colon + 1));
        if (!lines.has(line)) lines.set(line, { operations: [], engines: new Map(), reasons: new Map(), seconds: 0 });
        return lines.get(line);
      };
      graph.source.forEach((number, at) => {
        const found = lineOf(this.data.strings[number]);
        if (!found) return;
        const engine = graph.calls[graph.call[at]][1];
        found.operations.push(at);
        found.engines.set(engine, (found.engines.get(engine) || 0) + 1);
        const why = this.data.strings[graph.why[at]];
        if (why) found.reasons.set(why, (found.reasons.get(why) || 0) + 1);
      });
      for (const row of call ? call.rows : []) {
        const found = lineOf(row.source);
        if (found) found.seconds += row.seconds;
      }
      return { lines, call };
    }

    show() {
      const path = find("file").value;
      const text = this.data.sources[path];
      if (!text) {
        find("source-note").textContent = "No operation says which line it comes from.";
        return;
      }
      const [recipe, method] = [find("source-recipe").value, find("source-method").value];
      const { lines, call } = this.linesOf(path, recipe, method);
      find("source-note").textContent = `${path}: ${STATES[text.state]}${text.place ? ` (from ${text.place})` : ""}.`;
      find("source-note").className = text.state === "changed" || text.state === "missing" ? "wrong" : "";
      const most = Math.max(0, ...[...lines.values()].map((line) => line.seconds));
      if (call) {
        const attributed = call.rows.reduce((sum, row) => sum + (row.source ? row.seconds : 0), 0);
        find("source-note").append(` A call takes ${hatch.timeText(call.seconds)}; ${hatch.timeText(attributed)} of it are attributed to lines.`);
      }
      const named = [...lines.keys()].sort((a, b) => a - b);
      const contents = new Map(named.map((line) => [line, ""]));
      for (const [first, part] of text.parts) part.split("\n").forEach((content, at) => contents.set(first + at, content));
      const near = new Set(named.flatMap((line) => Array.from({ length: 2 * AROUND + 1 }, (_, at) => line - AROUND + at)));
      const shown = [...contents.keys()].sort((a, b) => a - b).filter((line) => !find("near").checked || near.has(line));
      const rows = [];
      shown.forEach((line, at) => {
        if (line !== (at ? shown[at - 1] + 1 : 1)) rows.push(element("tr", { class: "gap" }, element("td", { colspan: 5 }, "⋯")));
        rows.push(...this.lineRows(line, contents.get(line), lines.get(line), most));
      });
      const heads = ["line", "operations", "computed by", call ? "time of a call" : "", "text"].map((head) => (head ? element("th", { scope: "col" }, head) : element("td")));
      find("lines").replaceChildren(element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows))));
    }

    lineRows(number, content, found, most) {
      const engines = found ? [...found.engines].map(([engine, times]) => `${hatch.engineName(engine)}${found.engines.size > 1 ? ` ${times}` : ""}`).join(", ") : "";
      const time = element("td", { class: "number" });
      if (found && found.seconds) {
        const share = found.seconds / most;
        time.append(element("meter", { min: 0, max: 1, value: share.toFixed(4), "aria-label": `${Math.round(100 * share)} percent of the slowest line` }), ` ${hatch.timeText(found.seconds)}`);
      }
      const button = found ? element("button", { type: "button", "aria-label": `line ${number}: show its ${hatch.count(found.operations.length, "operation")} in the graph`, onclick: () => this.toGraph(number) }, found.operations.length) : null;
      const refused = found && found.reasons.size > 0;
      const row = element("tr", { id: `line-${number}`, class: refused ? "refused" : found ? "named" : undefined }, element("td", { class: "number" }, number), element("td", { class: "number" }, button), element("td", {}, engines), time, element("td", {}, content));
      if (found && found.seconds) row.lastChild.style.background = `color-mix(in srgb, var(--heat) ${Math.round(50 * found.seconds / most)}%, transparent)`;
      const reasons = refused ? [...found.reasons].map(([why, times]) => element("tr", { class: "refused" }, element("td", { colspan: 5, class: "why" }, `${hatch.count(times, "operation")} not delegated: ${why}`))) : [];
      return [row, ...reasons];
    }

    toGraph(line) {
      for (const [from, to] of [["source-recipe", "recipe"], ["source-method", "method"]]) find(to).value = find(from).value;
      this.graphView.build();
      hatch.openTab("graph");
      find("search").value = `${find("file").value}:${line}`;
      this.graphView.search();
      const first = find("results").querySelector("button");
      if (first) first.click();
    }

    reveal(source) {
      const colon = source.lastIndexOf(":");
      find("file").value = source.slice(0, colon);
      this.chooseModel();
      const row = find(`line-${source.slice(colon + 1)}`);
      if (!row) return;
      row.classList.add("chosen");
      row.scrollIntoView({ block: "center" });
    }
  };
})();
