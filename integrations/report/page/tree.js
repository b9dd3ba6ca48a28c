// Draws the modules of each div.tree: parts fold in and out, blocks that repeat stand as one and
// fold out to each. A node is {n: name, k: class, v: figures, c: parts}; of a group x is how many
// and each [name, figures of all nodes below, from the top down]. Figures are forward, backward and
// other time in microseconds, kernels, bytes.
(() => {
  const FORWARD = 0, BACKWARD = 1, OTHER = 2, KERNELS = 3, BYTES = 4, MOST_ROWS = 400;
  const COLUMNS = [
    ["module", "", (node) => node.label],
    ["time", "", (node) => node.time],
    ["share", "bar", (node) => node.time],
    ["forward", "minor", (node) => node.v[FORWARD]],
    ["backward", "minor", (node) => node.v[BACKWARD]],
    ["kernels", "minor", (node) => node.v[KERNELS]],
    ["memory", "", (node) => node.v[BYTES]],
  ];

  const timeOf = (v) => v[FORWARD] + v[BACKWARD] + v[OTHER];
  const minus = (v, parts) => v.map((sum, i) => {
    const left = sum - parts.reduce((total, part) => total + part.v[i], 0);
    return Math.abs(left) < 0.05 + 0.06 * parts.length && i <= OTHER ? 0 : left;
  });

  function node(label, path, kind, v, extra) {
    return { label, path, kind, v, time: timeOf(v), parts: [], times: 0, open: false, ...extra };
  }

  /** A node of the data, with figures of its own or, of one in a group, those that `next` gives. */
  function built(data, above, next) {
    const v = next ? next() : data.v;
    const path = above ? above + "." + data.n : data.n;
    let parts = (data.c || []).map((part) => built(part, path, next));
    const own = minus(v, parts);
    const hasOwn = own.some((figure) => figure > 0);
    const found = node(data.n, path, data.k || "", v, { times: data.x || 0 });
    if (parts.length && hasOwn) {
      parts = [...parts, node("(itself)", path + " (itself)", "", own, {})];
    }
    if (data.x && data.each && !next) {
      const each = node(`each of ${data.x}`, path, "", v, { isEach: true });
      each.parts = data.each.map(([name, ...figures]) => {
        let at = 0;
        return built({ ...data, n: name, x: 0, each: null }, above, () => figures[at++]);
      });
      parts = [...parts, each];
    }
    found.parts = parts;
    return joined(found);
  }

  /** A node with one part and nothing of its own is one line with it: blocks, * is blocks.* */
  function joined(found) {
    if (found.parts.length !== 1 || found.times || found.parts[0].isEach) return found;
    const [part] = found.parts;
    return { ...part, label: found.label + "." + part.label };
  }

  function grow(box) {
    const data = JSON.parse(document.getElementById(box.dataset.source).textContent);
    const top = (data.root.c || []).map((part) => built(part, "", null));
    const total = top.reduce((sum, part) => sum + part.time, 0) || 1;
    let column = 1, sign = -1, words = [], current = null;
    const body = make("tbody"), told = make("output", { "aria-live": "polite" });
    const find = make("input", { type: "search", placeholder: "Search", "aria-label": "Search modules" });

    function sorted(parts) {
      const key = COLUMNS[column][2];
      const plain = parts.filter((part) => !part.isEach);
      plain.sort((a, b) => sign * (typeof key(a) === "number" ? key(a) - key(b)
        : key(a).localeCompare(key(b), "en", { numeric: true })));
      return [...plain, ...parts.filter((part) => part.isEach)];
    }

    const matches = (found) => words.every((word) => (found.path + " " + found.kind).toLowerCase().includes(word));
    // Each of a group is looked through where a number is asked for, else all would be listed.
    const asksForOne = () => words.some((word) => /\d/.test(word));

    function visible() {
      const rows = [];
      function visit(found, level, above) {
        const place = { found, level, above };
        const start = rows.length;
        rows.push(place);
        if (!words.length) {
          if (found.open) sorted(found.parts).forEach((part) => visit(part, level + 1, place));
          return true;
        }
        let has = !found.isEach && matches(found);
        if (!found.isEach || asksForOne()) {
          for (const part of sorted(found.parts)) has = visit(part, level + 1, place) || has;
        }
        if (!has) rows.length = start;
        return has;
      }
      sorted(top).forEach((part) => visit(part, 1, null));
      return rows;
    }

    function cells({ found, level }) {
      const isOpen = found.open || words.length > 0;
      const twist = make("span", { class: "twist", "aria-hidden": "true" },
        found.parts.length ? (isOpen ? "▾" : "▸") : "");
      const name = make("td", { role: "gridcell" }, twist, found.label);
      name.style.setProperty("--level", level - 1);
      if (found.times) name.append(make("span", { class: "times" }, `× ${found.times}`));
      if (found.kind) name.append(make("span", { class: "kind" }, found.kind));
      const blank = found.isEach, time = (us) => (us ? timeText(us) : "-");
      const figure = (text, kind) => make("td", { role: "gridcell", class: kind || null }, blank ? "" : text);
      const share = figure(((found.time / total) * 100).toFixed(1) + "%", "bar");
      share.style.setProperty("--part", (blank ? 0 : (found.time / total) * 100) + "%");
      return [
        name, figure(time(found.time)), share, figure(time(found.v[FORWARD]), "minor"),
        figure(time(found.v[BACKWARD]), "minor"), figure(countText(found.v[KERNELS]), "minor"),
        figure(found.v[BYTES] ? bytesText(found.v[BYTES]) : "-"),
      ];
    }

    let rows = [];
    function draw(focused) {
      const all = visible();
      rows = all.slice(0, MOST_ROWS);
      if (!rows.some((row) => row.found === current)) current = rows.length ? rows[0].found : null;
      body.replaceChildren(...rows.map((row) => {
        const { found, level } = row;
        const line = make("tr", {
          role: "row", "aria-level": level, tabindex: found === current ? 0 : -1,
          "aria-expanded": found.parts.length ? String(found.open || words.length > 0) : null,
        }, ...cells(row));
        line.addEventListener("click", () => { current = found; toggle(found); });
        row.line = line;
        return line;
      }));
      const hidden = all.length - rows.length;
      const count = all.filter((row) => matches(row.found) && !row.found.isEach).length;
      told.textContent = (words.length ? `${count} found` : "")
        + (hidden > 0 ? ` ${countText(hidden)} more rows: search, or fold in` : "");
      if (focused) rows.find((row) => row.found === current)?.line.focus();
    }

    function toggle(found) {
      if (!found.parts.length || words.length) return draw(true);
      found.open = !found.open;
      draw(true);
    }

    function go(place) {
      if (!place) return;
      current = place.found;
      for (const row of rows) row.line.tabIndex = row === place ? 0 : -1;
      place.line.focus();
    }

    body.addEventListener("keydown", (event) => {
      const at = rows.findIndex((row) => row.found === current), place = rows[at];
      if (!place || event.ctrlKey || event.metaKey || event.altKey) return;
      const { found, above } = place;
      const acts = {
        ArrowDown: () => go(rows[at + 1]),
        ArrowUp: () => go(rows[at - 1]),
        Home: () => go(rows[0]),
        End: () => go(rows[rows.length - 1]),
        ArrowRight: () => (found.parts.length && !found.open && !words.length ? toggle(found)
          : found.parts.length && go(rows[at + 1])),
        ArrowLeft: () => (found.open && !words.length ? toggle(found) : go(above)),
        Enter: () => toggle(found),
        " ": () => toggle(found),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });

    const heads = COLUMNS.map(([title, kind], number) => {
      const button = make("button", { type: "button" }, title);
      const head = make("th", { scope: "col", role: "columnheader", class: kind || null, "aria-sort": number === column ? "descending" : "none" }, button);
      button.addEventListener("click", () => {
        sign = number === column ? -sign : number === 0 ? 1 : -1;
        column = number;
        heads.forEach((other, place) => other.setAttribute("aria-sort",
          place !== number ? "none" : sign > 0 ? "ascending" : "descending"));
        draw();
      });
      return head;
    });

    function setAll(isOpen) {
      const visit = (found) => {
        found.open = isOpen && !found.isEach;
        if (!found.isEach) found.parts.forEach(visit);
      };
      top.forEach(visit);
      draw();
    }

    const unfold = make("button", { type: "button" }, "Expand all");
    const fold = make("button", { type: "button" }, "Collapse all");
    unfold.addEventListener("click", () => setAll(true));
    fold.addEventListener("click", () => setAll(false));
    find.addEventListener("input", () => {
      words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      draw();
    });
    const notes = ["Memory is what is alive at the peak. A star stands for each of the blocks that repeat: fold it out."];
    if (data.left_out) notes.push(`Of ${data.left_out} groups each block is left out: there are too many.`);
    const table = make("table", { role: "treegrid", "aria-label": "Modules" },
      make("thead", null, make("tr", { role: "row" }, ...heads)), body);
    box.append(make("div", { class: "tools" }, find, unfold, fold, told),
      make("p", { class: "muted" }, notes.join(" ")), make("div", { class: "scroll" }, table));
    // At first what takes most is folded out, as far as a screen shows it.
    let open = top.slice().sort((a, b) => b.time - a.time)[0];
    for (let depth = 0; depth < 3 && open && open.parts.length; depth += 1) {
      open.open = true;
      open = open.parts.filter((part) => !part.isEach).sort((a, b) => b.time - a.time)[0];
    }
    draw();
  }

  document.querySelectorAll("div.tree").forEach(grow);
  redrawAll();
})();
