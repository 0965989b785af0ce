// One decision with its reasons: each option's cost as a stacked bar, the second best, who was out and why.

import { make } from "./dom.js";
import { count, seconds, share, UNKNOWN } from "./format.js";

const LEAST_S = 0.0005; // a term below that is not worth a colour
const MOST_NAMED = 8; // instances that one text is told of
const MOST_TEXTS = 6; // for each reason

/** Put an explanation, as /decisions/ID tells it, in the place of what an element holds. */
export function explain(element, told) {
  const parts = [question(told)];
  if (told.options.length) parts.push(bars(told));
  if (told.second) parts.push(make("p", "second", told.second.text));
  if (told.options.length) parts.push(came(told));
  if (told.models) parts.push(make("p", "", told.models.text));
  if (told.miss) parts.push(make("p", "second", `Nearest to serving it: ${told.miss.text ?? told.miss.instance}`));
  if (told.rejected.length) parts.push(out(told));
  element.replaceChildren(...parts);
}

function question(told) {
  const asked = told.request;
  const went = told.shadow ? "would have gone" : "went";
  const to = told.chosen === null ? `${went} nowhere` : `${went} to ${told.chosen}`;
  const line = make("p", "question", make("b", "", asked.model), ` ${to}`);
  if (told.partner) line.append(`, its prompt computed by ${told.partner}`);
  const facts = [
    asked.api,
    asked.request_class,
    `prompt ${count(asked.prompt_tokens)} tokens${asked.token_error ? ` ± ${share(asked.token_error)}` : ""}`,
    `expects ${count(asked.expected_output_tokens)} out`,
  ];
  if (asked.priority) facts.push(`priority ${asked.priority}`);
  if (told.shadow) facts.push(`in shadow: would have been ${told.shadow}`);
  if (told.held_s !== null) facts.push(`held ${seconds(told.held_s)}`);
  return make("div", "", line, make("p", "facts", facts.join(" · ")), make("p", "facts id", `${asked.id} ${asked.trace_id}`.trim()));
}

/** Bars share one scale; what a weight takes off stands to the left of zero. */
function bars(told) {
  const options = [...told.options, ...told.others];
  const names = Object.keys(options[0].terms_s);
  const worth = names.filter((name) => options.some((option) => Math.abs(option.terms_s[name]) >= LEAST_S));
  const sums = options.map((option) => {
    const values = worth.map((name) => option.terms_s[name]);
    return [values.filter((value) => value < 0).reduce((a, b) => a + b, 0), values.filter((value) => value > 0).reduce((a, b) => a + b, 0)];
  });
  const low = Math.min(0, ...sums.map(([below]) => below));
  const high = Math.max(1e-9, ...sums.map(([, over]) => over));
  const box = make("div", "bars");
  box.setAttribute("role", "list");
  options.forEach((option, place) => box.append(bar(option, place === 0, worth, low, high)));
  const legend = make("p", "legend");
  worth.forEach((name) => legend.append(make("span", "", make("i", `term ${name}`), name)));
  const further = told.further ? make("p", "facts", `${told.further} more would have served at a higher cost.`) : "";
  return make("div", "", box, legend, further);
}

function bar(option, first, names, low, high) {
  const track = make("span", "track");
  const at = (value) => `${((value - low) / (high - low)) * 100}%`;
  let [left, right] = [0, 0];
  for (const name of names) {
    const value = option.terms_s[name];
    if (Math.abs(value) < LEAST_S) continue;
    const piece = make("i", `term ${name}`);
    const [from, to] = value < 0 ? [left + value, left] : [right, right + value];
    if (value < 0) left = from;
    else right = to;
    piece.style.left = at(from);
    piece.style.width = `${((to - from) / (high - low)) * 100}%`;
    piece.title = `${name} ${seconds(value)}`;
    track.append(piece);
  }
  const cached = option.cached_tokens ? `${count(option.cached_tokens)} cached (${option.cached_source})` : "nothing cached";
  const terms = names.filter((name) => Math.abs(option.terms_s[name]) >= LEAST_S).map((name) => `${name} ${seconds(option.terms_s[name])}`);
  const line = make("div", first ? "option first" : "option", make("span", "who", who(option)), track, make("span", "total", seconds(option.total_s)), make("span", "cached", option.doubt || option.continues || cached));
  line.setAttribute("role", "listitem");
  line.setAttribute("aria-label", `${who(option)}${first ? ", chosen" : ""}: ${seconds(option.total_s)}, ${terms.join(", ")}, ${option.doubt || option.continues || cached}`);
  return line;
}

function who(option) {
  return option.partner ? `${option.instance} with ${option.partner}` : option.instance;
}

/** What was predicted of the choice, beside what came. */
function came(told) {
  const [first] = told.options;
  const end = told.outcome;
  const table = make("table", "came", make("thead", "", row("th", ["", "TTFT", "TPOT", "prompt", "cached", "output"])));
  const body = make("tbody", "", row("td", ["predicted", seconds(first.ttft_s), seconds(first.tpot_s), count(told.request.prompt_tokens), count(first.cached_tokens), count(told.request.expected_output_tokens)]));
  if (end) body.append(row("td", ["measured", seconds(end.ttft_s), seconds(end.tpot_s), count(end.prompt_tokens), count(end.cached_tokens), count(end.completion_tokens)]));
  table.append(body);
  const tries = end && end.attempts > 1 ? ` after ${end.attempts} attempts` : "";
  const text = end ? `Ended with ${end.status} in ${seconds(end.duration_s)} at ${end.instance || UNKNOWN}${tries}.` : "It has not ended yet, or another router was told of its end.";
  return make("div", "", table, make("p", "facts", text));
}

function row(tag, texts) {
  return make("tr", "", ...texts.map((text) => make(tag, "", text)));
}

/** Who was out, together by reason, those with the fewest first. */
function out(told) {
  const reasons = Map.groupBy(told.rejected, (each) => each.reason);
  const list = make("ul", "out");
  [...reasons].sort((a, b) => a[1].length - b[1].length).forEach(([reason, failed]) => {
    const item = make("li", "", make("b", "", `${failed.length} ${reason}`));
    const texts = Map.groupBy(failed, (each) => each.text);
    [...texts].slice(0, MOST_TEXTS).forEach(([text, same]) => {
      const more = same.length > MOST_NAMED ? ` and ${same.length - MOST_NAMED} more` : "";
      item.append(` ${text}: `, make("span", "names", same.slice(0, MOST_NAMED).map((each) => each.instance).join(", ") + more), ";");
    });
    item.lastChild.textContent = texts.size > MOST_TEXTS ? "; and others" : "";
    list.append(item);
  });
  return list;
}
