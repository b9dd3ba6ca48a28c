// What the profiler plugin's pages ask of Google's charts, drawn plainly where those cannot be had:
// tables, pies, columns, areas and lines, with their figures as tooltips.
(function () {
  "use strict";
  const COLORS = ["#3366cc", "#dc3912", "#ff9900", "#109618", "#990099", "#0099c6", "#dd4477",
                  "#66aa00", "#b82e2e", "#316395"];
  const MARGIN = { left: 70, right: 20, top: 28, bottom: 44 };

  const plain = cell => (cell !== null && typeof cell === "object" && "v" in cell ? cell.v : cell);
  const shown = value => (typeof value === "number" ? +value.toPrecision(6) : value ?? "").toString();
  const escaped = text => shown(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);
  const words = html => shown(html).replace(/<[^>]*>/g, " ").replace(/\s+/g, " ").trim();

  class DataTable {
    constructor() { this.columns = []; this.rows = []; }
    addColumn(column, label) {
      this.columns.push(typeof column === "object" ? column : { type: column, label });
    }
    addRow(row) { this.rows.push(row.map(plain)); }
    addRows(rows) { rows.forEach(row => this.addRow(row)); }
    setProperty() {}  // styles of cells
    getNumberOfRows() { return this.rows.length; }
    getNumberOfColumns() { return this.columns.length; }
    getValue(row, column) { return this.rows[row][column]; }
    getColumnLabel(column) { return this.columns[column].label; }
    // The columns that are drawn; those with a role say something of the one before.
    series() {
      return this.columns.map((column, at) => ({ ...column, at }))
        .filter(column => column.at > 0 && !column.role);
    }
    tooltip(row, at) {
      const told = this.columns[at + 1]?.role === "tooltip" ? words(this.rows[row][at + 1]) : "";
      const column = this.columns[at];
      return told || `${shown(this.rows[row][0])}\n${column.label || ""}: ${shown(this.rows[row][at])}`;
    }
  }

  function arrayToDataTable(rows) {
    const table = new DataTable();
    rows[0].forEach(head => table.addColumn(typeof head === "object" ? head : { label: head }));
    table.addRows(rows.slice(1));
    return table;
  }

  const colorOf = (options, at) => (options.colors || COLORS)[at % (options.colors || COLORS).length];
  const FONT_SIZE = 11, NAME_WIDTH = 92;  // pixels: of the charts' font, and at most of a column's name
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = `${FONT_SIZE}px sans-serif`;
  const widthOf = text => ruler.measureText(shown(text)).width;
  // The text, cut until it is at most that wide, though never below three characters.
  const fitting = (text, pixels) => {
    let fits = text;
    while (widthOf(fits) > pixels && fits.length > 4) fits = `${fits.slice(0, -2)}…`;
    return escaped(fits);
  };
  // Round values from the first to the last, at most so many steps apart: 1, 2 or 5 times a power of ten.
  function ticks(first, last, most) {
    const rough = (last - first) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999999);
    const found = [];
    for (let nth = Math.ceil(first / step - 1e-6); nth * step <= last + step * 1e-6; nth++) found.push(nth * step);
    return found;
  }
  const titled = (tag, text) => tag.replace("/>", `><title>${escaped(text)}</title></${tag.match(/\w+/)[0]}>`);

  function pie(data, options, width, height) {
    const total = data.rows.reduce((sum, row) => sum + (+row[1] || 0), 0) || 1;
    const radius = Math.min(height / 2 - 30, width / 5), x = radius + 20, y = height / 2;
    let angle = -Math.PI / 2, drawn = "", legend = "";
    data.rows.forEach((row, at) => {
      const share = (+row[1] || 0) / total, next = angle + 2 * Math.PI * Math.min(share, 0.9999);
      const point = a => `${x + radius * Math.cos(a)},${y + radius * Math.sin(a)}`;
      drawn += titled(`<path fill="${colorOf(options, at)}" d="M${x},${y}L${point(angle)}A${radius},` +
        `${radius} 0 ${share > 0.5 ? 1 : 0} 1 ${point(next)}Z"/>`,
        `${row[0]}: ${shown(row[1])} (${(100 * share).toFixed(1)}%)`);
      if (at < (height - 40) / 18) {
        const top = 40 + 18 * at, left = 2 * radius + 36;
        const label = fitting(`${(100 * share).toFixed(1)}% ${shown(row[0])}`, width - left - 18);
        legend += `<rect x="${left}" y="${top - 10}" width="12" height="12" fill="${colorOf(options, at)}"/>` +
          titled(`<text x="${left + 18}" y="${top}"/>`, row[0]).replace("</text>", `${label}</text>`);
      }
      angle = next;
    });
    return drawn + legend;
  }

  // Columns, areas and lines over a common axis.
  function plot(kind, data, options, width, height) {
    const series = data.series(), rows = data.rows, stacked = options.isStacked && kind !== "line";
    const numeric = rows.length > 0 && rows.every(row => typeof row[0] === "number") && kind === "line";
    const value = (row, column) => +row[column.at] || 0;
    const tops = rows.map(row => stacked
      ? series.reduce((sum, column) => sum + value(row, column), 0)
      : Math.max(0, ...series.map(column => value(row, column))));
    const levels = ticks(0, tops.reduce((a, b) => Math.max(a, b), 0) || 1, 4);
    const most = Math.max(...levels, ...tops);
    const across = width - MARGIN.left - MARGIN.right, down = height - MARGIN.top - MARGIN.bottom;
    const first = numeric ? rows[0][0] : 0, last = numeric ? rows[rows.length - 1][0] : rows.length;
    const x = at => MARGIN.left + across * ((numeric ? rows[at][0] : at) - first) / ((last - first) || 1);
    const y = amount => MARGIN.top + down * (1 - amount / most);
    const slot = across / (rows.length || 1);
    let drawn = levels.map(level =>
      `<line x1="${MARGIN.left}" x2="${width - MARGIN.right}" y1="${y(level)}" y2="${y(level)}" stroke="#ddd"/>` +
      `<text x="${MARGIN.left - 6}" y="${y(level) + 4}" text-anchor="end">${shown(level)}</text>`).join("");
    if (kind === "line") {
      drawn += series.map((column, nth) => `<polyline fill="none" stroke="${colorOf(options, nth)}" points="` +
        rows.map((row, at) => `${x(at).toFixed(1)},${y(value(row, column)).toFixed(1)}`).join(" ") + '"/>').join("");
    } else {
      rows.forEach((row, at) => {
        let below = 0;
        series.forEach((column, nth) => {
          const amount = value(row, column), wide = stacked ? slot * 0.8 : slot * 0.8 / series.length;
          const left = x(at) + slot * 0.1 + (stacked ? 0 : nth * wide);
          drawn += titled(`<rect data-row="${at}" data-column="${column.at}" x="${left}" y="${y(below + amount)}" width="${Math.max(wide, 1)}" height="` +
            `${Math.max(0, y(below) - y(below + amount))}" fill="${colorOf(options, nth)}"/>`, data.tooltip(at, column.at));
          if (stacked) below += amount;
        });
      });
    }
    const below = (center, text) => `<text data-axis="x" x="${center}" y="${height - 26}" text-anchor="middle">${text}</text>`;
    if (numeric) {
      const scale = across / ((last - first) || 1);
      drawn += ticks(first, last, 8).map(value => below(MARGIN.left + scale * (value - first), shown(value))).join("");
    } else {
      const names = rows.map(row => fitting(shown(row[0]), NAME_WIDTH));
      const widest = 12 + Math.max(0, ...rows.map(row => Math.min(NAME_WIDTH, widthOf(row[0]))));
      const every = Math.max(1, Math.ceil(widest / slot));
      drawn += names.map((name, at) => (at % every ? "" : below(x(at) + slot / 2, name))).join("");
    }
    // The series' names share the line with the axis' title; they are cut only where they must be.
    const room = across - widthOf(options.hAxis?.title) - 12;
    const widths = series.map(column => 28 + widthOf(column.label));
    const fits = widths.reduce((sum, wide) => sum + wide, 0) <= room;
    let left = MARGIN.left;
    series.forEach((column, nth) => {
      const wide = fits ? widths[nth] : Math.min(widths[nth], room / series.length);
      drawn += `<rect x="${left}" y="${height - 16}" width="10" height="10" fill="${colorOf(options, nth)}"/>` +
        `<text x="${left + 14}" y="${height - 7}">${fitting(shown(column.label), wide - 24)}</text>`;
      left += wide;
    });
    return drawn + `<text x="${width - MARGIN.right}" y="${height - 7}" text-anchor="end">${escaped(options.hAxis?.title)}</text>` +
      `<text transform="translate(14,${height / 2}) rotate(-90)" text-anchor="middle">${escaped(options.vAxis?.title)}</text>`;
  }

  class Chart {
    constructor(element) { this.element = element; this.picked = []; }
    clearChart() { this.element.textContent = ""; }
    getSelection() { return this.picked; }
    setSelection() {}
    draw(data, options = {}) {
      const width = this.element.clientWidth || options.width || 600, height = options.height || 320;
      this.element.innerHTML = `<svg width="${width}" height="${height}" font-family="sans-serif" font-size="${FONT_SIZE}" letter-spacing="0">` +
        `<text x="${MARGIN.left}" y="16" font-weight="bold">${escaped(options.title)}</text>` +
        this.marks(data, options, width, height) + "</svg>";
    }
  }
  const chart = marks => class extends Chart { marks(...given) { return marks(...given); } };
  const plotted = kind => chart((...given) => plot(kind, ...given));

  class Table extends Chart {
    draw(data) {
      const cells = (row, tag) => row.map(cell => `<${tag} style="border:1px solid #ddd;padding:4px 8px;` +
        `text-align:${typeof cell === "number" ? "right" : "left"}">${escaped(cell)}</${tag}>`).join("");
      this.element.innerHTML = '<div style="overflow:auto"><table style="border-collapse:collapse;' +
        `font:12px sans-serif"><tr>${cells(data.columns.map(column => column.label), "th")}</tr>` +
        `${data.rows.map(row => `<tr>${cells(row, "td")}</tr>`).join("")}</table></div>`;
    }
  }

  // Rows of layer, name, tooltip, start and end, a lane a layer.
  function timeline(data, options, width, height) {
    const begin = data.columns.findIndex(column => /start/i.test(column.id || column.label || ""));
    const at = begin < 0 ? data.columns.length - 2 : begin;
    const first = Math.min(...data.rows.map(row => +row[at])), last = Math.max(...data.rows.map(row => +row[at + 1]));
    const lanes = [...new Set(data.rows.map(row => row[0]))];
    const scale = (width - 20) / ((last - first) || 1), tall = Math.max(8, Math.min(24, (height - 30) / lanes.length));
    return data.rows.map((row, nth) => titled(`<rect x="${10 + (row[at] - first) * scale}" y="${24 + tall * lanes.indexOf(row[0])}" ` +
      `width="${Math.max(1, (row[at + 1] - row[at]) * scale)}" height="${tall - 2}" fill="${colorOf(options, nth)}"/>`,
      words(row[1]))).join("");
  }

  // Of all that charts tell, a click on a column: the comparison of two runs goes deeper by it.
  function addListener(chart, name, listener) {
    if (name !== "select") return;
    chart.element.addEventListener("click", ({ target: { dataset } }) => {
      if (!dataset || dataset.row === undefined) return;
      chart.picked = [{ row: +dataset.row, column: +dataset.column }];
      listener();
    });
  }

  window.google = {
    charts: { load: () => Promise.resolve(), setOnLoadCallback: then => setTimeout(then, 0) },
    visualization: {
      DataTable, arrayToDataTable, Table,
      PieChart: chart(pie), LineChart: plotted("line"), ColumnChart: plotted("column"),
      SteppedAreaChart: plotted("column"), ComboChart: plotted("column"), Timeline: chart(timeline),
      events: { addListener, removeListener() {}, removeAllListeners() {}, trigger() {} },
    },
  };
})();
