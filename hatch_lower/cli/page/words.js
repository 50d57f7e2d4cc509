"use strict";
// Helpers for all parts of the page. Every text becomes a text node; no function reads HTML.
const hatch = {};
(() => {
  hatch.element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
    return made;
  };

  hatch.find = (id) => document.getElementById(id);

  hatch.options = (select, names, chosen) => {
    select.replaceChildren(...names.map((name) => hatch.element("option", { value: name, selected: name === chosen }, name)));
  };

  hatch.sizeText = (bytes) => {
    let value = bytes;
    let unit = "B";
    for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
      if (value < 1000) break;
      value /= 1024;
      unit = larger;
    }
    return unit === "B" ? `${bytes} B` : `${Number(value.toPrecision(3))} ${unit}`;
  };

  hatch.timeText = (seconds) => {
    if (seconds >= 1) return `${Number(seconds.toPrecision(3))} s`;
    return seconds >= 1e-3 ? `${Number((seconds * 1e3).toPrecision(3))} ms` : `${Number((seconds * 1e6).toPrecision(3))} µs`;
  };

  hatch.numberText = (value) => (value && Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(3))));

  hatch.shortened = (text, most = 40) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  hatch.count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

  hatch.operator = (name) => name.replace(/^aten\./, "").replace(/\.default$/, "");

  // the colours of the style sheet, as the drawing needs them
  hatch.colour = (name) => {
    const probe = hatch.find("title");
    const before = probe.style.color;
    probe.style.color = `var(${name})`;
    const found = getComputedStyle(probe).color;
    probe.style.color = before;
    return found;
  };

  // engines of hatch-lower have the same colour on every page; other engines share the last two colours
  const ENGINES = ["aoti", "executorch", "onnxruntime", "openvino"];
  hatch.engineColour = (engine) => {
    if (!engine) return "--plain";
    const place = ENGINES.indexOf(engine);
    return `--engine-${place >= 0 ? place : ENGINES.length + (hatch.otherEngines.indexOf(engine) % 2)}`;
  };

  hatch.noteEngines = (engines) => {
    hatch.otherEngines = [...new Set(engines)].filter((engine) => engine && !ENGINES.includes(engine)).sort();
  };

  hatch.engineName = (engine) => engine || "the plan itself";

  hatch.table = (caption, heads, rows) => {
    const cell = (tag, value, number) => hatch.element(tag, { class: number ? "number" : undefined, scope: tag === "th" ? "col" : undefined }, value);
    const numbers = heads.map((head) => head.endsWith("#"));
    const line = (tag, values) => hatch.element("tr", {}, ...values.map((value, at) => cell(tag, value, numbers[at])));
    return hatch.element(
      "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      hatch.element(
        "table", {},
        hatch.element("caption", {}, caption),
        hatch.element("thead", {}, line("th", heads.map((head) => head.replace(/ ?#$/, "")))),
        hatch.element("tbody", {}, ...rows.map((row) => line("td", row))),
      ),
    );
  };
})();
