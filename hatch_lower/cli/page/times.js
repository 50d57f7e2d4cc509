"use strict";
// Measured times of recipes: pictures of time against size and accuracy, and a table. Every text is a text node.
(() => {
  const { element, find, table, sizeText, timeText, numberText } = hatch;
  const SPACE = "http://www.w3.org/2000/svg";
  const WIDTH = 640;
  const HEIGHT = 340;
  const LEFT = 90;
  const BOTTOM = 44;
  const MARGIN = 34;

  const shape = (tag, attributes, text = "") => {
    const made = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
    if (text) made.append(text);
    return made;
  };

  // a logarithmic scale from numbers to places; a number of 0 has the place of the smallest other number's tenth
  const scaleOf = (numbers, first, last) => {
    const positive = numbers.filter((number) => number > 0);
    const least = positive.length ? Math.min(...positive) : 1;
    const shown = numbers.map((number) => (number > 0 ? number : least / 10));
    const low = Math.log(Math.min(...shown)) - 0.1;
    const high = Math.log(Math.max(...shown)) + 0.1;
    return (number) => first + (last - first) * ((Math.log(number > 0 ? number : least / 10) - low) / (high - low));
  };

  const picture = (group, title, numberOf, textOf, endText, front) => {
    const rows = group.rows.filter((row) => numberOf(row) !== null);
    const across = scaleOf(rows.map((row) => row.call), LEFT, WIDTH - MARGIN - 110);
    const up = scaleOf(rows.map(numberOf), HEIGHT - BOTTOM - 26, MARGIN);
    const drawing = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${rows.map((row) => `${row.recipe} ${timeText(row.call)}, ${textOf(row)}`).join("; ")}`, class: "front" });
    drawing.append(
      shape("line", { x1: LEFT, y1: HEIGHT - BOTTOM, x2: WIDTH - MARGIN, y2: HEIGHT - BOTTOM }),
      shape("line", { x1: LEFT, y1: MARGIN, x2: LEFT, y2: HEIGHT - BOTTOM }),
      shape("text", { x: WIDTH - MARGIN, y: HEIGHT - 8, "text-anchor": "end" }, "time of a call"),
      shape("text", { x: 4, y: 14 }, title),
    );
    const best = rows.filter((row) => front.includes(row.recipe)).sort((one, other) => one.call - other.call);
    drawing.append(shape("polyline", { points: best.map((row) => `${across(row.call)},${up(numberOf(row))}`).join(" ") }));
    const ends = (numbers) => [...new Set([Math.min(...numbers), Math.max(...numbers)])];
    for (const number of ends(rows.map((row) => row.call))) drawing.append(shape("text", { x: across(number), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, timeText(number)));
    for (const number of ends(rows.map(numberOf))) drawing.append(shape("text", { x: LEFT - 8, y: up(number) + 4, "text-anchor": "end" }, endText(number)));
    rows.forEach((row, at) => {
      const [x, y] = [across(row.call), up(numberOf(row))];
      const kinds = [front.includes(row.recipe) ? "best" : "", row.recipe === group.chosen ? "chosen" : ""];
      const dot = shape("circle", { cx: x, cy: y, r: row.recipe === group.chosen ? 7 : 5, class: kinds.join(" ").trim() });
      dot.style.fill = `var(${hatch.engineColour(row.engines[0] || "")})`; // the policy forbids an attribute 'style'
      dot.append(shape("title", {}, `${row.recipe}: ${timeText(row.call)}, ${textOf(row)}`));
      drawing.append(dot, shape("text", { x: x + 6, y: at % 2 ? y + 18 : y - 9 }, hatch.shortened(row.recipe, 24))); // neighbours overlap less
    });
    return element("figure", {}, drawing);
  };

  const lossText = (row) => (row.accuracy.kind === "error" ? `largest error ${numberText(row.loss)}` : `drop of the metric ${numberText(row.loss)}`);

  const accuracyText = (row) => {
    if (row.accuracy === null) return "";
    const { kind, value, eager } = row.accuracy;
    if (kind === "error") return `error ${numberText(value)}`;
    const short = (number) => String(Number(number.toPrecision(6)));
    if (eager === null) return `metric ${short(value)}`;
    const textOf = value !== eager && short(value) === short(eager) ? String : short; // no rounding hides a drop
    return `metric ${textOf(value)}, eager ${textOf(eager)}`;
  };

  hatch.showTimes = (data) => {
    const place = find("times");
    if (data.times === null) {
      place.append(element("p", {}, "No measured times. With --times FILE the page shows the file that “hatch-lower tune --write” wrote."));
      return;
    }
    for (const group of data.times) {
      const threads = hatch.count(group.threads, "thread");
      place.append(
        element("h2", {}, `Model ${group.model}, machines of ${group.level}, ${threads}`),
        element("p", {}, group.chosen ? `Chosen for ${group.aim}: ${group.chosen}. The line joins the recipes that no other recipe betters.` : "No recipe was chosen. The line joins the recipes that no other recipe betters."),
        picture(group, "installed size", (row) => row.installed, (row) => sizeText(row.installed), sizeText, group.fronts.size),
      );
      if (group.rows.some((row) => row.loss !== null)) place.append(picture(group, "distance from eager", (row) => row.loss, lossText, numberText, group.fronts.accuracy));
      place.append(
        table("measured recipes, the fastest first", ["recipe", "engines", "precision", "call #", "of eager's time #", "load #", "memory #", "wheel #", "installed #", "accuracy"], group.rows.map((row) => [
          row.recipe === group.chosen ? element("strong", {}, row.recipe) : row.recipe, row.engines.join(", ") || "none", row.precision,
          timeText(row.call), row.eager === null ? "" : numberText(row.eager), timeText(row.load), sizeText(row.memory), sizeText(row.wheel), sizeText(row.installed), accuracyText(row),
        ])),
        table("calls", ["recipe", "method", "sizes", "median #", "from #", "to #", "eager #"], group.rows.flatMap((row) => row.calls.map((call) => [
          row.recipe, element("code", {}, call.method), call.sizes || "example inputs", timeText(call.median), timeText(call.low), timeText(call.high), call.eager === null ? "" : timeText(call.eager),
        ]))),
      );
    }
  };
})();
