"use strict";
// Where items are drawn. Each group is laid out by itself, innermost first: the library sees few nodes at once, and
// layers that are alike are laid out once.
(() => {
  const HEAD = 24;
  const PAD = 12;
  const MOST_CROSSED = 2; // rows that edges cross, for each node
  const SHORT = 2;
  const known = new Map();

  const closedSize = (item) => {
    const second = item.children ? 14 : item.result.length;
    const letters = Math.max(item.label.length, second);
    return { width: Math.max(52, Math.min(280, 7 * letters + 18)), height: second ? 40 : 26 };
  };

  // children without edges between them stand in rows
  const rows = (sizes) => {
    const columns = Math.ceil(Math.sqrt(sizes.length / 2));
    const places = [];
    let x = 0, y = 0, tallest = 0, width = 0;
    sizes.forEach((size, at) => {
      if (at && at % columns === 0) [x, y, tallest] = [0, y + tallest + 12, 0];
      places.push([x, y]);
      x += size.width + 12;
      tallest = Math.max(tallest, size.height);
      width = Math.max(width, x - 12);
    });
    return { places, routes: [], width, height: y + tallest };
  };

  // The library's time grows with the rows that edges cross. If edges cross many rows, the library gets the edges that
  // place nodes: short edges, and the shortest edge from and to each node. Other edges are drawn as straight lines.
  const shortEdges = (count, edges) => {
    const row = new Array(count).fill(0);
    const forward = edges.filter(([from, to]) => from < to).sort((a, b) => a[0] - b[0]);
    for (const [from, to] of forward) row[to] = Math.max(row[to], row[from] + 1);
    const length = ([from, to]) => Math.abs(row[to] - row[from]);
    const crossed = edges.reduce((sum, edge) => sum + Math.max(0, length(edge) - 1), 0);
    if (crossed <= MOST_CROSSED * count) return edges;
    const best = new Map();
    for (const edge of edges) {
      for (const end of [`from ${edge[0]}`, `to ${edge[1]}`]) {
        if (!best.has(end) || length(edge) < length(best.get(end))) best.set(end, edge);
      }
    }
    const kept = new Set(best.values());
    return edges.filter((edge) => kept.has(edge) || length(edge) <= SHORT);
  };

  const layered = (sizes, edges) => {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: 14, edgesep: 8, ranksep: 24, ranker: "longest-path" });
    sizes.forEach((size, at) => graph.setNode(String(at), { width: size.width, height: size.height }));
    for (const [from, to] of shortEdges(sizes.length, edges)) graph.setEdge(String(from), String(to), {});
    dagre.layout(graph);
    const places = sizes.map((size, at) => {
      const node = graph.node(String(at));
      return [node.x - size.width / 2, node.y - size.height / 2];
    });
    const routes = edges.map(([from, to]) => {
      const edge = graph.edge(String(from), String(to));
      if (edge) return edge.points.map((point) => [point.x, point.y]);
      return [[places[from][0] + sizes[from].width / 2, places[from][1] + sizes[from].height], [places[to][0] + sizes[to].width / 2, places[to][1]]];
    });
    const { width, height } = graph.graph();
    return { places, routes, width, height };
  };

  const arrange = (sizes, edges) => {
    const key = JSON.stringify([sizes.map((size) => [size.width, size.height]), edges]);
    let found = known.get(key);
    if (!found) known.set(key, (found = edges.length ? layered(sizes, edges) : rows(sizes)));
    return found;
  };

  // Yields the number of placed operations after each group, so that a caller may let the browser respond.
  hatch.measure = function* (item, done = { count: 0 }) {
    item.size = closedSize(item);
    if (!item.open || !item.children) {
      done.count += item.count;
      return;
    }
    for (const child of item.children) yield* hatch.measure(child, done);
    item.arranged = arrange(item.children.map((child) => child.size), item.edges);
    const width = Math.max(item.size.width, item.arranged.width) + 2 * PAD;
    item.size = { width, height: item.arranged.height + HEAD + 2 * PAD };
    yield done.count;
  };

  // Returns the boxes and lines to draw, outer groups first.
  hatch.layOut = (root) => {
    for (const _ of hatch.measure(root));
    const boxes = [];
    const lines = [];
    const place = (group, left, top) => {
      const { places, routes } = group.arranged;
      group.children.forEach((child, at) => {
        const [x, y] = [left + places[at][0], top + places[at][1]];
        child.box = { item: child, x, y, width: child.size.width, height: child.size.height };
        boxes.push(child.box);
        if (child.open && child.children) place(child, x + PAD, y + HEAD + PAD);
      });
      for (const route of routes) lines.push(route.map(([x, y]) => [left + x, top + y]));
    };
    place(root, 0, 0);
    return { boxes, lines, width: root.arranged.width, height: root.arranged.height };
  };
})();
