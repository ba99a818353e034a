// Live updates and keyboard shortcuts. The console works without this file.
"use strict";

// The page of a running plan is refreshed more often.
const EVERY = Number(document.querySelector("[data-every]")?.dataset.every) || 2000;
const live = document.getElementById("live");
const help = document.getElementById("help");
let stopped = false;
let failures = 0;
let timer = 0;

// No update while the user selects text, types, or has a form or dialog open.
function busy() {
  const selection = document.getSelection();
  const focus = document.activeElement;
  return (
    document.hidden ||
    (selection !== null && !selection.isCollapsed) ||
    (focus !== null && focus.matches("input, select, textarea")) ||
    drag !== null ||
    document.querySelector("dialog[open], details.act[open], td.select :checked") !== null
  );
}

function showState(state, text) {
  if (live === null) return;
  live.dataset.state = state;
  live.textContent = text;
}

async function refresh() {
  clearTimeout(timer);
  if (!stopped && !busy()) {
    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (!response.ok) throw new Error(String(response.status));
      swap(new DOMParser().parseFromString(await response.text(), "text/html"));
      failures = 0;
    } catch {
      failures += 1;
      showState("lost", "Connection lost. This page may be outdated.");
    }
  }
  if (!stopped) timer = setTimeout(refresh, Math.min(EVERY * 2 ** failures, 30000));
}

function swap(fresh) {
  if (stopped || busy()) return;
  const focused = document.activeElement?.closest?.("[data-key]")?.dataset.key;
  for (const region of document.querySelectorAll("[data-live]")) {
    const update = fresh.querySelector(`[data-live="${CSS.escape(region.dataset.live)}"]`);
    if (update === null || update.innerHTML === region.innerHTML) continue;
    for (const open of region.querySelectorAll("details[open][id]")) {
      update.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
    }
    region.replaceChildren(...document.importNode(update, true).childNodes);
  }
  if (fresh.title) document.title = fresh.title;
  if (focused !== undefined) focus(rows().find((row) => row.dataset.key === focused));
  const shown = fresh.getElementById("live")?.textContent?.replace("Updated", "Live, updated") ?? "Live";
  showState("on", shown);
  addCopyButtons();
  addSelectAll();
}

function rows() {
  return [...document.querySelectorAll("[data-row]")];
}

function focus(row) {
  row?.querySelector("a.main")?.focus({ preventScroll: true });
}

function move(step) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step))];
  focus(next);
  next.scrollIntoView({ block: "nearest" });
}

let prefixAt = 0;
function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || help?.open) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (prefixAt && Date.now() - prefixAt < 1500) {
    prefixAt = 0;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link !== null) {
      event.preventDefault();
      location.assign(link.href);
      return;
    }
  }
  const action = {
    "/": () => document.getElementById("find")?.focus(),
    "?": () => help?.showModal(),
    j: () => move(1),
    k: () => move(-1),
    x: () => rows().find((row) => row.contains(document.activeElement))?.querySelector(".select input")?.click(),
    n: () => document.querySelector('a[rel="next"]')?.click(),
    l: toggle,
    g: () => {
      prefixAt = Date.now();
    },
    Escape: () => document.querySelector("details.act[open]")?.removeAttribute("open"),
  }[event.key];
  if (action !== undefined) {
    event.preventDefault();
    action();
  }
}

function toggle() {
  stopped = !stopped;
  if (stopped) showState("off", "Live updates paused. Press l to resume.");
  else refresh();
}

// Adds a copy button to each command.
function addCopyButtons() {
  if (!navigator.clipboard) return;
  for (const code of document.querySelectorAll(".cli code:not([data-copy])")) {
    code.dataset.copy = "yes";
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    });
    code.after(button);
  }
}

// Adds a checkbox that selects all rows of the page.
function addSelectAll() {
  const head = document.querySelector("th.select:not(:has(input))");
  if (head === null) return;
  const all = document.createElement("input");
  all.type = "checkbox";
  all.ariaLabel = "Select all rows of this page";
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll("td.select input")) box.checked = all.checked;
  });
  head.replaceChildren(all);
}

// The value under the pointer replaces the figure of a chart.
document.addEventListener("pointerover", (event) => {
  const bar = event.target.closest?.(".chart a");
  for (const figure of document.querySelectorAll("[data-peak]")) {
    const own = bar && figure.closest("figure").contains(bar);
    figure.textContent = own ? bar.querySelector("title").textContent : figure.dataset.peak;
  }
});

// Dragging across a chart shows the range of the bars that it covers.
let drag = null;
function position(chart, event) {
  const box = chart.getBoundingClientRect();
  return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
}
document.addEventListener("pointerdown", (event) => {
  const chart = event.target.closest?.(".chart[data-since]");
  if (chart && event.button === 0) drag = { chart, from: position(chart, event), to: null, mark: null };
});
document.addEventListener("pointermove", (event) => {
  if (drag === null) return;
  const to = position(drag.chart, event);
  if (drag.mark === null && Math.abs(to - drag.from) < 0.02) return;
  if (drag.mark === null) {
    drag.mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    drag.mark.setAttribute("class", "zoom");
    drag.mark.setAttribute("height", "100");
    drag.chart.append(drag.mark);
  }
  drag.to = to;
  drag.mark.setAttribute("x", String(600 * Math.min(drag.from, to)));
  drag.mark.setAttribute("width", String(600 * Math.abs(to - drag.from)));
});
document.addEventListener("pointerup", () => {
  const ended = drag;
  drag = null;
  if (ended?.mark == null) return;
  ended.mark.remove();
  const { since, until, width } = ended.chart.dataset;
  const [first, end, size] = [since, until, width].map(Number);
  const bars = (end - first) / size;
  const at = (bar) => new Date((first + bar * size) * 1000).toISOString().replace(".000", "");
  const target = new URL(location.href);
  target.searchParams.set("since", at(Math.floor(Math.min(ended.from, ended.to) * bars)));
  target.searchParams.set("until", at(Math.ceil(Math.max(ended.from, ended.to) * bars)));
  // The release of the button is a click on a bar too.
  document.addEventListener("click", (click) => click.preventDefault(), { once: true, capture: true });
  location.assign(target);
});
document.addEventListener("dragstart", (event) => {
  if (event.target.closest?.(".chart")) event.preventDefault();
});

// A click outside an open form closes it.
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll("details.act[open]")) {
    if (!open.contains(event.target)) open.removeAttribute("open");
  }
});
// Prevents a form from being submitted twice.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
});
document.addEventListener("keydown", key);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
// A page restored from the back/forward cache is outdated and its forms are marked as sent: reload it.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

const keys = document.getElementById("keys");
if (keys !== null) {
  keys.hidden = false;
  keys.addEventListener("click", () => help?.showModal());
}
addCopyButtons();
addSelectAll();
const current = document.querySelector(".side [aria-current]");
if (current !== null && current.closest(".side").scrollWidth > innerWidth) {
  current.scrollIntoView({ inline: "center", block: "nearest" });
}
if (document.querySelector("[data-live]") !== null) timer = setTimeout(refresh, EVERY);
