// Asks the service every second, shows what it says, and listens to the keyboard.

import { follow, showDecisions, showLatest, startDecisions, step } from "./decisions.js";
import { byId, mark, say, words } from "./dom.js";
import { showFleet, startFleet } from "./fleet.js";
import { age } from "./format.js";
import { showAutoscaler, showCalibration, showHead, showPrefixes, showTiles, troubles } from "./panels.js";

const EVERY_MS = 1000;
const MANY = 300; // instances from which on the fleet is asked for less often
const SELDOM = 3; // times less
const THEMES = ["", "light", "dark"];

let told = null; // the latest overview
let fleet = [];
let turn = 0;
let paused = false;
let heardAt = performance.now();
let timer = 0;

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function ask() {
  window.clearTimeout(timer);
  if (!paused && !document.hidden) {
    try {
      const withFleet = fleet.length < MANY || turn % SELDOM === 0;
      const [overview, rows] = await Promise.all([get("overview"), withFleet ? get("fleet") : fleet]);
      turn += 1;
      [told, fleet] = [overview, rows];
      heardAt = performance.now();
      mark(document.body, "data-silent", null);
      show();
      if (turn % 2 === 1) showLatest();
    } catch (error) {
      silent(error);
    }
  }
  timer = window.setTimeout(ask, EVERY_MS);
}

function show() {
  if (told === null) return;
  const began = performance.now();
  const filter = words(byId("filter").value);
  showHead(told);
  showTiles(told);
  showFleet(fleet, filter);
  showDecisions(told.decisions, filter);
  showCalibration(told.calibration);
  if (turn % 3 === 1) {
    showPrefixes(told);
    showAutoscaler(told.autoscaler);
  }
  document.body.dataset.renderMs = (performance.now() - began).toFixed(1);
}

function silent(error) {
  const since = age((performance.now() - heardAt) / 1000);
  say(byId("state"), "▲ no answer");
  mark(byId("state"), "data-kind", "bad");
  mark(document.body, "data-silent", "");
  troubles([`The service has not answered for ${since}; this is its last word. ${error.message}`]);
}

function pause() {
  paused = !paused;
  mark(byId("pause"), "aria-pressed", String(paused));
  say(byId("pause"), paused ? "Go on" : "Pause");
  if (!paused) ask();
}

function setTheme(name) {
  mark(document.documentElement, "data-theme", name || null);
  say(byId("theme"), name ? name[0].toUpperCase() + name.slice(1) : "Theme");
}

function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  setTheme(next);
  try {
    localStorage.setItem("theme", next);
  } catch {
    // it is forgotten with the page
  }
}

function rememberedTheme() {
  try {
    const name = localStorage.getItem("theme");
    return THEMES.includes(name) ? name : "";
  } catch {
    return "";
  }
}

function escape() {
  if (document.activeElement === byId("filter")) byId("filter").blur();
  if (byId("filter").value) filterBy("");
  else if (follow()) showLatest();
}

function filterBy(text) {
  byId("filter").value = text;
  show();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  "/": () => byId("filter").focus(),
  p: pause,
  t: nextTheme,
  "?": () => byId("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || byId("help").open) return;
  if (event.key === "Escape") escape();
  else if (document.activeElement === byId("decisions-list") && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    step(event.key === "ArrowDown" ? 1 : -1);
    event.preventDefault();
  } else if (event.target.tagName !== "INPUT" && Object.hasOwn(KEYS, event.key)) {
    KEYS[event.key]();
    event.preventDefault();
  }
});
document.addEventListener("visibilitychange", () => document.hidden || ask());
byId("filter").addEventListener("input", show);
byId("pause").addEventListener("click", pause);
byId("theme").addEventListener("click", nextTheme);
byId("help-open").addEventListener("click", () => byId("help").showModal());

setTheme(rememberedTheme());
startFleet(filterBy);
startDecisions();
ask();
