"use strict";
// A method's operations as a tree of groups: partitions, modules, and pieces of groups that are too wide to draw.
(() => {
  const MOST = 48; // children of a group; further children go into pieces, in the order of computation
  const FEW = 30;

  const makeGroup = (label, parent, kind) => ({ kind, label, parent, children: [], open: false, engine: null, engines: new Set(), count: 0, first: 0, seconds: 0, refused: 0, edges: [] });

  hatch.buildTree = (graph, strings, byPartition, timeOf) => {
    const root = makeGroup("all", null, "group");
    root.open = true;
    const groups = new Map();
    const groupOf = (parent, key, label, kind) => {
      let inner = groups.get(parent);
      if (!inner) groups.set(parent, (inner = new Map()));
      let found = inner.get(key);
      if (!found) {
        inner.set(key, (found = makeGroup(label, parent, kind)));
        parent.children.push(found);
      }
      return found;
    };
    const inputs = graph.inputs.map((text) => {
      const item = { kind: "input", label: text.split(":")[0], text, result: text.slice(text.indexOf(":") + 2), parent: root, engine: "", count: 0, first: -1, seconds: 0, refused: 0 };
      root.children.push(item);
      return item;
    });
    const operations = graph.op.map((op, at) => {
      const [path, engine] = graph.calls[graph.call[at]];
      let parent = root;
      if (byPartition && engine) parent = groupOf(parent, `call ${path}`, `partition ${path}: ${engine}`, "partition");
      const module = strings[graph.module[at]];
      for (const part of module ? module.split(".") : []) parent = groupOf(parent, part, part, "module");
      const item = {
        kind: "operation", at, label: hatch.operator(strings[op]), op: strings[op], module, source: strings[graph.source[at]],
        why: strings[graph.why[at]], result: strings[graph.result[at]], arguments: graph.arguments[at].map((number) => strings[number]), call: path, engine, parent, count: 1, first: at, seconds: timeOf(at), refused: engine ? 0 : 1,
      };
      parent.children.push(item);
      return item;
    });
    joinChains(root);
    splitWide(root);
    total(root);
    link(root, graph, operations, inputs);
    openFirst(root);
    return { root, operations, inputs };
  };

  // a module with a module as its only child is shown with the child: `bert.encoder`
  const joinChains = (group) => {
    group.children = group.children.map((child) => {
      let kept = child;
      while (kept.kind === "module" && kept.children.length === 1 && kept.children[0].kind === "module") {
        const inner = kept.children[0];
        inner.label = `${kept.label}.${inner.label}`;
        inner.parent = kept.parent;
        kept = inner;
      }
      if (kept.children) joinChains(kept);
      // a module of a single operation is shown as the operation: `conv1: conv2d`
      if (kept.kind === "module" && kept.children.length === 1 && kept.children[0].kind === "operation") {
        const inner = kept.children[0];
        inner.label = `${kept.label}: ${inner.label}`;
        inner.parent = kept.parent;
        kept = inner;
      }
      return kept;
    });
  };

  const splitWide = (group) => {
    for (const child of group.children) if (child.children) splitWide(child);
    while (group.children.length > MOST) {
      const pieces = [];
      for (let begin = 0; begin < group.children.length; begin += MOST) {
        const part = group.children.slice(begin, begin + MOST);
        const piece = makeGroup("", group, "piece");
        piece.children = part;
        for (const child of part) child.parent = piece;
        pieces.push(piece);
      }
      group.children = pieces;
    }
  };

  const total = (group) => {
    group.first = Infinity;
    for (const child of group.children) {
      if (child.children) total(child);
      group.count += child.count;
      group.seconds += child.seconds;
      group.refused += child.refused;
      if (child.count) {
        group.first = Math.min(group.first, child.first);
        for (const engine of child.engines || [child.engine]) group.engines.add(engine);
      }
    }
    if (group.engines.size === 1) group.engine = [...group.engines][0];
    if (group.kind === "piece") group.label = `operations from ${group.first === Infinity ? 0 : group.first}`;
  };

  // first view: outer groups, while few items are visible
  const openFirst = (root) => {
    let waiting = root.children;
    let seen = waiting.length;
    while (waiting.length) {
      const groups = waiting.filter((item) => item.children);
      waiting = [];
      for (const group of groups) {
        if (seen + group.children.length > FEW) continue;
        group.open = true;
        seen += group.children.length;
        waiting.push(...group.children);
      }
    }
  };

  const ancestry = (item) => {
    const found = [];
    for (let at = item; at; at = at.parent) found.push(at);
    return found.reverse();
  };

  // an edge belongs to the innermost group that has both of its ends, between the children that they are in
  const link = (root, graph, operations, inputs) => {
    const seen = new Map();
    graph.reads.forEach((read, at) => {
      const there = ancestry(operations[at]);
      for (const number of read) {
        const here = ancestry(number < 0 ? inputs[-1 - number] : operations[number]);
        let depth = 0;
        while (here[depth] === there[depth]) depth += 1;
        const group = here[depth - 1];
        let known = seen.get(group);
        if (!known) seen.set(group, (known = new Set()));
        group.places = group.places || new Map(group.children.map((child, place) => [child, place]));
        const pair = [group.places.get(here[depth]), group.places.get(there[depth])];
        const key = pair[0] * group.children.length + pair[1];
        if (!known.has(key)) {
          known.add(key);
          group.edges.push(pair);
        }
      }
    });
  };

  hatch.walk = function* (item) {
    yield item;
    for (const child of item.children || []) yield* hatch.walk(child);
  };
})();
