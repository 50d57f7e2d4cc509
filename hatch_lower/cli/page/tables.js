"use strict";
// The parts of the page that are tables: summary, errors against eager, constants, SBOM, changes.
(() => {
  const { element, find, table, sizeText } = hatch;
  const MOST = 1000; // rows of a table
  const percent = (part, all) => (all ? `${Number((100 * part / all).toPrecision(3))} %` : "");
  const sum = (numbers) => numbers.reduce((before, number) => before + number, 0);
  const short = (digest) => element("code", { title: digest }, digest.slice(0, 12));

  hatch.showSummary = (data) => {
    const parts = [element("h2", {}, "Built with"), table("tools", ["tool", "version"], Object.entries(data.tools))];
    for (const model of data.models) {
      parts.push(element("h2", {}, `Model ${model.name}`));
      parts.push(table("methods", ["method", "signature", "result"], Object.entries(model.methods).map(([name, method]) => [name, element("code", {}, method.signature), element("code", {}, method.outputs)])));
      const recipes = model.order.map((name) => [name, model.recipes[name]]);
      parts.push(table("recipes, in the order in which they are tried", ["recipe", "engines", "runs on", "size #", "requires"], recipes.map(([name, recipe]) => [
        name, [recipe.backends.join(", ") || "none", ...(recipe.precision === "float32" ? [] : [recipe.precision])].join(", "),
        recipe.target ? `${recipe.target.system} ${recipe.target.machine}, ${recipe.target.isa}` : "any machine",
        sizeText(recipe.size), recipe.requirements.join(", "),
      ])));
      const uncompared = recipes.filter(([, recipe]) => recipe.not_compared);
      if (uncompared.length) parts.push(table("recipes that the build did not compare with the eager module", ["recipe", "why"], uncompared.map(([name, recipe]) => [name, recipe.not_compared])));
      const measured = recipes.filter(([, recipe]) => recipe.metric);
      if (measured.length) parts.push(table("the project's metric, measured in the build; higher is better", ["recipe", "metric", "number #", "of eager #", "allowed drop #"], measured.map(([name, { metric }]) => [name, metric.name, String(metric.value), String(metric.eager), String(metric.max_drop)])));
      parts.push(table("how much was delegated", ["recipe", "method", "operations #", "delegated #", "share #", "partitions #"], recipes.flatMap(([name, recipe]) => Object.entries(recipe.methods).map(([method, entry]) => [
        name, method, entry.nodes, entry.delegated, percent(entry.delegated, entry.nodes), entry.partitions,
      ]))));
      const refused = recipes.flatMap(([name, recipe]) => Object.entries(recipe.methods).flatMap(([method, entry]) => refusals(data, entry.graph).map(([why, found]) => [name, method, found.count, [...found.ops].slice(0, 4).join(", ") + (found.ops.size > 4 ? ` and ${found.ops.size - 4} more` : ""), why])));
      if (refused.length) parts.push(table("operations that no engine took", ["recipe", "method", "number #", "operations", "why"], refused));
      parts.push(table("files", ["recipe", "file", "size #", "sha256"], [
        ...model.files.map((file) => ["all", file.label, sizeText(file.size), short(file.sha256)]),
        ...recipes.flatMap(([name, recipe]) => recipe.files.map((file) => [name, file.label, sizeText(file.size), short(file.sha256)])),
      ]));
      if (model.outside.length) parts.push(table("weights outside the wheel", ["file", "tensors #", "used #", "sha256"], model.outside.map((source) => [source.url, source.tensors, sizeText(source.used), short(source.sha256)])));
    }
    find("summary").append(...parts);
  };

  const refusals = (data, graph) => {
    const reasons = new Map();
    graph.why.forEach((number, at) => {
      if (!number) return;
      const why = data.strings[number];
      if (!reasons.has(why)) reasons.set(why, { count: 0, ops: new Set() });
      reasons.get(why).count += 1;
      reasons.get(why).ops.add(hatch.operator(data.strings[graph.op[at]]));
    });
    return [...reasons];
  };

  hatch.showErrors = (data) => {
    for (const model of data.models) {
      if (!model.check.length) find("errors").append(element("p", {}, `Model ${model.name} has no check data to compare with.`));
      else find("errors").append(table(`check data of ${model.name}: example inputs, and eager's outputs for these`, ["tensor", "dtype", "shape"], model.check.slice(0, MOST).map((tensor) => [
        element("code", {}, tensor.name), tensor.dtype, tensor.shape.join(" × ") || "a number",
      ])));
    }
    find("errors").append(element("p", {}, "The build compared each method with the eager module, except in the recipes that the summary names. The errors that it measured depend on the machine, so no wheel holds these: “hatch-lower explain --json” prints the errors in the project."));
    if (data.checks === null) {
      find("errors").append(element("p", {}, "The programs were not run when this page was made. With --check their outputs for the packaged inputs are compared with those of the eager module."));
      return;
    }
    const row = (check) => [
      check.model, check.recipe, check.method,
      element("span", { class: check.status === "ok" || check.status === "skipped" ? undefined : "wrong" }, check.status),
      check.largest_error === null ? "" : check.largest_error === "inf" ? "infinite" : hatch.numberText(check.largest_error),
      check.tolerance === null ? "" : `rtol ${hatch.numberText(check.tolerance.rtol)}, atol ${hatch.numberText(check.tolerance.atol)}`, check.detail,
    ];
    find("errors").append(table("packaged inputs, run where this page was made", ["model", "recipe", "method", "result", "largest difference #", "allowed", "detail"], data.checks.map(row)));
  };

  // modules in the order of their paths, each with all that is below; storages that two constants share count once
  const modulesOf = (tensors) => {
    const found = new Map();
    for (const tensor of tensors) {
      const parts = tensor.name.split(".").slice(0, -1);
      for (let depth = 0; depth < parts.length; depth += 1) {
        const key = parts.slice(0, depth + 1);
        const path = key.join(".");
        if (!found.has(path)) found.set(path, { key, name: path, depth, storages: new Map() });
        found.get(path).storages.set(tensor.storage, tensor);
      }
    }
    const byPath = new Intl.Collator("en", { numeric: true });
    const order = (one, other) => {
      for (let at = 0; at < Math.min(one.key.length, other.key.length); at += 1) {
        const sign = byPath.compare(one.key[at], other.key[at]);
        if (sign) return sign;
      }
      return one.depth - other.depth;
    };
    return [...found.values()].sort(order).map((row) => {
      const held = [...row.storages.values()];
      return { ...row, values: sum(held.map((tensor) => tensor.values)), size: sum(held.map((tensor) => tensor.size)) };
    });
  };

  hatch.showConstants = (data) => {
    for (const model of data.models) {
      const seen = new Set(model.tensors.map((tensor) => tensor.storage));
      const sizes = new Map(model.tensors.map((tensor) => [tensor.storage, tensor.size]));
      const total = sum([...sizes.values()]);
      const values = sum([...new Map(model.tensors.map((tensor) => [tensor.storage, tensor.values])).values()]);
      const modules = modulesOf(model.tensors);
      const cut = modules.length > MOST ? `; the first ${MOST} are listed` : "";
      const more = model.tensors.length > MOST ? `; the ${MOST} largest are listed` : "";
      find("constants").append(
        element("h2", {}, `Model ${model.name}`),
        element("p", {}, `${hatch.count(values, "number")} in parameters and buffers: ${hatch.count(model.tensors.length, "constant")} in ${hatch.count(seen.size, "storage")}, ${sizeText(total)}${more}.`),
        table(`by module, with the modules below${cut}`, ["module", "numbers #", "size #", "share #"], modules.slice(0, MOST).map((row) => [
          element("code", {}, `${"\u2003".repeat(row.depth)}${row.name}`), row.values.toLocaleString("en"), sizeText(row.size), percent(row.size, total),
        ])),
        table("constants, the largest first", ["name", "dtype", "shape", "size #", "share #", "recipes", "changed by the model"], model.tensors.slice(0, MOST).map((tensor) => [
          element("code", {}, tensor.name), tensor.dtype, tensor.shape.join(" × ") || "a number", sizeText(tensor.size), percent(tensor.size, total),
          tensor.recipes.length === model.order.length ? "all" : tensor.recipes.join(", "), tensor.mutable ? "yes" : "",
        ])),
      );
    }
  };

  hatch.showSbom = (data) => {
    const place = find("sbom");
    if (data.sbom === null) {
      place.append(element("p", {}, "No SBOM: folders and editable installs have no SBOM."));
      return;
    }
    if (data.sbom.fault) place.append(element("p", { class: "wrong" }, `The SBOM cannot be read: ${data.sbom.fault}`));
    place.append(table("components of the SBOM", ["type", "name", "version", "licences", "sha256", "properties"], data.sbom.rows.slice(0, MOST).map((row) => [
      row.type, `${"\u2003".repeat(row.depth)}${row.name}`, row.version, row.licences, row.digest ? short(row.digest) : "",
      Object.entries(row.facts).map(([name, value]) => `${name.replace("hatch-lower:", "")}: ${value}`).join("; "),
    ])));
  };

  hatch.showChanges = (data) => {
    const place = find("changes");
    if (data.changes === null) {
      place.append(element("p", {}, "The page is about a single distribution. With --against it shows the changes since another distribution."));
      return;
    }
    place.append(element("p", {}, `From ${data.changes.first} to ${data.changes.second}.`));
    if (!data.changes.rows.length) place.append(element("p", {}, "The lowered models are equal."));
    else place.append(table("changes", ["of", "change", "more"], data.changes.rows.slice(0, MOST).map((row) => [row.place.join(", "), row.text, element("div", {}, ...row.lines.map((line) => element("div", { class: "code" }, line)))])));
  };
})();
