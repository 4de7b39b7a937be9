// The figures of the report and of the live page. Times are seconds after the first step.
"use strict";

const DASH = "–", SVG = "http://www.w3.org/2000/svg", ROWS_MOST = 64, LOG_LEAST = 2.5;
const MEANING = {
  placing: "waiting for a place", importing: "importing", compiling: "compiling", joining: "joining", productive: "stepping",
  draining: "leaving", frozen: "frozen", expired: "without a lease", dead: "dead",
};
const ROLE = { stepping: "productive", starting: "importing" };

// ------------------------------------------------------------------ words

const known = (value) => typeof value === "number" && Number.isFinite(value);
const num = (value, digits = 0) =>
  known(value) ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : DASH;
function secs(value) {
  if (!known(value)) return DASH;
  if (Math.abs(value) < 10) return Math.abs(value) < 0.1 ? `${num(1000 * value)} ms` : `${num(value, 2)} s`;
  if (Math.abs(value) < 60) return `${num(value, 1)} s`;
  const whole = Math.round(Math.abs(value)), two = (n) => String(n).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return (value < 0 ? "-" : "") + (h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`);
}
const tick = (value) => (value ? secs(value).replace(/\.0+ s/, " s") : "0");
const cut = (name) => (name.length > 24 ? `${name.slice(0, 11)}…${name.slice(-12)}` : name);

// ------------------------------------------------------------------ elements

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function sheet(width, height, words) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": words });
}
function drawLegend(list, roles, words, more = []) {
  const entries = roles.map((role) => make("li", {}, make("span", { class: role }), words[role]));
  list.replaceChildren(...entries, ...more.map((each) => make("li", {}, each)));
}

// ------------------------------------------------------------------ axes

// What a figure leaves at its left for these names, or for numbers.
function margin(width, names) {
  return width > 560 ? Math.max(44, 12 + 7 * Math.min(24, Math.max(0, ...names.map((each) => each.length)))) : 44;
}
function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high && found.length <= 2 * most; value += step) found.push(value);
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    found.push(...[1, 1.5, 2, 3, 4, 6].map((each) => each * power).filter((each) => low <= each && each <= high));
  return found;
}
function timeTicks(start, stop, most) {
  const sizes = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800, 2592000];
  const step = sizes.find((each) => (stop - start) / each <= most) || 7776000;
  const found = [];
  for (let at = Math.ceil(start / step) * step; at <= stop; at += step) found.push(at);
  return found;
}
function axis(picture, x, start, stop, y, width, values, words) {
  picture.append(draw("line", { class: "axis", x1: x(start), x2: x(stop), y1: y, y2: y }));
  for (const at of values) {
    const anchor = x(at) > width - 26 ? "end" : x(at) < 16 ? "start" : "middle";
    picture.append(draw("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: y }), draw("text", { x: x(at), y: y + 15, "text-anchor": anchor }, words(at)));
  }
}

// ------------------------------------------------------------------ loss

// trained: [x, loss] or [x, median, 10 %, 90 %]; held: [x, loss, what it is]; marks: {x, until, number, words}, the latter
// three as far as they are known. By tokens or, with `timed`, by time.
function drawLoss(place, { trained, held, marks, start, stop, timed, left, words }) {
  const values = [...trained.flatMap((each) => each.slice(1)), ...held.map((each) => each[1])];
  if (!values.length) return;
  const numbered = marks.some((each) => each.number);
  const width = Math.max(260, place.clientWidth), height = numbered ? 230 : 210, bottom = 22, top = numbered ? 18 : 8;
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const log = low > 0 && high > LOG_LEAST * low, scale = log ? Math.log : (value) => value;
  if (!log) [low, high] = [low - 0.04 * (high - low || 1), high + 0.04 * (high - low || 1)];
  const x = (at) => left + ((at - start) / (stop - start)) * (width - left - 8);
  const y = (value) => top + ((scale(high) - scale(value)) / (scale(high) - scale(low))) * (height - top - bottom);
  const picture = sheet(width, height, words);
  for (const value of log ? logTicks(low, high) : ticks(low, high, 5)) {
    picture.append(draw("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) }));
    picture.append(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(+value.toPrecision(4))));
  }
  if (timed) axis(picture, x, start, stop, height - bottom, width, timeTicks(start, stop, width / 90), tick);
  else axis(picture, x, start, stop, height - bottom, width, ticks(start, stop, width / 120), (at) => at.toLocaleString("en", { notation: "compact" }));
  let free = 0;
  for (const { x: at, until, number, words: title } of marks) {
    if (known(until))
      picture.append(draw("rect", { class: "recovery", x: x(at), width: Math.max(0, x(until) - x(at)), y: top, height: height - top - bottom }));
    picture.append(draw("line", { class: "fault", x1: x(at), x2: x(at), y1: top, y2: height - bottom }, draw("title", {}, title)));
    if (!number || x(at) < free) continue;
    picture.append(draw("text", { class: "number", x: x(at), y: 12, "text-anchor": "middle" }, String(number)));
    free = x(at) + 18;
  }
  const point = (at, value) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`;
  if (trained[0]?.length > 2)
    picture.append(draw("polygon", { class: "spread", points: [...trained.map((each) => point(each[0], each[2])), ...trained.map((each) => point(each[0], each[3])).reverse()].join(" ") }));
  picture.append(draw("polyline", { class: "train", points: trained.map((each) => point(each[0], each[1])).join(" ") }));
  for (const [at, loss, title] of held)
    picture.append(draw("circle", { class: "held", cx: x(at), cy: y(loss), r: held.length > 40 ? 2 : 4.5 }, draw("title", {}, title)));
  place.replaceChildren(picture);
}

// ------------------------------------------------------------------ lanes

// lanes: {learner, incarnation, phases, frozen, expired, dead, open}; marks: {target, at, kind, number}. While the run is
// live, what is open goes on to `stop`. Returns the roles that were drawn.
function drawLanes(place, { lanes, marks, start, stop, live, left, words }) {
  const names = [...new Set(lanes.map((each) => each.learner))].slice(0, ROWS_MOST);
  const width = Math.max(260, place.clientWidth), wide = width > 560, dense = names.length > 16, thick = dense ? 8 : 11;
  const bar = wide ? (dense ? 4 : 6) : 17, high = bar + thick + (dense ? 6 : 9), height = high * names.length + 26;
  const x = (at) => left + ((at - start) / (stop - start)) * (width - left - 8);
  const picture = sheet(width, height, words), used = new Set();
  axis(picture, x, start, stop, height - 20, width, timeTicks(start, stop, width / 90), tick);
  const span = (row, from, to, role, thin, whose) => {
    used.add(role);
    const title = draw("title", {}, `${whose}: ${MEANING[role] || role}, ${secs(from)} to ${secs(to)}`);
    picture.append(draw("rect", { class: role, x: x(from).toFixed(2), width: Math.max(thin ? 1 : 0.4, x(to) - x(from)).toFixed(2),
      y: row * high + bar + (thin ? thick + 2 : 0), height: thin ? 4 : thick }, title));
  };
  names.forEach((name, row) => {
    picture.append(draw("text", { class: "name", x: wide ? left - 8 : 2, y: row * high + (wide ? bar + thick - (dense ? 0 : 1) : 13), "text-anchor": wide ? "end" : "start" }, cut(name)));
    for (const lane of lanes.filter((each) => each.learner === name)) {
      const whose = `${name}, incarnation ${lane.incarnation}`;
      lane.phases.forEach(([from, to, phase], index) => {
        const on = lane.open && live && index === lane.phases.length - 1;
        const role = ROLE[phase] || phase;
        span(row, from, on ? stop : to, MEANING[role] ? role : "unexplained", false, whose);
      });
      for (const [from, to] of lane.frozen) span(row, from, to, "frozen", false, whose);
      for (const [from, to] of lane.expired) span(row, from, to, "expired", true, whose);
      if (lane.dead) span(row, ...lane.dead, "dead", true, whose);
    }
    for (const { at, kind, number } of marks.filter((each) => each.target === name)) {
      const tip = row * high + bar;
      picture.append(draw("path", { class: "mark", d: `M${x(at) - 4} ${tip - 6}h8l-4 7z` }, draw("title", {}, `${kind} at ${secs(at)}`)));
      if (number) picture.append(draw("text", { class: "number", x: x(at) + 6, y: tip + 2 }, String(number)));
    }
  });
  place.replaceChildren(picture);
  return Object.keys(MEANING).filter((role) => used.has(role));
}

// ------------------------------------------------------------------ bars

// rows: [name, {role: amount}], each a bar in which the roles follow each other; `words` says an amount at the axis.
function drawBars(place, { rows, roles, most, left, values, words, title }) {
  const width = Math.max(260, place.clientWidth), height = 20 * rows.length + 26;
  const x = (amount) => left + (amount / most) * (width - left - 8), picture = sheet(width, height, title);
  axis(picture, x, 0, most, height - 20, width, values, words);
  rows.forEach(([name, amounts], row) => {
    picture.append(draw("text", { class: "name", x: left - 8, y: 20 * row + 14, "text-anchor": "end" }, cut(name)));
    let from = 0;
    for (const role of roles) {
      const to = from + (amounts[role] || 0);
      picture.append(draw("rect", { class: role, x: x(from).toFixed(2), width: (x(to) - x(from)).toFixed(2), y: 20 * row + 4, height: 13 }, draw("title", {}, `${name}, ${role}: ${words(to - from)}`)));
      from = to;
    }
  });
  place.append(picture);
}
