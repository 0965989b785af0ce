// The latest decisions as a list, and the reasons of one of them.

import { byId, has, make, mark, say } from "./dom.js";
import { explain } from "./explanation.js";
import { age, count, seconds, share, UNKNOWN } from "./format.js";

const list = byId("decisions-list");
const CELLS = ["age", "to", "class", "prompt", "cached", "ttft", "actual", "end"];
const HEADS = ["Age", "To", "Class", "Prompt", "Cached", "TTFT ≈", "TTFT", "End"];
let latest = []; // as the service told
let stands = null; // the list as it was when one was chosen
let chosen = null; // its id
let wanted = [];
let asked = 0; // number of the last explanation that was asked for
let open = false; // whether what became of the one that is shown may still come

/** Build the head once. */
export function startDecisions() {
  HEADS.forEach((title, place) => byId("decisions-head").append(make("span", CELLS[place], title)));
  list.addEventListener("click", (event) => {
    const line = event.target.closest("[data-id]");
    if (line) choose(line.dataset.id);
  });
}

/** Show these decisions, newest first. */
export function showDecisions(decisions, filter) {
  const now = performance.now();
  if (decisions !== latest) {
    for (const row of decisions) row.heardAt = now;
    const fresh = new Map(decisions.map((row) => [row.id, row]));
    stands = stands && stands.map((row) => fresh.get(row.id) ?? row);
  }
  latest = decisions;
  wanted = filter;
  paint();
}

/** Choose the next (1) or the previous (-1) decision of those that are shown. */
export function step(by) {
  const rows = visible();
  if (!rows.length) return;
  const place = rows.findIndex((row) => row.id === chosen);
  const next = place < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, place + by));
  choose(rows[next].id);
}

/** Follow the latest decision again; false if that was so already. */
export function follow() {
  if (chosen === null) return false;
  chosen = null;
  stands = null;
  paint();
  return true;
}

/** Fetch the reasons of the latest decision, or of the chosen one as long as it has not ended. */
export async function showLatest() {
  if (chosen !== null) {
    if (open) await fetchReasons(chosen);
    return;
  }
  if (latest.length) await fetchReasons(visible()[0]?.id ?? null);
  else showNothing("No request has been decided on yet.");
}

function choose(id) {
  if (chosen === null) stands = latest;
  chosen = id;
  open = false;
  paint();
  byId(`decision-${id}`)?.scrollIntoView({ block: "nearest" });
  fetchReasons(id);
}

async function fetchReasons(id) {
  if (id === null) {
    showNothing("No decision has all words of the filter.");
    return;
  }
  asked += 1;
  const mine = asked;
  try {
    const answer = await fetch(`decisions/${encodeURIComponent(id)}`, { signal: AbortSignal.timeout(5000) });
    if (mine !== asked) return;
    if (answer.status === 404) {
      if (chosen !== null && !open) showNothing("It is no longer among the latest decisions.");
      return;
    }
    const told = await answer.json();
    open = told.outcome === null;
    explain(byId("detail-body"), told);
    say(byId("detail-note"), chosen === null ? "the latest decision" : "chosen; Esc follows the latest");
  } catch {
    // The page tells elsewhere that the service does not answer; what is shown stays.
  }
}

function showNothing(text) {
  byId("detail-body").replaceChildren(make("p", "none", text));
  say(byId("detail-note"), "");
}

function visible() {
  const rows = stands ?? latest;
  return wanted.length ? rows.filter((row) => has(text(row), wanted)) : rows;
}

function text(row) {
  return [row.id, row.model, row.instance, row.partner, row.reason, row.class, row.api, row.outcome?.status].join(" ").toLowerCase();
}

function paint() {
  const rows = visible();
  while (list.children.length < rows.length) list.append(line());
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach((row, place) => fill(list.children[place], row));
  mark(list, "aria-activedescendant", chosen === null ? null : `decision-${chosen}`);
  say(byId("decisions-note"), stands ? "stands still while one is chosen" : `the latest ${rows.length}`);
}

function line() {
  const made = make("div", "row", ...CELLS.map((name) => make("span", name)));
  made.setAttribute("role", "option");
  return made;
}

function fill(element, row) {
  element.dataset.id = row.id;
  element.id = `decision-${row.id}`;
  mark(element, "aria-selected", String(row.id === chosen));
  const [end, kind] = ending(row);
  const texts = [
    age(row.age_s + (performance.now() - row.heardAt) / 1000),
    row.instance ?? "nowhere",
    row.class,
    count(row.prompt_tokens),
    row.instance === null ? UNKNOWN : share(row.prompt_tokens ? row.cached_tokens / row.prompt_tokens : 0),
    seconds(row.ttft_s),
    seconds(row.outcome?.ttft_s ?? null),
    end,
  ];
  texts.forEach((value, place) => say(element.children[place], value));
  mark(element, "title", `${row.model} · ${end}`);
  mark(element, "data-kind", kind);
}

function ending(row) {
  if (row.shadow) return [`shadow: ${row.shadow}`, ""];
  if (row.instance === null) return [row.reason ?? "refused", "bad"];
  if (row.outcome === null) return ["runs", ""];
  const { status, attempts, duration_s: lasted } = row.outcome;
  const again = attempts > 1 ? ` ×${attempts}` : "";
  if (status >= 200 && status < 400) return [seconds(lasted) + again, attempts > 1 ? "doubt" : ""];
  return [(status === 0 ? "no answer" : String(status)) + again, "bad"];
}
