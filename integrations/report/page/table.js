// Tables that sort by a click or a key on the head of a column, are searched, and begin short.
(() => {
  const SHOWN = 15, SEARCHED_FROM = 9;

  function valueOf(row, column) {
    const cell = row.cells[column];
    if (!cell) return "";
    return cell.dataset.v === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.v);
  }

  function compared(a, b) {
    const isNumber = typeof a === "number", isOther = typeof b === "number";
    if (isNumber && isOther) return a - b;
    if (isNumber !== isOther) return isNumber ? 1 : -1; // what is not known is least
    return a.localeCompare(b, "en", { numeric: true });
  }

  function bars(table) {
    table.querySelectorAll("thead th.bar").forEach((head) => {
      const cells = [...table.tBodies[0].rows].map((row) => row.cells[head.cellIndex]);
      const most = Math.max(...cells.map((cell) => Number(cell.dataset.v)), 1e-9);
      for (const cell of cells) {
        cell.style.setProperty("--part", (Number(cell.dataset.v) / most) * 100 + "%");
      }
    });
  }

  function equip(table) {
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
    const name = table.caption ? table.caption.textContent : "table";
    bars(table);
    if (rows.length < 2) return;
    let order = rows, words = [], all = rows.length <= SHOWN + 3;
    const told = make("output", { "aria-live": "polite" });
    const more = make("button", { type: "button", class: "more" });
    const find = make("input", { type: "search", placeholder: "Search", "aria-label": "Search " + name });
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

    function show() {
      const found = order.filter((row) => words.every((word) => texts.get(row).includes(word)));
      const shown = new Set(all || words.length ? found : found.slice(0, SHOWN));
      for (const row of order) row.hidden = !shown.has(row);
      body.append(...order);
      if (table.tFoot) table.tFoot.hidden = words.length > 0;
      told.textContent = words.length ? `${found.length} of ${rows.length} rows` : "";
      more.hidden = words.length > 0 || rows.length <= SHOWN + 3;
      more.textContent = all ? "Show fewer" : `Show all ${rows.length}`;
      more.setAttribute("aria-expanded", String(all));
    }

    function sort(column) {
      const head = heads[column], before = head.getAttribute("aria-sort");
      const starts = typeof valueOf(rows[0], column) === "number" ? "descending" : "ascending";
      const turned = { ascending: "descending", descending: "ascending" }[before] || starts;
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", turned);
      const sign = turned === "ascending" ? 1 : -1;
      order = [...rows].sort((a, b) => sign * compared(valueOf(a, column), valueOf(b, column)));
      show();
    }

    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sort(column));
    });
    find.addEventListener("input", () => {
      words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      show();
    });
    more.addEventListener("click", () => { all = !all; show(); });
    const place = table.closest(".table");
    if (rows.length >= SEARCHED_FROM) {
      place.classList.add("searched");
      place.prepend(make("div", { class: "tools search" }, find, told));
    }
    place.append(make("div", { class: "tools" }, more));
    window.addEventListener("beforeprint", () => { for (const row of rows) row.hidden = false; });
    window.addEventListener("afterprint", show);
    show();
  }

  /** A table that is wider than the page is reached by the keyboard, which then scrolls it. */
  function reachable() {
    document.querySelectorAll(".scroll").forEach((box) => {
      if (box.scrollWidth > box.clientWidth + 1) {
        const caption = box.querySelector("caption");
        box.tabIndex = 0;
        box.setAttribute("role", "region");
        box.setAttribute("aria-label", caption ? caption.textContent : "table");
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
      }
    });
  }

  document.querySelectorAll("table.data").forEach(equip);
  window.addEventListener("resize", reachable);
  redraws.push(reachable);
  reachable();
})();
