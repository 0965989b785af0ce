// The table of instances: sorted, filtered, and of a thousand rows only those that can be seen are in the page.

import { byId, has, make, mark, say } from "./dom.js";
import { age, count, rate, seconds, share, UNKNOWN, whole } from "./format.js";

const ROW_PX = 26; // as in page.css
const SPARE = 6; // rows above and below those that can be seen
const LIFE = { Ready: "●", Draining: "◇", Loading: "◐", Starting: "◔", Unhealthy: "▲", Stopped: "○" };

// Title, tooltip, key to sort by, text; those with `few` are left out on narrow screens.
const COLUMNS = [
  { title: "Instance", hint: "id", key: (row) => row.id, text: (row) => row.id, wide: 14 },
  { title: "State", hint: "lifecycle, and what is not as it should be", key: (row) => row.lifecycle, text: state, wide: 17 },
  { title: "Hardware", hint: "GPU", key: (row) => row.hardware, text: (row) => row.hardware || UNKNOWN, wide: 9, few: true },
  { title: "Models", hint: "names that it answers to", key: (row) => row.models.join(), text: (row) => row.models.join(", "), wide: 13, few: true },
  number("In flight", "our open requests, and those of other routers", (row) => row.in_flight + row.peers, (row) => (row.peers ? `${row.in_flight}+${row.peers}` : String(row.in_flight)), 8),
  number("Run", "requests in its batch, by its own report", (row) => row.running, (row) => whole(row.running), 5, true),
  number("Wait", "requests in its queue, by its own report", (row) => row.waiting, (row) => whole(row.waiting), 5),
  number("KV", "share of its KV blocks in use", (row) => row.kv_usage, (row) => share(row.kv_usage), 8),
  number("Queue", "prompt computation that was sent and is not done", (row) => row.prefill_backlog_s, (row) => seconds(row.prefill_backlog_s), 7, true),
  number("req/s", "requests sent there, mean of 10 s", (row) => row.routed_per_s, (row) => rate(row.routed_per_s), 5, true),
  number("tok/s", "output tokens of requests that ended, mean of 10 s", (row) => row.output_tokens_per_s, (row) => rate(row.output_tokens_per_s), 6, true),
  number("Prefill", "prompt tokens a second that it is believed to compute alone", (row) => row.prefill_tokens_per_s, (row) => `${count(row.prefill_tokens_per_s)}/s`, 7, true),
  number("TPOT", "time for each output token that is predicted in the batch it has", (row) => row.tpot_s, (row) => seconds(row.tpot_s), 7, true),
  number("Blocks", "prefix blocks that it is believed to hold, of 256 bytes; what its engine tells in brackets", (row) => row.prefix_blocks, blocks, 10, true),
  number("Age", "of its last report", (row) => row.age_s, (row) => age(row.age_s), 6),
];

function number(title, hint, key, text, wide, few = false) {
  return { title, hint, key, text, wide, few, right: true };
}

function state(row) {
  const parts = [`${LIFE[row.lifecycle] ?? "?"} ${row.lifecycle}`];
  if (row.loading_progress !== null && row.lifecycle !== "Ready") parts.push(share(row.loading_progress));
  if (row.ready_in_s !== null && row.lifecycle !== "Ready") parts.push(`ready in ${age(row.ready_in_s)}`);
  if (row.cooldown_s > 0) parts.push(`rests ${age(row.cooldown_s)}`);
  parts.push(...row.degraded);
  return parts.join(" · ");
}

function blocks(row) {
  return count(row.prefix_blocks) + (row.kv_blocks_told === null ? "" : ` [${count(row.kv_blocks_told)}]`);
}

const scroll = byId("fleet-scroll");
const body = byId("fleet-table").tBodies[0];
const above = make("tr", "space");
const below = make("tr", "space");
const sorting = { column: -1, down: false };
let rows = [];
let wanted = [];
let shown = [];
let lines = [];

/** Build the head once. `onInstance` is told of an instance that is clicked. */
export function startFleet(onInstance) {
  const head = make("tr");
  COLUMNS.forEach((column, index) => {
    const button = make("button", "", column.title);
    button.type = "button";
    button.addEventListener("click", () => sortBy(index));
    const cell = make("th", classes(column), button);
    cell.scope = "col";
    cell.title = column.hint;
    cell.style.setProperty("--wide", String(column.wide));
    head.append(cell);
  });
  byId("fleet-table").tHead.append(head);
  body.append(above, below);
  body.addEventListener("click", (event) => {
    const line = event.target.closest("tr[data-id]");
    if (line) onInstance(line.dataset.id);
  });
  scroll.addEventListener("scroll", () => window.requestAnimationFrame(paint), { passive: true });
  window.addEventListener("resize", () => window.requestAnimationFrame(paint));
  sortBy(0);
}

/** Show these instances, of which the filter leaves those that have all words. */
export function showFleet(fleet, filter) {
  rows = fleet;
  wanted = filter;
  arrange();
  paint();
}

function classes(column) {
  return [column.right ? "right" : "", column.few ? "few" : ""].filter(Boolean).join(" ");
}

function sortBy(index) {
  sorting.down = sorting.column === index ? !sorting.down : Boolean(COLUMNS[index].right);
  sorting.column = index;
  [...byId("fleet-table").tHead.rows[0].cells].forEach((cell, place) => {
    mark(cell, "aria-sort", place === index ? (sorting.down ? "descending" : "ascending") : null);
  });
  arrange();
  paint();
}

function arrange() {
  shown = wanted.length ? rows.filter((row) => has(text(row), wanted)) : [...rows];
  const { key } = COLUMNS[sorting.column];
  const sign = sorting.down ? -1 : 1;
  shown.sort((a, b) => sign * compare(key(a), key(b)) || compare(a.id, b.id));
  const ready = rows.filter((row) => row.lifecycle === "Ready").length;
  const some = shown.length === rows.length ? "" : `, ${shown.length} shown`;
  say(byId("fleet-note"), `${rows.length} instances, ${ready} ready${some}`);
}

function text(row) {
  return [row.id, row.lifecycle, row.hardware, row.zone, row.engine, row.role, ...row.models, ...row.degraded].join(" ").toLowerCase();
}

const natural = new Intl.Collator("en", { numeric: true });

function compare(a, b) {
  if (a === null || b === null) return (a !== null) - (b !== null); // what is not known comes first
  return typeof a === "number" ? a - b : natural.compare(a, b);
}

function paint() {
  const first = Math.max(0, Math.floor(scroll.scrollTop / ROW_PX) - SPARE);
  const last = Math.min(shown.length, first + Math.ceil(scroll.clientHeight / ROW_PX) + 2 * SPARE);
  while (lines.length < last - first) {
    const line = make("tr", "", ...COLUMNS.map((column) => make("td", classes(column))));
    lines.push(line);
    below.before(line);
  }
  while (lines.length > last - first) lines.pop().remove();
  above.style.height = `${first * ROW_PX}px`;
  below.style.height = `${(shown.length - last) * ROW_PX}px`;
  mark(byId("fleet-table"), "aria-rowcount", String(shown.length + 1));
  lines.forEach((line, place) => fill(line, shown[first + place], first + place));
}

function fill(line, row, index) {
  line.dataset.id = row.id;
  mark(line, "aria-rowindex", String(index + 2));
  mark(line, "data-life", row.degraded.length || row.cooldown_s > 0 ? "doubt" : row.lifecycle);
  COLUMNS.forEach((column, place) => {
    const cell = line.cells[place];
    const value = column.text(row);
    say(cell, value);
    if (column.title === "KV") bar(cell, row.kv_usage);
    if (!column.right) mark(cell, "title", place === 1 && row.lifecycle_reason ? `${value}: ${row.lifecycle_reason}` : value);
  });
}

function bar(cell, value) {
  cell.classList.add("bar");
  cell.style.setProperty("--part", `${Math.round(Math.min(1, value ?? 0) * 100)}%`);
  mark(cell, "data-high", value !== null && value > 0.9 ? "" : null);
}
