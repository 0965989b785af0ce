// Small charts in SVG: curves of the last two minutes, and predicted against measured times.

import { draw, make, say } from "./dom.js";
import { share } from "./format.js";

const WIDTH = 120;
const HEIGHT = 26;
const CLOSE = 0.25; // a prediction within a quarter of what was measured

/** Path of a curve through values from the oldest to the newest; gaps where they are null. */
export function curvePath(values) {
  const most = Math.max(1e-9, ...values.filter((value) => value !== null));
  const step = WIDTH / (values.length - 1);
  let path = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${(index * step).toFixed(1)} ${(HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

/** An empty curve, to be filled by its path's attribute d. */
export function curve() {
  const path = draw("path", { class: "curve" });
  return [draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, path), path];
}

const SIZE = 260;
const LOW = 56; // room for the axes' numbers and names
const HIGH = SIZE - 10;
const ROOM = 14; // for half of the last number
const SHAPES = [
  (x, y) => `M${x - 2.5} ${y}a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0z`,
  (x, y) => `M${x - 2.3} ${y - 2.3}h4.6v4.6h-4.6z`,
  (x, y) => `M${x} ${y - 3}l3 5.4h-6z`,
  (x, y) => `M${x} ${y - 3.2}l3.2 3.2l-3.2 3.2l-3.2-3.2z`,
  (x, y) => `M${x - 2.6} ${y - 1}h1.6v-1.6h2v1.6h1.6v2h-1.6v1.6h-2v-1.6h-1.6z`,
];

/** Which mark stands for which kind of instance, by its place among all kinds. */
export function shapeOf(index) {
  return SHAPES[index % SHAPES.length];
}

/** Draw pairs [predicted, measured, place of the kind] into a figure, both axes logarithmic. */
export function scatter(figure, title, pairs, kinds) {
  const caption = make("figcaption", "", make("b", "", title), " ", make("span", "", verdict(pairs)));
  const svg = draw("svg", { viewBox: `0 0 ${SIZE + ROOM} ${SIZE - LOW / 3}`, role: "img", "aria-label": `${title}: ${verdict(pairs)}` });
  const values = pairs.flatMap(([predicted, measured]) => [predicted, measured]).filter((value) => value > 0);
  if (!values.length) {
    figure.replaceChildren(caption, make("p", "none", "No streamed answer has shown it yet."));
    return;
  }
  const [from, to] = decades(Math.min(...values), Math.max(...values));
  const at = (value) => LOW + ((Math.log10(Math.max(value, from)) - Math.log10(from)) / (Math.log10(to) - Math.log10(from))) * (HIGH - LOW);
  const up = (value) => SIZE - at(value);
  axes(svg, from, to, at, up);
  const off = 1 + CLOSE;
  svg.append(
    draw("path", { class: "band", d: `M${at(from)} ${up(from)}V${up(from * off)}L${at(to / off)} ${up(to)}L${at(to)} ${up(to)}L${at(to)} ${up(to / off)}L${at(from * off)} ${up(from)}z` }),
    draw("path", { class: "even", d: `M${at(from)} ${up(from)}L${at(to)} ${up(to)}` }),
  );
  kinds.forEach((kind, place) => {
    const marks = pairs.filter((pair) => pair[2] === place && pair[0] > 0 && pair[1] > 0);
    const d = marks.map(([predicted, measured]) => shapeOf(place)(round(at(predicted)), round(up(measured)))).join("");
    if (d) svg.append(draw("path", { class: `point kind${place % SHAPES.length}`, d }));
  });
  figure.replaceChildren(caption, svg);
}

/** Measured over predicted, from the smallest on. */
export function ratiosOf(pairs) {
  return pairs.filter((pair) => pair[0] > 0).map(([predicted, measured]) => measured / predicted).sort((a, b) => a - b);
}

function verdict(pairs) {
  const ratios = ratiosOf(pairs);
  if (!ratios.length) return "";
  const close = ratios.filter((ratio) => ratio >= 1 / (1 + CLOSE) && ratio <= 1 + CLOSE).length / ratios.length;
  return `measured is ${quantile(ratios, 0.5).toFixed(2)} × predicted (median), ${share(close)} within a quarter`;
}

/** The value below which such a part of sorted ones lies. */
export function quantile(sorted, part) {
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
}

function decades(least, most) {
  const steps = [1, 2, 5];
  const below = 10 ** Math.floor(Math.log10(least));
  const from = below * Math.max(...steps.filter((step) => below * step <= least * 1.0001), 1);
  const above = 10 ** Math.floor(Math.log10(most));
  const to = above * (steps.find((step) => above * step >= most) ?? 10);
  return to > from ? [from, to] : [from, from * 10];
}

function axes(svg, from, to, at, up) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += 1) {
    for (const step of to / from > 200 ? [1] : to / from > 30 ? [1, 3] : [1, 2, 5]) {
      const value = step * 10 ** power;
      if (value >= from * 0.999 && value <= to * 1.001) ticks.push(value);
    }
  }
  for (const value of ticks) {
    const [x, y] = [round(at(value)), round(up(value))];
    svg.append(draw("path", { class: "grid", d: `M${x} ${up(from)}V${up(to)}M${at(from)} ${y}H${at(to)}` }));
    const below = draw("text", { x, y: SIZE - LOW + 14, "text-anchor": "middle" });
    const left = draw("text", { x: LOW - 5, y: y + 3, "text-anchor": "end" });
    say(below, tick(value));
    say(left, tick(value));
    svg.append(below, left);
  }
  const across = draw("text", { x: (LOW + HIGH) / 2, y: SIZE - LOW + 30, "text-anchor": "middle", class: "axis" });
  const along = draw("text", { x: 0, y: 0, "text-anchor": "middle", class: "axis", transform: `translate(8 ${SIZE - (LOW + HIGH) / 2}) rotate(-90)` });
  say(across, "predicted");
  say(along, "measured");
  svg.append(across, along);
}

function tick(value) {
  if (value < 0.001) return `${Number((value * 1e6).toPrecision(2))} µs`;
  return value < 1 ? `${Number((value * 1e3).toPrecision(2))} ms` : `${Number(value.toPrecision(2))} s`;
}

const round = (value) => Math.round(value * 10) / 10;

