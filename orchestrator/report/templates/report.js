
// ------------------------------------------------------------------ the report

const told = JSON.parse(document.getElementById("told").textContent);
const names = [...new Set(told.lanes.map((each) => each.learner))];
const start = Math.min(0, ...told.lanes.map((each) => each.phases[0]?.[0] ?? 0)), stop = Math.max(told.end, start + 0.001);
const marks = told.marks.map((each) => ({ ...each, at: each.at_s, until: each.until_s }));

function loss(place, timed) {
  const along = (seconds, tokens) => (timed ? seconds : tokens);
  const struck = marks.map((each) => ({ x: along(each.at, each.tokens), until: along(each.until), number: each.number, words: `${each.kind} ${each.target}` }));
  const most = Math.max(1, ...[...told.trained, ...told.held].map(([, tokens]) => tokens));
  drawLoss(place, {
    trained: told.trained.map(([seconds, tokens, ...values]) => [along(seconds, tokens), ...values]),
    held: told.held.map(([seconds, tokens, value]) => [along(seconds, tokens), value, `held-out: ${num(value, 4)}`]),
    marks: struck.sort((one, other) => one.x - other.x),
    start: along(start, 0), stop: along(stop, most), timed, left: 44, words: place.dataset.words,
  });
}
const FIGURES = {
  "loss-by-tokens": (place) => loss(place, false),
  "loss-by-time": (place) => loss(place, true),
  lanes(place, legend) {
    const left = margin(place.clientWidth, names), used = drawLanes(place, { lanes: told.lanes, marks, start, stop, left, words: place.dataset.words });
    drawLegend(legend, used, MEANING, marks.length ? ["▼ fault"] : []);
  },
  time(place, legend) {
    const rows = told.time, left = margin(place.clientWidth, rows.map(([name]) => name)), whole = Math.max(...rows.map(([, each]) => sum(each)));
    const roles = Object.keys(told.groups).filter((role) => rows.some(([, each]) => each[role] > whole * 5e-4));
    const rest = Math.max(0.001, ...rows.map(([, each]) => sum(each) - each.productive));
    const title = place.dataset.words, percent = (amount) => `${num((100 * amount) / whole)} %`;
    place.replaceChildren();
    drawBars(place, { rows, roles, most: whole, left, values: [0, 0.25, 0.5, 0.75, 1].map((each) => each * whole), words: percent, title });
    const others = roles.filter((role) => role !== "productive");
    drawBars(place, { rows, roles: others, most: rest, left, values: ticks(0, rest, 6), words: tick, title: `${title} Without productive time.` });
    drawLegend(legend, roles, told.groups);
  },
};
const sum = (amounts) => Object.values(amounts).reduce((all, each) => all + each, 0);

function show() {
  for (const place of document.querySelectorAll("[data-figure]")) FIGURES[place.dataset.figure](place, place.nextElementSibling);
}
addEventListener("resize", show);
show();
