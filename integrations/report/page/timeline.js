// Draws each canvas.timeline from the JSON of the script element that it names. The wheel scrolls
// the page; with Ctrl it zooms. Names reach the page as text only, never as markup. The step is
// from 0 to end_us; before 0 the host runs ahead of the GPU.
(() => {
  const ROW = 18, GAP = 12, TITLE = 16, AXIS = 20, LEAST_WIDTH = 0.4, LEAST_SHOWN_US = 0.5;
  const START = 0, DURATION = 1, LINE = 2, NAME = 3, KIND = 4, DETAIL = 5, WHERE = 6;
  const tip = document.getElementById("tip");

  function timeline(canvas) {
    const data = JSON.parse(document.getElementById(canvas.dataset.source).textContent);
    const pen = canvas.getContext("2d");
    const picked = canvas.parentElement.querySelector(".picked");
    canvas.parentElement.querySelector(".keys").hidden = false;
    const first = data.start_us, length = data.end_us - first;
    let from = first, to = data.end_us, width = 0, height = 0, chosen = null, kinds = data.light;
    let lanes = [], lines = [], isAll = false; // lanes shown; their rows from above, spans in order of time

    function arrange() {
      let top = AXIS;
      lines = [];
      lanes = data.lanes.filter((lane) => isAll || !lane.optional);
      for (const lane of lanes) {
        lane.top = top;
        top += TITLE + lane.num_rows * ROW + GAP;
        const rows = Array.from({ length: lane.num_rows }, () => []);
        for (const span of lane.spans) rows[span[LINE]].push(span);
        rows.forEach((spans, row) => {
          spans.sort((a, b) => a[START] - b[START]);
          lines.push({ lane, spans, y: lane.top + TITLE + row * ROW });
        });
      }
      height = top;
      canvas.style.height = height + "px";
    }

    function draw() {
      const ratio = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      width = canvas.clientWidth;
      canvas.width = width * ratio;
      canvas.height = height * ratio;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const scale = width / (to - from);
      kinds = style.colorScheme.includes("dark") ? data.dark : data.light;
      axis(scale, colour);
      for (const line of lines) for (const span of line.spans) drawSpan(span, line.y, scale);
      edges(scale, colour);
      pen.fillStyle = colour("--muted");
      for (const lane of lanes) pen.fillText(lane.name, 4, lane.top + TITLE / 2);
      if (chosen) {
        const { span, line } = chosen, x = (span[START] - from) * scale;
        pen.strokeStyle = colour("--text");
        pen.lineWidth = 2;
        pen.strokeRect(x - 1, line.y - 1, Math.max(span[DURATION] * scale, 2) + 2, ROW);
      }
    }

    function drawSpan(span, y, scale) {
      const start = span[START], duration = span[DURATION];
      if (start + duration < from || start > to) return;
      const x = (start - from) * scale, w = Math.max(duration * scale, LEAST_WIDTH);
      const [colour, ink] = kinds[span[KIND]];
      pen.fillStyle = colour;
      pen.fillRect(x, y, w > 3 ? w - 0.5 : w, ROW - 2);
      if (w <= 36) return;
      const left = Math.max(x, 0);
      pen.save();
      pen.beginPath();
      pen.rect(left, y, x + w - left - 3, ROW);
      pen.clip();
      pen.fillStyle = ink;
      pen.fillText(data.texts[span[NAME]], left + 4, y + ROW / 2 - 0.5);
      pen.restore();
    }

    // What is not yet the step is veiled; a line stands at each begin and end of a step.
    function edges(scale, colour) {
      const begin = (0 - from) * scale;
      if (begin > 0) {
        pen.globalAlpha = 0.45;
        pen.fillStyle = colour("--page");
        pen.fillRect(0, AXIS, Math.min(begin, width), height - AXIS);
        pen.globalAlpha = 1;
      }
      pen.fillStyle = colour("--accent");
      for (const at of data.boundaries) {
        const x = Math.min((at - from) * scale, at === data.end_us ? width - 1 : Infinity);
        pen.fillRect(x - 1, 0, 2, height);
      }
    }

    function axis(scale, colour) {
      const rough = ((to - from) * 110) / width, power = 10 ** Math.floor(Math.log10(rough));
      const tick = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
      for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
        const x = (at - from) * scale;
        pen.fillStyle = colour("--line");
        pen.fillRect(x, 0, 1, height);
        pen.fillStyle = colour("--muted");
        if (x < width - 50) pen.fillText(Math.abs(at) < tick / 1e6 ? "0" : timeText(at), x + 4, AXIS / 2);
      }
    }

    // -- what is where

    const timeAt = (clientX) => {
      const box = canvas.getBoundingClientRect();
      return from + ((clientX - box.left) / box.width) * (to - from);
    };

    function nearest(line, at) {
      let best = null, distance = Infinity;
      for (const span of line.spans) {
        const away = Math.max(span[START] - at, at - span[START] - span[DURATION], 0);
        if (away < distance) { best = span; distance = away; }
      }
      return { span: best, line, distance };
    }

    function spanAt(event) {
      const y = event.clientY - canvas.getBoundingClientRect().top;
      const line = lines.find((one) => y >= one.y && y < one.y + ROW);
      if (!line) return null;
      const found = nearest(line, timeAt(event.clientX));
      return found.span && found.distance <= ((to - from) / width) * 2 ? found : null;
    }

    function words({ span, line }) {
      const detail = [data.texts[span[DETAIL]], data.texts[span[WHERE]]].filter(Boolean);
      return [data.texts[span[NAME]],
        `${timeText(span[DURATION])} from ${timeText(span[START])}, ${line.lane.name}`, ...detail].join("\n");
    }

    function choose(found) {
      chosen = found && found.span ? found : null;
      picked.textContent = chosen ? words(chosen) : "";
      if (chosen) {
        const [start, duration] = chosen.span, shown = to - from;
        if (start < from || start + Math.min(duration, shown) > to) {
          return view(start + duration / 2 - shown / 2, start + duration / 2 + shown / 2);
        }
      }
      return draw();
    }

    // -- moving and zooming

    function view(newFrom, newTo) {
      const shown = Math.min(Math.max(newTo - newFrom, Math.min(LEAST_SHOWN_US, length)), length);
      from = Math.min(Math.max(first, newFrom), data.end_us - shown);
      to = from + shown;
      draw();
    }

    function zoom(factor, at = chosen ? chosen.span[START] + chosen.span[DURATION] / 2 : (from + to) / 2) {
      const middle = Math.min(Math.max(at, from), to);
      view(middle - (middle - from) * factor, middle + (to - middle) * factor);
    }

    const move = (share) => view(from + share * (to - from), to + share * (to - from));

    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.clientX));
      } else if ((event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) && to - from < length) {
        event.preventDefault();
        move((event.deltaX || event.deltaY) / width);
      }
    }, { passive: false });

    const fingers = new Map();
    let grip = null;
    function take() {
      const all = [...fingers.values()];
      grip = all.length === 0 ? null : { from, to, moved: grip ? grip.moved : false,
        left: Math.min(...all), spread: Math.max(...all) - Math.min(...all) };
    }
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId);
      take();
    });
    canvas.addEventListener("pointerup", (event) => {
      const wasClick = grip && !grip.moved && fingers.size === 1;
      fingers.delete(event.pointerId);
      take();
      if (wasClick) choose(spanAt(event));
    });
    canvas.addEventListener("pointercancel", (event) => { fingers.delete(event.pointerId); take(); });
    canvas.addEventListener("pointermove", (event) => {
      if (grip && fingers.has(event.pointerId)) return drag(event);
      const found = event.pointerType === "mouse" ? spanAt(event) : null;
      tip.style.display = found ? "block" : "none";
      if (!found) return undefined;
      tip.textContent = words(found);
      tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)) + "px";
      const below = event.clientY + 16, above = event.clientY - tip.offsetHeight - 10;
      tip.style.top = (below + tip.offsetHeight > window.innerHeight && above > 0 ? above : below) + "px";
      return undefined;
    });
    function drag(event) {
      const before = fingers.get(event.pointerId);
      if (!grip.moved && Math.abs(event.clientX - before) < 4) return;
      grip.moved = true;
      tip.style.display = "none";
      fingers.set(event.pointerId, event.clientX);
      const all = [...fingers.values()], left = Math.min(...all), shown = grip.to - grip.from;
      const spread = Math.max(...all) - left;
      const factor = grip.spread > 10 && spread > 10 ? grip.spread / spread : 1;
      const box = canvas.getBoundingClientRect();
      const at = grip.from + ((grip.left - box.left) / width) * shown; // stays below the left finger
      const start = at - ((left - box.left) / width) * shown * factor;
      view(start, start + shown * factor);
    }
    canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
    canvas.addEventListener("dblclick", () => view(first, data.end_us));

    function step(by) {
      if (!chosen) return choose(nearest(lines[0], (from + to) / 2));
      const { span, line } = chosen, next = line.spans[line.spans.indexOf(span) + by];
      return next && choose({ span: next, line });
    }
    function climb(by) {
      if (!chosen) return step(0);
      const { span, line } = chosen;
      for (let at = lines.indexOf(line) + by; lines[at]; at += by) {
        const found = nearest(lines[at], span[START] + span[DURATION] / 2);
        if (found.span) return choose(found);
      }
      return undefined;
    }
    function zoomTo() {
      if (!chosen) return;
      const [start, duration] = chosen.span;
      view(start - duration * 0.1, start + duration * 1.1);
    }
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {
        ArrowLeft: () => (event.shiftKey ? move(-0.2) : step(-1)),
        ArrowRight: () => (event.shiftKey ? move(0.2) : step(1)),
        ArrowUp: () => climb(-1),
        ArrowDown: () => climb(1),
        "+": () => zoom(0.5),
        "=": () => zoom(0.5),
        "-": () => zoom(2),
        0: () => view(first, data.end_us),
        Home: () => view(first, first + to - from),
        End: () => view(data.end_us - (to - from), data.end_us),
        Enter: zoomTo,
        Escape: () => choose(null),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });

    const tools = make("div", { class: "tools" });
    for (const [sign, label, act] of [
      ["+", "Zoom in", () => zoom(0.5)],
      ["−", "Zoom out", () => zoom(2)],
      ["←", "Move left", () => move(-0.3)],
      ["→", "Move right", () => move(0.3)],
      ["All", "Show all", () => view(first, data.end_us)],
      ...(first < 0 ? [["Step", "Show the step only", () => view(0, data.end_us)]] : []),
    ]) {
      const button = make("button", { type: "button", "aria-label": label, title: label }, sign);
      button.addEventListener("click", act);
      tools.append(button);
    }
    if (data.lanes.some((lane) => lane.optional)) {
      const label = "Show operators", button = make("button", { type: "button", "aria-pressed": "false", title: label }, "Operators");
      button.addEventListener("click", () => {
        isAll = !isAll;
        button.setAttribute("aria-pressed", String(isAll));
        arrange();
        choose(null);
      });
      tools.append(button);
    }
    canvas.before(tools);
    window.addEventListener("resize", draw);
    redraws.push(draw);
    arrange();
    draw();
  }

  document.querySelectorAll("canvas.timeline").forEach(timeline);
})();
