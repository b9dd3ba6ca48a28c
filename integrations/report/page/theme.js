"use strict";
// What all parts of the page's script share, then light or dark, and where to go.

/** An element with attributes and children; texts stay texts, never markup. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function timeText(us) {
  if (Math.abs(us) >= 1e6) return (us / 1e6).toFixed(2) + " s";
  if (Math.abs(us) >= 1e3) return (us / 1e3).toFixed(2) + " ms";
  return us.toFixed(1) + " µs";
}

function bytesText(count) {
  if (count >= 2 ** 30) return (count / 2 ** 30).toFixed(2) + " GiB";
  return (count / 2 ** 20).toFixed(1) + " MiB";
}

function countText(count) {
  return count.toLocaleString("en-US");
}

/** Figures of a page that may be embedded: what the browser refuses to keep is not kept. */
function kept(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch { /* a sandbox has no storage */ }
  return null;
}

const redraws = [];
function redrawAll() {
  for (const redraw of redraws) redraw();
}

(() => {
  const root = document.documentElement;
  const choices = ["auto", "light", "dark"];
  const stored = kept("neusight-theme");
  let chosen = choices.includes(stored) ? stored : "auto";
  const button = make("button", { type: "button", class: "theme" });

  function show() {
    if (chosen === "auto") delete root.dataset.theme;
    else root.dataset.theme = chosen;
    button.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[chosen];
    button.setAttribute("aria-label", "Colours: " + chosen + ". Change");
    redrawAll();
  }

  button.addEventListener("click", () => {
    chosen = choices[(choices.indexOf(chosen) + 1) % choices.length];
    kept("neusight-theme", chosen);
    show();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  // Paper is white.
  window.addEventListener("beforeprint", () => { root.dataset.theme = "light"; redrawAll(); });
  window.addEventListener("afterprint", show);

  const nav = make("nav", { "aria-label": "Parts of the page" });
  const several = document.querySelectorAll("main h2").length > 1;
  for (const head of document.querySelectorAll(several ? "main h2" : "main h3")) {
    const name = head.textContent.replace(" of the steady step", "");
    const jump = make("button", { type: "button" }, name);
    jump.addEventListener("click", () => {
      head.tabIndex = -1;
      head.focus({ preventScroll: true });
      head.scrollIntoView({ block: "start" });
    });
    nav.append(jump);
  }
  document.querySelector("header").after(make("div", { class: "bar-top" }, nav, button));
  show();
})();
