"use strict";
// The drawing. The canvas is larger than the visible part: moving the view moves the canvas, and draws again only when
// the canvas's edge comes near.
(() => {
  const SMALLEST_TEXT = 0.45; // scale below which labels are left out
  const LARGEST = 2.5;

  hatch.Drawing = class {
    constructor(holder, canvas, actions) {
      this.holder = holder;
      this.canvas = canvas;
      this.actions = actions; // select(item), toggle(item)
      this.context = canvas.getContext("2d", { alpha: false });
      this.scene = { boxes: [], lines: [], width: 1, height: 1 };
      this.view = { x: 0, y: 0, scale: 1 };
      this.drawn = null;
      this.chosen = null;
      this.waiting = false;
      this.listen();
      new ResizeObserver(() => this.redraw()).observe(holder);
    }

    show(scene) {
      this.scene = scene;
      this.redraw();
    }

    redraw() {
      this.drawn = null;
      this.request();
    }

    request() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        this.frame();
      });
    }

    // moves the drawing, or draws again
    frame() {
      const { drawn, view } = this;
      const [wide, high] = [this.holder.clientWidth, this.holder.clientHeight];
      if (!wide || !high) return;
      if (drawn && drawn.scale === view.scale) {
        const [dx, dy] = [view.x - drawn.x, view.y - drawn.y];
        if (Math.abs(dx) <= drawn.edge[0] && Math.abs(dy) <= drawn.edge[1]) {
          this.canvas.style.transform = `translate(${dx}px, ${dy}px)`;
          return;
        }
      }
      const edge = [Math.round(wide / 2), Math.round(high / 2)];
      const dense = Math.min(2, devicePixelRatio || 1);
      const [width, height] = [(wide + 2 * edge[0]) * dense, (high + 2 * edge[1]) * dense];
      if (this.canvas.width !== width || this.canvas.height !== height) {
        Object.assign(this.canvas, { width, height });
        Object.assign(this.canvas.style, { width: `${width / dense}px`, height: `${height / dense}px`, left: `${-edge[0]}px`, top: `${-edge[1]}px` });
      }
      this.canvas.style.transform = "";
      this.drawn = { ...view, edge };
      this.draw(dense, edge);
    }

    draw(dense, edge) {
      const { context, view } = this;
      const colours = this.colours || (this.colours = this.readColours());
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.fillStyle = colours.page;
      context.fillRect(0, 0, this.canvas.width, this.canvas.height);
      const factor = view.scale * dense;
      context.setTransform(factor, 0, 0, factor, (view.x + edge[0]) * dense, (view.y + edge[1]) * dense);
      const seen = {
        left: (-edge[0] - view.x) / view.scale, top: (-edge[1] - view.y) / view.scale,
        right: (this.holder.clientWidth + edge[0] - view.x) / view.scale,
        bottom: (this.holder.clientHeight + edge[1] - view.y) / view.scale,
      };
      const boxes = this.scene.boxes.filter((box) => box.x < seen.right && box.y < seen.bottom && box.x + box.width > seen.left && box.y + box.height > seen.top);
      context.lineWidth = 1 / Math.max(0.3, view.scale);
      // open groups nest, and are painted separately; closed groups do not overlap: a path for each colour
      const closed = new Map();
      for (const box of boxes) {
        const fill = this.actions.fill(box.item);
        if (box.item.open) {
          this.paint(box, colours.of(box.item.kind === "partition" ? fill : "--group"), colours.line);
        } else {
          if (!closed.has(fill)) closed.set(fill, []);
          closed.get(fill).push(box);
        }
      }
      this.drawLines(seen, colours.edge);
      for (const [fill, alike] of closed) {
        context.beginPath();
        for (const box of alike) context.rect(box.x, box.y, box.width, box.height);
        context.fillStyle = colours.of(fill);
        context.fill();
        context.strokeStyle = colours.edge;
        if (view.scale > 0.15) context.stroke();
      }
      this.drawMarks(boxes, colours);
      if (view.scale >= SMALLEST_TEXT) this.drawTexts(boxes, colours);
      if (this.chosen && this.chosen.box) {
        const box = this.chosen.box;
        context.strokeStyle = colours.accent;
        context.lineWidth = 3 / view.scale;
        context.strokeRect(box.x, box.y, box.width, box.height);
      }
    }

    paint(box, fill, stroke) {
      this.context.fillStyle = fill;
      this.context.strokeStyle = stroke;
      this.context.fillRect(box.x, box.y, box.width, box.height);
      this.context.strokeRect(box.x, box.y, box.width, box.height);
    }

    drawLines(seen, colour) {
      const { context, view } = this;
      if (view.scale < 0.05) return; // shorter than a pixel
      const tip = 4;
      context.beginPath();
      for (const line of this.scene.lines) {
        const [first, last] = [line[0], line[line.length - 1]];
        if (Math.max(first[1], last[1]) < seen.top || Math.min(first[1], last[1]) > seen.bottom) continue;
        context.moveTo(first[0], first[1]);
        for (let at = 1; at < line.length; at += 1) context.lineTo(line[at][0], line[at][1]);
        if (view.scale >= SMALLEST_TEXT) {
          context.moveTo(last[0] - tip, last[1] - tip);
          context.lineTo(last[0], last[1]);
          context.lineTo(last[0] + tip, last[1] - tip);
        }
      }
      context.strokeStyle = colour;
      context.stroke();
    }

    // a dashed border, visible without colour, marks operations that no engine took
    drawMarks(boxes, colours) {
      const { context } = this;
      context.beginPath();
      for (const box of boxes) {
        if (!box.item.open && box.item.why) context.rect(box.x + 1.5, box.y + 1.5, box.width - 3, box.height - 3);
      }
      context.setLineDash([4, 3]);
      context.strokeStyle = colours.warn;
      context.stroke();
      context.setLineDash([]);
    }

    drawTexts(boxes, colours) {
      const { context } = this;
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      for (const box of boxes) {
        const { item } = box;
        context.fillStyle = colours.text;
        const most = box.width - 12;
        if (item.open) {
          context.fillText(`− ${item.label}`, box.x + 8, box.y + 13, most);
          continue;
        }
        const second = item.children ? hatch.count(item.count, "operation") : item.result;
        const first = item.children ? `+ ${item.label}` : item.label;
        context.fillText(first, box.x + 8, second ? box.y + 13 : box.y + box.height / 2, most);
        if (second) context.fillText(hatch.shortened(second), box.x + 8, box.y + 28, most);
      }
    }

    readColours() {
      const read = {};
      for (const name of ["page", "text", "line", "edge", "warn", "accent"]) read[name] = hatch.colour(`--${name}`);
      const others = new Map();
      read.of = (fill) => {
        if (!fill.startsWith("--")) return fill;
        if (!others.has(fill)) others.set(fill, hatch.colour(fill));
        return others.get(fill);
      };
      return read;
    }

    recolour() {
      this.colours = null;
      this.redraw();
    }

    fit() {
      const [wide, high] = [this.holder.clientWidth, this.holder.clientHeight];
      const { width, height } = this.scene;
      const scale = Math.max(0.01, Math.min(1, (wide - 30) / width, (high - 30) / height));
      this.view = { scale, x: (wide - width * scale) / 2, y: Math.max(15, (high - height * scale) / 2) };
      this.request();
    }

    // shows the beginning, large enough to read
    start() {
      const wide = this.holder.clientWidth;
      const { width } = this.scene;
      const scale = Math.max(0.6, Math.min(1, (wide - 30) / width));
      this.view = { scale, x: (wide - width * scale) / 2, y: 15 };
      this.redraw();
    }

    centre(item) {
      const { box } = item;
      if (!box) return;
      const scale = Math.max(this.view.scale, 0.8);
      this.view = { scale, x: this.holder.clientWidth / 2 - (box.x + box.width / 2) * scale, y: this.holder.clientHeight / 2 - (box.y + box.height / 2) * scale };
      this.redraw();
    }

    choose(item) {
      this.chosen = item;
      this.redraw();
    }

    move(dx, dy) {
      this.view.x += dx;
      this.view.y += dy;
      this.request();
    }

    zoom(factor, x = this.holder.clientWidth / 2, y = this.holder.clientHeight / 2) {
      const scale = Math.max(0.01, Math.min(LARGEST, this.view.scale * factor));
      const ratio = scale / this.view.scale;
      this.view = { scale, x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio };
      this.request();
    }

    itemAt(event) {
      const frame = this.holder.getBoundingClientRect();
      const x = (event.clientX - frame.left - this.view.x) / this.view.scale;
      const y = (event.clientY - frame.top - this.view.y) / this.view.scale;
      const { boxes } = this.scene;
      for (let at = boxes.length - 1; at >= 0; at -= 1) {
        const box = boxes[at];
        if (x >= box.x && y >= box.y && x <= box.x + box.width && y <= box.y + box.height) return box.item;
      }
      return null;
    }

    listen() {
      const { canvas } = this;
      let last = null;
      let moved = 0;
      canvas.addEventListener("pointerdown", (event) => {
        last = [event.clientX, event.clientY];
        moved = 0;
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (!last) return;
        const step = [event.clientX - last[0], event.clientY - last[1]];
        moved += Math.abs(step[0]) + Math.abs(step[1]);
        last = [event.clientX, event.clientY];
        this.move(...step);
      });
      canvas.addEventListener("pointerup", (event) => {
        last = null;
        const item = moved < 4 ? this.itemAt(event) : null;
        if (item) this.actions.select(item);
      });
      canvas.addEventListener("pointercancel", () => { last = null; });
      canvas.addEventListener("dblclick", (event) => {
        const item = this.itemAt(event);
        if (item && item.children) this.actions.toggle(item);
      });
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        const frame = this.holder.getBoundingClientRect();
        this.zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - frame.left, event.clientY - frame.top);
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => {
        const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
        if (steps[event.key]) this.move(...steps[event.key]);
        else if (event.key === "+" || event.key === "=") this.zoom(1.2);
        else if (event.key === "-") this.zoom(1 / 1.2);
        else if (event.key === "0") this.fit();
        else if (event.key === "Enter" && this.chosen && this.chosen.children) this.actions.toggle(this.chosen);
        else return;
        event.preventDefault();
      });
    }
  };
})();
