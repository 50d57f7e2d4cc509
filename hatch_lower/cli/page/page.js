"use strict";
// Starts the page: reads the data, fills the parts, and switches between them.
(() => {
  const { element, find } = hatch;
  const data = JSON.parse(find("data").textContent);
  const enginesOf = (recipe) => Object.values(recipe.methods).flatMap((method) => method.graph.calls.map((call) => call[1]));
  hatch.noteEngines(data.models.flatMap((model) => Object.values(model.recipes).flatMap(enginesOf)));

  find("title").textContent = `${data.distribution} ${data.version}`;
  find("subtitle").textContent = `${data.place}, ${hatch.count(data.models.length, "lowered model")}`;

  const sections = [...document.querySelectorAll("main > section")];
  let graphView = null;
  let sourceView = null;

  hatch.openTab = (name) => {
    for (const section of sections) {
      const open = section.id === name;
      section.hidden = !open;
      const tab = find(`tab-${section.id}`);
      tab.setAttribute("aria-selected", open ? "true" : "false");
      tab.tabIndex = open ? 0 : -1;
    }
    if (name === "graph" && !graphView) graphView = new hatch.GraphView(data);
    if (name === "source") {
      if (!graphView) graphView = new hatch.GraphView(data);
      if (!sourceView) sourceView = new hatch.SourceView(data, graphView);
    }
  };

  hatch.showLine = (view, source) => {
    hatch.openTab("source");
    sourceView.reveal(source);
  };

  for (const section of sections) {
    section.setAttribute("role", "tabpanel");
    section.setAttribute("aria-labelledby", `tab-${section.id}`);
    find("tabs").append(element("button", { role: "tab", type: "button", id: `tab-${section.id}`, "aria-controls": section.id, onclick: () => hatch.openTab(section.id) }, section.dataset.title));
  }
  find("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = sections.findIndex((section) => !section.hidden);
    const next = sections[(at + step + sections.length) % sections.length];
    hatch.openTab(next.id);
    find(`tab-${next.id}`).focus();
  });

  find("theme").addEventListener("change", () => {
    if (find("theme").value) document.documentElement.dataset.theme = find("theme").value;
    else delete document.documentElement.dataset.theme;
    if (graphView) graphView.recolour();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => graphView && graphView.recolour());

  hatch.showSummary(data);
  hatch.showErrors(data);
  hatch.showTimes(data);
  hatch.showConstants(data);
  hatch.showSbom(data);
  hatch.showChanges(data);
  hatch.openTab("summary");
  hatch.graphView = () => graphView;
})();
