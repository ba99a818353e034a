// The console works without this file. It brings what is on screen up to date, and adds keys.
"use strict";

// A plan under way is looked at more often.
const EVERY = Number(document.querySelector("[data-every]")?.dataset.every) || 2000;
const live = document.getElementById("live");
const help = document.getElementById("help");
let stopped = false;
let failures = 0;
let timer = 0;

// Nothing moves while somebody reads with the hand: selects text, types, or has a question open.
function busy() {
  const selection = document.getSelection();
  const focus = document.activeElement;
  return (
    document.hidden ||
    (selection !== null && !selection.isCollapsed) ||
    (focus !== null && focus.matches("input, select, textarea")) ||
    document.querySelector("dialog[open], details.act[open]") !== null
  );
}

function say(state, text) {
  if (live === null) return;
  live.dataset.state = state;
  live.textContent = text;
}

async function refresh() {
  clearTimeout(timer);
  if (!stopped && !busy()) {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
      if (!answer.ok) throw new Error(String(answer.status));
      swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
      failures = 0;
    } catch {
      failures += 1;
      say("lost", "No answer from the console; what you see may be old");
    }
  }
  if (!stopped) timer = setTimeout(refresh, Math.min(EVERY * 2 ** failures, 30000));
}

function swap(fresh) {
  if (stopped || busy()) return;
  const focused = document.activeElement?.closest?.("[data-key]")?.dataset.key;
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = fresh.querySelector(`[data-live="${CSS.escape(old.dataset.live)}"]`);
    if (now === null || now.innerHTML === old.innerHTML) continue;
    for (const open of old.querySelectorAll("details[open][id]")) {
      now.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
    }
    old.replaceChildren(...document.importNode(now, true).childNodes);
  }
  if (fresh.title) document.title = fresh.title;
  if (focused !== undefined) focus(rows().find((row) => row.dataset.key === focused));
  const shown = fresh.getElementById("live")?.textContent?.replace("Shown as of", "Live,") ?? "Live";
  say("on", shown);
  copies();
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

let going = 0;
function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || help?.open) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (going && Date.now() - going < 1500) {
    going = 0;
    const place = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (place !== null) {
      event.preventDefault();
      location.assign(place.href);
      return;
    }
  }
  const does = {
    "/": () => document.getElementById("find")?.focus(),
    "?": () => help?.showModal(),
    j: () => move(1),
    k: () => move(-1),
    n: () => document.querySelector('a[rel="next"]')?.click(),
    l: toggle,
    g: () => {
      going = Date.now();
    },
    Escape: () => document.querySelector("details.act[open]")?.removeAttribute("open"),
  }[event.key];
  if (does !== undefined) {
    event.preventDefault();
    does();
  }
}

function toggle() {
  stopped = !stopped;
  if (stopped) say("off", "Stopped; press l to go on");
  else refresh();
}

// A command is there to be copied.
function copies() {
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

// One question at a time; a click elsewhere closes it.
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll("details.act[open]")) {
    if (!open.contains(event.target)) open.removeAttribute("open");
  }
});
// A button that was pressed is not pressed twice.
document.addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
});
document.addEventListener("keydown", key);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
// A page that comes back from the browser's memory is old, and its forms may be sent again.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

const keys = document.getElementById("keys");
if (keys !== null) {
  keys.hidden = false;
  keys.addEventListener("click", () => help?.showModal());
}
copies();
const here = document.querySelector(".side [aria-current]");
if (here !== null && here.closest(".side").scrollWidth > innerWidth) here.scrollIntoView({ inline: "center", block: "nearest" });
if (document.querySelector("[data-live]") !== null) timer = setTimeout(refresh, EVERY);
