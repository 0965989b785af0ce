// Numbers as people read them: with units, few digits, and a dash for what is not known.

export const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** Seconds: 850 µs, 12 ms, 1.25 s, 3 min 20 s. */
export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0) return "0 ms";
  if (size < 0.0009995) return `${(value * 1e6).toFixed(0)} µs`;
  if (size < 0.00995) return `${(value * 1e3).toFixed(1)} ms`;
  if (size < 0.9995) return `${(value * 1e3).toFixed(0)} ms`;
  if (size < 9.995) return `${value.toFixed(2)} s`;
  if (size < 99.95) return `${value.toFixed(1)} s`;
  return age(value);
}

/** An age or a long time: 0.2 s, 14 s, 3 min, 2 h 10 min, 5 d. */
export function age(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 99.5) return `${value.toFixed(0)} s`;
  if (value < 5940) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

/** A count with k, M, G from 10,000 on. */
export function count(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size < 10000) return String(Math.round(value));
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return (value / unit).toFixed(size / unit < 100 ? 1 : 0) + name;
  }
  return String(value);
}

/** A rate, without its unit: three digits at most below 1,000. */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(1);
  return count(value);
}

/** A share of 1 as a percentage. */
export function share(value) {
  return known(value) ? `${Math.round(value * 100)} %` : UNKNOWN;
}

/** A whole number or a dash. */
export function whole(value) {
  return known(value) ? String(value) : UNKNOWN;
}
