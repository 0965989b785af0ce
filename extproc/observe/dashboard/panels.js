// The head of the page, rates with their curves, calibration, prefixes and the autoscaler's advice.

import { curve, curvePath, quantile, ratiosOf, scatter, shapeOf } from "./charts.js";
import { byId, draw, make, mark, say } from "./dom.js";
import { age, count, rate, seconds, share, UNKNOWN } from "./format.js";

const TILES = [
  ["Requests", "routed", (told) => `${rate(told.rates.routed_per_s)}/s`, (told) => `${count(told.in_flight)} in flight`],
  ["TTFT", "ttft_s", (told) => seconds(told.rates.ttft_s), (told) => `predicted ${seconds(told.rates.predicted_ttft_s)}`],
  ["Output", "output_tokens", (told) => `${rate(told.rates.output_tokens_per_s)} tok/s`, (told) => `${rate(told.rates.finished_per_s)} ended/s`],
  ["Cached", "cached_share", (told) => share(told.rates.cached_share), () => "of prompt tokens"],
  ["Lost", "lost", (told) => `${rate(told.rates.failed_per_s + told.rates.refused_per_s + told.rates.shed_per_s)}/s`, lost],
  ["Reply", "reply_s", (told) => seconds(told.rates.reply_s), () => "to decide and answer"],
  ["Held", null, (told) => count(told.held.held), held],
];

function lost({ rates }) {
  const kinds = ["failed", "refused", "shed"].filter((kind) => rates[`${kind}_per_s`] > 0);
  return kinds.map((kind) => `${rate(rates[`${kind}_per_s`])} ${kind}`).join(", ") || "nothing";
}

function held(told) {
  if (!told.admission) return "no admission rules";
  return told.held.held ? `the longest ${seconds(told.held.longest_s)}` : "nobody waits here";
}

const tiles = TILES.map(([title, name]) => {
  const [svg, path] = curve();
  const [value, note] = [make("b", "value"), make("span", "note")];
  byId("tiles").append(make("div", "tile", make("span", "name", title), value, note, name ? svg : ""));
  return { value, note, path };
});

/** Show rates and curves. */
export function showTiles(told) {
  TILES.forEach(([, name, value, note], place) => {
    say(tiles[place].value, value(told));
    say(tiles[place].note, note(told));
    mark(tiles[place].note, "title", note(told));
    if (name) tiles[place].path.setAttribute("d", curvePath(told.curves[name]));
  });
}

/** Show where the service stands: live, or on which rungs below. */
export function showHead(told) {
  say(byId("fleet-name"), told.fleet);
  const live = !told.degraded.length;
  say(byId("state"), live ? "● live" : `▲ ${told.degraded.map((each) => each.rung).join(", ")}`);
  mark(byId("state"), "data-kind", live ? "good" : "bad");
  const { routers, requests } = told.peers;
  const peers = routers ? `${routers} other router${routers > 1 ? "s" : ""} with ${count(requests)} open requests` : "no other router";
  const workers = told.workers ? `${told.workers} workers · ` : "";
  const redis = told.redis_silence_s == null ? "Redis never heard" : `Redis heard ${age(told.redis_silence_s)} ago`;
  say(byId("facts"), `${redis} · ${workers}${peers} · up ${age(told.uptime_s)} · ${told.version}`);
  troubles(told.degraded.map((each) => `${each.rung}: ${each.detail}`));
  const title = `${live ? "" : "▲ "}extproc ${told.fleet}`;
  if (document.title !== title) document.title = title;
}

/** List what is wrong; a line that stays is not announced again. */
export function troubles(texts) {
  const list = byId("troubles");
  while (list.children.length > texts.length) list.lastChild.remove();
  while (list.children.length < texts.length) list.append(make("li"));
  texts.forEach((text, place) => say(list.children[place], text));
}

let drawn = ""; // what the plots show

/** Draw predicted against measured times, if there is something new. */
export function showCalibration(points) {
  const last = points.length ? `${points.length} ${points.at(-1).request}` : "none";
  if (last === drawn) return;
  drawn = last;
  const kinds = [...new Set(points.map((point) => point.kind))].sort();
  const pairs = (name) => points.filter((point) => point[name] !== null).map((point) => [point[`predicted_${name}`], point[name], kinds.indexOf(point.kind)]);
  const [ttft, tpot] = [pairs("ttft_s"), pairs("tpot_s")];
  scatter(byId("plot-ttft"), "TTFT", ttft, kinds);
  scatter(byId("plot-tpot"), "TPOT", tpot, kinds);
  say(byId("calibration-note"), points.length ? `the last ${points.length} answers` : "");
  byId("calibration-errors").replaceChildren(...(kinds.length ? [errors(kinds, ttft, tpot)] : []));
}

/** Of each kind of instance: how far measured is from predicted, at the tenth, the middle and the ninetieth in a hundred. */
function errors(kinds, ttft, tpot) {
  const spread = (pairs, place) => {
    const ratios = ratiosOf(pairs.filter((pair) => pair[2] === place));
    return ratios.length ? [0.1, 0.5, 0.9].map((part) => quantile(ratios, part).toFixed(2)).join(" · ") : UNKNOWN;
  };
  const body = make("tbody");
  kinds.forEach((kind, place) => {
    const dot = draw("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, draw("path", { class: `point kind${place % 5}`, d: shapeOf(place)(5, 5) }));
    const answers = ttft.filter((pair) => pair[2] === place).length;
    body.append(make("tr", "", make("td", "", dot, kind), make("td", "", count(answers)), make("td", "", spread(ttft, place)), make("td", "", spread(tpot, place))));
  });
  const head = make("tr", "", th("measured / predicted, p10 · p50 · p90"), th("answers"), th("TTFT"), th("TPOT"));
  return make("table", "errors", make("thead", "", head), body);
}

const MOST_COLUMNS = 14;
const MOST_ROWS = 16;

/** Show which instance holds how much of the most frequent beginnings, and how well caches were hit. */
export function showPrefixes(told) {
  const { hot_prefixes: hot, hits } = told;
  say(byId("prefixes-note"), hot.length ? "the most frequent beginnings, and who holds them" : "");
  const parts = [];
  if (hot.length) parts.push(held_by(hot));
  if (hits.length) parts.push(make("h3", "", "Cache hits of the last 5 minutes"), hit_table(hits));
  if (!parts.length) parts.push(make("p", "none", "No prompt has been sent yet whose beginning could be found again."));
  byId("prefixes-body").replaceChildren(...parts);
}

function held_by(hot) {
  const sums = new Map();
  hot.forEach((each) => Object.entries(each.held).forEach(([id, part]) => sums.set(id, (sums.get(id) ?? 0) + part * each.lately)));
  const most = [...sums].sort((a, b) => b[1] - a[1]).slice(0, MOST_COLUMNS).map(([id]) => id);
  most.sort(new Intl.Collator("en", { numeric: true }).compare);
  const head = make("tr", "", th("Prefix"), th("Tokens", "right"), th("Times", "right"), ...most.map((id) => th(id, "slant")));
  const body = make("tbody");
  hot.forEach((each) => {
    const name = make("td", "", make("code", "", each.id));
    name.title = each.model;
    const cells = most.map((id) => {
      const part = each.held[id] ?? 0;
      const cell = make("td", "heat", part ? String(Math.round(part * 100)) : "");
      cell.style.setProperty("--part", String(part));
      cell.title = `${id} holds ${share(part)} of ${each.id}`;
      return cell;
    });
    body.append(make("tr", "", name, make("td", "right", count(each.tokens)), make("td", "right", rate(each.lately)), ...cells));
  });
  const more = sums.size > most.length ? make("p", "facts", `${sums.size - most.length} more instances hold some of it.`) : "";
  return make("div", "", make("table", "map", make("thead", "", head), body), more);
}

function th(text, className = "") {
  const cell = make("th", className, make("span", "", text));
  cell.scope = "col";
  return cell;
}

function hit_table(hits) {
  const rows = [...hits].sort((a, b) => b.prompt_tokens - a.prompt_tokens).slice(0, MOST_ROWS);
  const head = make("tr", "", th("Instance"), th("Model"), th("Requests", "right"), th("Prompt", "right"), th("Believed", "right"), th("Cached", "right"));
  const body = make("tbody");
  rows.forEach((row) => {
    const cached = make("td", "right bar", row.checked_tokens ? share(row.cached_tokens / row.checked_tokens) : UNKNOWN);
    cached.style.setProperty("--part", row.checked_tokens ? `${Math.round((row.cached_tokens / row.checked_tokens) * 100)}%` : "0%");
    body.append(make("tr", "", make("td", "", row.instance), make("td", "", row.model), make("td", "right", count(row.requests)), make("td", "right", count(row.prompt_tokens)), make("td", "right", share(row.prompt_tokens ? row.believed_tokens / row.prompt_tokens : 0)), cached));
  });
  const more = hits.length > rows.length ? make("p", "facts", `and ${hits.length - rows.length} more`) : "";
  return make("div", "", make("table", "hits", make("thead", "", head), body), more);
}

/** Show what the autoscaler recommends for each pool, and why. */
export function showAutoscaler(word) {
  const body = byId("autoscaler-body");
  if (word === null) {
    say(byId("autoscaler-note"), "");
    body.replaceChildren(make("p", "none", "No autoscaler has spoken for this fleet. One that only advises until it is told how to act: ", make("code", "", "extproc autoscale")));
    return;
  }
  say(byId("autoscaler-note"), `${word.name} said so ${age(word.age_s)} ago`);
  const pools = word.pools.map(pool);
  if (word.outside) pools.push(make("p", "facts", word.outside === 1 ? "One instance belongs to no pool." : `${word.outside} instances belong to no pool.`));
  body.replaceChildren(...pools);
}

function pool(told) {
  const now = told.ready + told.coming + told.pending;
  const sign = told.desired > now ? "▲" : told.desired < now ? "▼" : "=";
  const head = make("p", "pool", make("b", "", told.pool), make("span", "want", `${sign} ${told.desired}`), `${told.ready} ready, ${told.coming + told.pending} coming, ${told.leaving} leaving`);
  const [first, ...others] = told.drivers;
  const parts = [head];
  if (first) parts.push(make("p", "", make("b", "", `${first.signal} ${first.instances}: `), first.why));
  if (others.length) parts.push(make("ul", "", ...others.map((each) => make("li", "facts", `${each.signal} ${each.instances}: ${each.why}`))));
  const { forecast } = told;
  if (forecast) parts.push(make("p", "facts", `load fills ${forecast.now.toFixed(1)} instances now, ${forecast.expected.toFixed(1)} expected in ${age(forecast.horizon_s)}, planned for ${forecast.planned.toFixed(1)}`));
  const going = [["drain", told.drain], ["resume", told.resume], ["stop", told.stop]].filter(([, ids]) => ids?.length);
  if (going.length) parts.push(make("p", "facts", going.map(([what, ids]) => `${what} ${ids.join(", ")}`).join("; ")));
  return make("div", "pool-box", ...parts);
}
