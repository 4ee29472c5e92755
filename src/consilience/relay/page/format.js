// Numbers, sizes and times as people read them.

const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

export function count(number, what) {
  return `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
}

export function number(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
}

export function bytes(size) {
  let unit = 0;
  while (size >= 1000 && unit < UNITS.length - 1) { size /= 1000; unit += 1; }
  return unit ? `${size.toLocaleString("en", { maximumFractionDigits: size < 10 ? 1 : 0 })}\u00a0${UNITS[unit]}`
    : count(size, "byte");
}

export function duration(seconds) {
  if (seconds < 60) { return `${Math.max(Math.floor(seconds), 0)} s`; }
  if (seconds < 3600) { return `${Math.floor(seconds / 60)} min`; }
  if (seconds < 48 * 3600) {
    const minutes = Math.floor(seconds / 60) % 60;
    return seconds < 6 * 3600 && minutes ? `${Math.floor(seconds / 3600)} h ${minutes} min` : `${Math.floor(seconds / 3600)} h`;
  }
  return `${Math.floor(seconds / 86400)} days`;
}

// Seconds since 1970, as the time until now; `now` is the relay's.
export function ago(time, now) {
  if (!time) { return "never"; }
  return now - time < 3 ? "now" : `${duration(now - time)} ago`;
}

export function clock(time, seconds = false) {
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false, ...(seconds ? { second: "2-digit" } : {}) };
  return new Date(time * 1000).toLocaleTimeString("en", parts);
}

export function date(time) {
  const day = new Date(time * 1000).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
  return `${day}, ${clock(time)}`;
}

export function list(names, others = 0) {
  const all = others ? [...names, count(others, "other")] : names;
  return all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all.at(-1)}`;
}
