"use strict";
// Draws each canvas.timeline from the JSON of the script element that it names. Wheel zooms, a drag
// moves, a double click shows all. Names reach the page as text only, never as markup. The step is
// from 0 to end_us; before 0 the host runs ahead of the GPU.
(() => {
  const ROW = 18, GAP = 12, TITLE = 16, AXIS = 20, LEAST_WIDTH = 0.4;
  const tip = document.getElementById("tip");

  function time(us) {
    if (Math.abs(us) >= 1e6) return (us / 1e6).toFixed(2) + " s";
    if (Math.abs(us) >= 1e3) return (us / 1e3).toFixed(2) + " ms";
    return us.toFixed(1) + " µs";
  }

  function timeline(canvas) {
    const data = JSON.parse(document.getElementById(canvas.dataset.source).textContent);
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const textColour = style.getPropertyValue("--text"), muted = style.getPropertyValue("--muted");
    const lineColour = style.getPropertyValue("--line");
    const edgeColour = style.getPropertyValue("--accent"), page = style.getPropertyValue("--page");
    const first = data.start_us, length = data.end_us - first;
    let from = first, to = data.end_us, top = AXIS;
    for (const lane of data.lanes) {
      lane.top = top;
      top += TITLE + lane.num_rows * ROW + GAP;
    }
    const height = top;
    canvas.style.height = height + "px";

    function draw() {
      const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const scale = width / (to - from);
      axis(width, scale);
      for (const lane of data.lanes) {
        for (const span of lane.spans) {
          const [start, duration, row, name, , colour] = span;
          if (start + duration < from || start > to) continue;
          const x = (start - from) * scale, w = Math.max(duration * scale, LEAST_WIDTH);
          const y = lane.top + TITLE + row * ROW;
          pen.fillStyle = data.colours[colour];
          pen.fillRect(x, y, w, ROW - 2);
          if (w > 36) {
            pen.save();
            pen.beginPath();
            pen.rect(x, y, w - 3, ROW);
            pen.clip();
            pen.fillStyle = data.inks[colour];
            pen.fillText(data.texts[name], Math.max(x, 0) + 4, y + ROW / 2 - 0.5);
            pen.restore();
          }
        }
        pen.fillStyle = muted;
        pen.fillText(lane.name, 4, lane.top + TITLE / 2);
      }
      edges(width, scale);
    }

    // What is not yet the step is veiled; a line stands where it begins, and one where it ends.
    function edges(width, scale) {
      const begin = (0 - from) * scale, end = (data.end_us - from) * scale;
      if (begin > 0) {
        pen.globalAlpha = 0.45;
        pen.fillStyle = page;
        pen.fillRect(0, AXIS, Math.min(begin, width), height - AXIS);
        pen.globalAlpha = 1;
      }
      pen.fillStyle = edgeColour;
      pen.fillRect(begin - 1, 0, 2, height);
      pen.fillRect(Math.min(end, width) - (end <= width ? 2 : -2), 0, 2, height);
    }

    function axis(width, scale) {
      const rough = (to - from) / 8, power = 10 ** Math.floor(Math.log10(rough));
      const tick = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
      for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
        const x = (at - from) * scale;
        pen.fillStyle = lineColour;
        pen.fillRect(x, 0, 1, height);
        pen.fillStyle = muted;
        if (x < width - 50) pen.fillText(time(at), x + 4, AXIS / 2);
      }
    }

    function spanAt(event) {
      const box = canvas.getBoundingClientRect();
      const at = from + ((event.clientX - box.left) / box.width) * (to - from);
      const slack = ((to - from) / box.width) * 2;
      const y = event.clientY - box.top;
      for (const lane of data.lanes) {
        const row = Math.floor((y - lane.top - TITLE) / ROW);
        if (row < 0 || row >= lane.num_rows) continue;
        let best = null, distance = Infinity;
        for (const span of lane.spans) {
          if (span[2] !== row) continue;
          const away = Math.max(span[0] - at, at - span[0] - span[1], 0);
          if (away <= slack && away < distance) { best = span; distance = away; }
        }
        return best;
      }
      return null;
    }

    function view(newFrom, newTo) {
      const shown = Math.min(newTo - newFrom, length);
      from = Math.min(Math.max(first, newFrom), data.end_us - shown);
      to = from + shown;
      draw();
    }

    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      const at = from + ((event.clientX - box.left) / box.width) * (to - from);
      const factor = event.deltaY > 0 ? 1.25 : 0.8;
      if ((to - from) * factor < 1) return;
      view(at - (at - from) * factor, at + (to - at) * factor);
    }, { passive: false });
    let grip = null;
    canvas.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, from, to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { grip = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (grip) {
        const moved = ((grip.x - event.clientX) / canvas.clientWidth) * (grip.to - grip.from);
        view(grip.from + moved, grip.to + moved);
        return;
      }
      const span = spanAt(event);
      tip.style.display = span ? "block" : "none";
      if (!span) return;
      const detail = data.texts[span[4]];
      tip.textContent = data.texts[span[3]] + "\n" + time(span[1]) + (detail ? "\n" + detail : "");
      tip.style.left = Math.min(event.clientX + 14, window.innerWidth - 470) + "px";
      tip.style.top = event.clientY + 16 + "px";
    });
    canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
    canvas.addEventListener("dblclick", () => view(first, data.end_us));
    window.addEventListener("resize", draw);
    draw();
  }

  document.querySelectorAll("canvas.timeline").forEach(timeline);
})();
