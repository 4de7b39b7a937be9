// Draws what /events sends. A run's topics replace each other; lines of its log are appended.
"use strict";

const ENDED = ["finished", "stopped", "failed"], LINES_MAX = 400, SHOWN_MAX = 200, DASH = "–";
const MEANING = { // as in the report
  placing: "waiting for a place", importing: "importing", compiling: "compiling", joining: "joining", productive: "stepping",
  draining: "leaving", frozen: "frozen", expired: "without a lease", dead: "dead",
};
const ROLE = { stepping: "productive", starting: "importing" };
const runs = new Map();
let skew = 0; // seconds that the server's clock is ahead
let server = ""; // with whose name the ids begin

// ------------------------------------------------------------------ words

const known = (value) => typeof value === "number" && Number.isFinite(value);
const num = (value, digits = 0) =>
  known(value) ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : DASH;
const percent = (value) => (known(value) ? `${num(100 * value, 1)} %` : DASH);
const clock = (at) => (known(at) ? new Date(1000 * at).toLocaleTimeString("en-GB") : DASH);
function secs(value) {
  if (!known(value)) return DASH;
  if (Math.abs(value) < 10) return Math.abs(value) < 0.1 ? `${num(1000 * value)} ms` : `${num(value, 2)} s`;
  if (Math.abs(value) < 60) return `${num(value, 1)} s`;
  const whole = Math.round(Math.abs(value)), two = (n) => String(n).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return (value < 0 ? "-" : "") + (h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`);
}
function bytes(value) {
  if (!known(value)) return DASH;
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (value >= size) return `${num(value / size, value < 100 * size ? 1 : 0)} ${unit}`;
  return `${num(value)} B`;
}
const sum = (values) => values.reduce((all, each) => all + (each || 0), 0);
const now = () => Date.now() / 1000 + skew;

// ------------------------------------------------------------------ elements

const SVG = "http://www.w3.org/2000/svg";
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
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
// Rows of cells, changed where they differ, so that focus, selection and a reader's place stay.
function fill(table, rows, styles = []) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, index) => {
    const row = body.rows[index] || body.insertRow();
    row.className = styles[index] || "";
    cells.forEach((text, column) => {
      const cell = row.cells[column] || row.insertCell();
      cell.className = heads[column].className || (text.length > 40 ? "long" : "");
      say(cell, text);
    });
  });
}
function terms(list, entries) {
  while (list.children.length > entries.length) list.lastChild.remove();
  entries.forEach(([term, ...details], index) => {
    const group = list.children[index] || list.appendChild(make("div", {}, make("dt")));
    say(group.firstChild, term);
    details.forEach((text, at) => say(group.children[at + 1] || group.appendChild(make("dd")), text));
  });
}

// ------------------------------------------------------------------ one run

class Run {
  constructor(number) {
    this.number = number;
    this.state = {};
    this.lines = [];
    this.section = document.getElementById("run").content.firstElementChild.cloneNode(true);
    this.section.id = `run-${number}`;
    document.getElementById("runs").append(this.section);
    this.find = (selector) => this.section.querySelector(selector);
    this.find(".filter").addEventListener("input", () => this.showLog());
    for (const button of this.section.querySelectorAll("[data-act]"))
      button.addEventListener("click", () => act(this, button.dataset.act));
    const { pool, learners } = this.find(".control").elements;
    pool.addEventListener("change", () => { learners.value = this.state.status.run.pools[pool.value]; });
    new ResizeObserver(() => this.redraw()).observe(this.section);
  }

  get name() { return this.state.run?.name || "run"; }
  get ended() { return ENDED.includes(this.state.status?.run?.state); }

  take(topic, value) {
    const before = this.state[topic];
    this.state[topic] = value;
    if (topic === "run") say(this.find("h2"), value.name);
    if (topic === "status" || topic === "now" || topic === "summary" || topic === "reading") this.showStatus();
    if (topic === "status" && before?.run?.state && before.run.state !== value.run?.state)
      announce(`${this.name}: ${value.run?.state}`);
    if (topic === "rounds") this.showRounds();
    if (topic === "stories") this.showStories(before);
    if (topic === "curves" || topic === "lanes" || topic === "stories") this.redraw();
  }

  takeLines(lines, lost) {
    this.lines = (lost ? lines : this.lines.concat(lines)).slice(-LINES_MAX);
    this.showLog();
  }

  // ---------------------------------------------------------------- numbers

  showStatus() {
    const status = this.state.status || {}, run = status.run || {}, recent = this.state.now || {};
    const reading = this.state.reading || {}, summary = this.state.summary, learners = status.learners || [];
    const state = status.missing ? "no status" : run.state || "…", word = this.find(".word");
    say(word, state);
    word.className = `word ${state === "failed" || summary?.ok === false && state === "finished" ? "bad" : state === "running" || state === "finished" ? "good" : "open"}`;
    const stepping = learners.filter((each) => each.state === "stepping").length;
    const silent = now() - status.written_at, elapsed = (this.ended || silent > 15 ? status.written_at : now()) - run.started_at;
    say(this.find(".sentence"), [
      status.missing || `step ${num(run.syncer_step)} of ${num(run.target_syncer_steps)}, ${percent(run.progress)}`,
      known(run.started_at) ? `${secs(elapsed)} elapsed` : "",
      !this.ended && run.eta_s > 0 ? `${secs(run.eta_s)} left` : "",
      this.ended ? summary?.reason || "" : learners.length ? `${stepping} of ${learners.length} learners stepping` : "",
      !this.ended && silent > 15 ? `silent for ${secs(silent)}: it is starting, ending or dead` : "",
    ].filter(Boolean).join(" · "));
    const bar = this.find(".bar"), share = 100 * Math.min(1, Math.max(0, run.progress || 0));
    bar.setAttribute("aria-valuenow", share.toFixed(1));
    bar.firstElementChild.style.width = `${share}%`;
    const warnings = [
      ...(run.conditions || []).filter((each) => each.status === "False" && each.type !== "Ended").map((each) => `${each.type}: ${each.message}`),
      ...(run.eval_fault ? [`an evaluation failed: ${run.eval_fault}`] : []),
      ...(reading.damage || []),
      ...(summary?.broken || []).map((each) => `check ${each.name}: ${each.status}: ${each.reason}`),
    ];
    const list = this.find(".warnings");
    list.hidden = !warnings.length;
    if (list.dataset.text !== (list.dataset.text = warnings.join("\n"))) list.replaceChildren(...warnings.map((each) => make("li", {}, each)));
    const losses = learners.map((each) => each.loss).filter(known), unit = run.loss_unit || "";
    const faults = sum(Object.values(status.orchestrator?.faults || {}));
    const processed = run.tokens_processed, ended = this.ended;
    const lastly = (words, value) => (ended ? words : `${value} ${words}`);
    terms(this.find(".tiles"), [
      ["tokens per second", num(ended ? run.tokens_per_s : recent.tokens_per_s), ended ? "over the run" : `${num(run.tokens_per_s)} over the run`],
      ended
        ? ["goodput", percent(summary?.goodput_time), "of the learners' time, in committed steps"]
        : ["tokens kept", percent(run.kept_share), "of those processed, over the run"],
      ["participation", percent(ended ? recent.participation_so_far : recent.participation), lastly("over the run", percent(recent.participation_so_far))],
      ["training loss", known(losses[0]) ? num(sum(losses) / losses.length, 3) : DASH, unit],
      ["held-out loss", num(run.eval_loss, 3), unit],
      ["tokens committed", num(run.tokens_committed), `of ${num(processed)} processed`],
      ["steps a round", num(run.round_steps, 1), "inner steps of the median learner"],
      ["faults injected", num(faults), Object.entries(status.orchestrator?.faults || {}).map(([kind, count]) => `${count} ${kind}`).join(", ")],
    ]);
    fill(this.find(".learners"), learners.map((each) => [
      each.name, each.state || DASH, num(each.step), num(each.tokens_per_s), num(each.loss, 3), num(each.round_steps, 1),
      num(each.version_lag), num(sum(Object.values(each.restarts || {}))), each.last_fault || DASH,
    ]));
    this.showLinks(learners);
    this.showSafe(status, summary, reading);
    if (mayControl) this.showControl(run, learners);
  }

  showLinks(learners) {
    const rows = [], styles = [];
    for (const region of new Set(learners.map((each) => each.region || ""))) {
      const own = learners.filter((each) => (each.region || "") === region);
      const add = (cells, style = "") => { rows.push(cells); styles.push(style); };
      const total = (name) => bytes(sum(own.map((each) => each.counts?.[name])));
      add([region || "one region", `all ${own.length}`, total("contribution_bytes"), total("version_bytes"), "", "", ""], "total");
      for (const each of own)
        add([region, each.name, bytes(each.counts?.contribution_bytes), bytes(each.counts?.version_bytes),
          secs(each.link?.latency_s), known(each.link?.bytes_s) ? `${bytes(each.link.bytes_s)}/s` : DASH, each.link?.codec || DASH]);
    }
    fill(this.find(".links"), rows, styles);
  }

  showSafe(status, summary, reading) {
    const durability = status.durability || {}, journal = durability.journal, checkpoint = durability.checkpoint;
    const shards = status.syncer?.shards || [], pace = status.syncer || {};
    terms(this.find(".safe"), [
      ["syncer", `epoch ${num(pace.epoch)}, quorum ${pace.quorum ?? DASH}, grace ${secs(pace.grace_s)}` + (pace.down_s ? `, down for ${secs(pace.down_s)}` : "")],
      ["journal", journal ? `${bytes(journal.bytes)} in ${num(journal.groups)} groups, ${num(journal.facts)} facts; a write takes ${secs(journal.write_s)}${journal.trouble ? `; ${journal.trouble}` : ""}` : durability.mode || DASH],
      ["shards", shards.length ? shards.map((each, index) => `${index}: ${each.trouble || "serves"}`).join(", ") : "in the syncer's process"],
      ["checkpoint", checkpoint ? `${checkpoint.snapshot}, at step ${num(checkpoint.syncer_step)}, ${clock(checkpoint.at)}` : "none yet"],
      ["checks", summary ? summary.checks : this.ended ? "not made" : `made at the end; now: diloco check ${this.state.run?.folder || ""}`],
      ["log", `${num(reading.facts)} facts read${reading.whole ? "" : ", and reading on"}`],
    ]);
  }

  showRounds() {
    const brief = (name) => name.replace(/^learner-/, "");
    const names = [...new Set((this.state.status?.learners || []).map((each) => each.name))];
    fill(this.find(".rounds"), this.state.rounds.map((each) => {
      const there = each.learners.map(([learner]) => learner), away = names.filter((name) => !there.includes(name));
      const words = there.length > 6 && away.length < there.length
        ? away.length ? ` without ${away.map(brief).join(", ")}` : "" : `: ${there.map(brief).join(", ")}`;
      return [num(each.syncer_step), num(each.fragment), `${there.length} of ${each.live}${words}`, secs(each.quorum_s), secs(each.grace_s), secs(each.sync_s), each.reason];
    }));
  }

  showStories(before) {
    const stories = this.state.stories, counted = sum(Object.values(this.state.status?.orchestrator?.faults || {}));
    this.find(".stories").replaceChildren(...stories.map((each) => make("li", {}, each.words)));
    const older = counted > stories.length ? ` ${num(counted)} were injected; diloco report tells of all.` : "";
    say(this.find(".faults-words"), stories.length ? `The newest first.${older}` : "None so far.");
    if (before && stories.length && stories[0].words !== before[0]?.words) announce(`${this.name}: ${stories[0].words}`);
  }

  showLog() {
    const words = this.find(".filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (each) => `${each.writer} ${each.kind} ${each.text}`.toLowerCase();
    const found = this.lines.filter((each) => words.every((word) => text(each).includes(word)));
    fill(this.find(".log table"), found.slice(-SHOWN_MAX).reverse().map((each) => [clock(each.at), each.writer, each.kind.replace(/(?<=[a-z])(?=[A-Z])/g, "\u200b"), each.text]));
    say(this.find(".log-words"), `${found.length} of the newest ${this.lines.length} facts; steps, adoptions and rounds are left out`);
  }

  showControl(run, learners) {
    const form = this.find(".control");
    form.hidden = this.ended;
    if (choices(form.elements.pool, Object.keys(run.pools || {}))) form.elements.pool.dispatchEvent(new Event("change"));
    choices(form.elements.kind, mayControl.kinds);
    choices(form.elements.target, [...learners.map((each) => each.name), mayControl.syncer]);
  }

  // ---------------------------------------------------------------- figures

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (this.section.hidden) return;
      this.drawLoss();
      this.drawLanes();
    });
  }

  // The time that both figures show, in seconds after the first step.
  get span() {
    const { curves, lanes } = this.state, origin = curves?.origin ?? lanes?.origin;
    if (!known(origin)) return null;
    const ends = [1, ...(curves.points || []).map(([at]) => at - origin), ...(lanes?.lanes || []).map((each) => each.phases.at(-1)?.[1] || 0)];
    const start = Math.min(0, ...(lanes?.lanes || []).map((each) => each.phases[0]?.[0] ?? 0));
    const live = !this.ended && this.state.status?.written_at && now() - this.state.status.written_at < 15;
    return { origin, start, stop: Math.max(...ends, live ? now() - origin : 0), live };
  }

  // [target, seconds, kind] of faults that were injected, and of deaths that none explains.
  get marks() {
    const struck = this.state.lanes?.struck || [], same = (one, mark) => mark[0] === one.target && Math.abs(mark[1] - one.at_s) < 0.1;
    const told = (this.state.stories || []).filter((each) => !struck.some((mark) => same(each, mark)));
    return [...struck, ...told.map((each) => [each.target, each.at_s, each.kind])];
  }

  // What both leave for names and numbers.
  margin(width) {
    const names = (this.state.lanes?.lanes || []).map((each) => each.learner.length);
    return width > 560 ? Math.max(44, 12 + 7 * Math.min(24, Math.max(0, ...names))) : 44;
  }

  drawLoss() {
    const place = this.find(".loss"), curves = this.state.curves, span = this.span;
    if (!curves || !span) return;
    const width = Math.max(260, place.clientWidth), height = 210, left = this.margin(width), bottom = 22, top = 8;
    const trained = curves.points.filter((each) => known(each[3]));
    // A held-out loss is of the parameters of a step: at the time of that.
    const when = (step, at) => (step ? curves.points.find((each) => each[1] >= step)?.[0] ?? at : span.origin);
    const held = curves.held_out.filter((each) => known(each[2])).map(([at, step, loss]) => [when(step, at), step, loss]);
    const values = [...trained.map((each) => each[3]), ...held.map((each) => each[2])];
    say(this.find(".loss-words"), values.length
      ? `Line: training loss, the mean of all learners' steps. Dots: held-out loss. Vertical lines: faults. ${unitWords(this)}` : "No step has told a loss yet.");
    if (!values.length) return;
    let [low, high] = [Math.min(...values), Math.max(...values)];
    [low, high] = [low - 0.04 * (high - low || 1), high + 0.04 * (high - low || 1)];
    const x = (s) => left + ((s - span.start) / (span.stop - span.start)) * (width - left - 8);
    const y = (v) => top + ((high - v) / (high - low)) * (height - top - bottom);
    const newest = trained.at(-1), tested = held.at(-1);
    const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label":
      `Loss over time: training ${num(newest?.[3], 3)}, held out ${num(tested?.[2], 3)} at the end` });
    for (const value of ticks(low, high, 5)) {
      picture.append(draw("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) }));
      picture.append(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(+value.toPrecision(4))));
    }
    timeAxis(picture, span, x, height - bottom, width);
    for (const [target, at, kind] of this.marks)
      picture.append(draw("line", { class: "fault", x1: x(at), x2: x(at), y1: top, y2: height - bottom }, draw("title", {}, `${kind} ${target}`)));
    const path = trained.map((each) => `${x(each[0] - span.origin).toFixed(1)},${y(each[3]).toFixed(1)}`).join(" ");
    picture.append(draw("polyline", { class: "train", points: path }));
    for (const [at, step, loss] of held)
      picture.append(draw("circle", { class: "held", cx: x(at - span.origin), cy: y(loss), r: 4.5 }, draw("title", {}, `step ${step}: ${num(loss, 4)}`)));
    place.replaceChildren(picture);
  }

  drawLanes() {
    const place = this.find(".lanes"), told = this.state.lanes, span = this.span;
    if (!told || !span) return;
    const names = [...new Set(told.lanes.map((each) => each.learner))].slice(0, 64);
    const width = Math.max(260, place.clientWidth), wide = width > 560;
    const left = this.margin(width);
    const dense = names.length > 16, thick = dense ? 8 : 11;
    const bar = wide ? (dense ? 4 : 6) : 17, high = bar + thick + (dense ? 6 : 9), height = high * names.length + 26;
    const x = (s) => left + ((s - span.start) / (span.stop - span.start)) * (width - left - 8);
    const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label":
      `What ${names.length} learners did over time; the table below says what they do now` });
    timeAxis(picture, span, x, height - 20, width);
    const used = new Set(), marks = this.marks;
    const span_ = (row, start, stop, role, thin, words) => {
      used.add(role);
      const title = draw("title", {}, `${words}: ${MEANING[role] || role}, ${secs(start)} to ${secs(stop)}`);
      picture.append(draw("rect", { class: role, x: x(start).toFixed(2), width: Math.max(thin ? 1 : 0.4, x(stop) - x(start)).toFixed(2),
        y: row * high + bar + (thin ? thick + 2 : 0), height: thin ? 4 : thick }, title));
    };
    names.forEach((name, row) => {
      const shown = name.length > 24 ? `${name.slice(0, 11)}…${name.slice(-12)}` : name;
      picture.append(draw("text", { class: "name", x: wide ? left - 8 : 2, y: row * high + (wide ? bar + thick - (dense ? 0 : 1) : 13), "text-anchor": wide ? "end" : "start" }, shown));
      for (const lane of told.lanes.filter((each) => each.learner === name)) {
        const words = `${name}, incarnation ${lane.incarnation}`;
        lane.phases.forEach(([start, stop, phase], index) => {
          const on = lane.open && span.live && index === lane.phases.length - 1;
          const role = ROLE[phase] || phase;
          span_(row, start, on ? span.stop : stop, MEANING[role] ? role : "unexplained", false, words);
        });
        for (const [start, stop] of lane.frozen) span_(row, start, stop, "frozen", false, words);
        for (const [start, stop] of lane.expired) span_(row, start, stop, "expired", true, words);
        if (lane.dead) span_(row, ...lane.dead, "dead", true, words);
      }
      for (const [, at, kind] of marks.filter(([target]) => target === name))
        picture.append(draw("path", { class: "mark", d: `M${x(at) - 4} ${row * high + bar - 6}h8l-4 7z` }, draw("title", {}, `${kind} at ${secs(at)}`)));
    });
    place.replaceChildren(picture);
    const keys = Object.keys(MEANING).filter((role) => used.has(role));
    const legend = marks.length ? [make("li", {}, "▼ fault")] : [];
    this.find(".legend").replaceChildren(...keys.map((role) => make("li", {}, make("span", { class: role }), MEANING[role])), ...legend);
  }
}

const unitWords = (run) => (run.state.status?.run?.loss_unit ? `In ${run.state.status.run.loss_unit}.` : "");

function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
  return found;
}

function timeAxis(picture, span, x, y, width) {
  const sizes = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800, 2592000];
  const step = sizes.find((each) => (span.stop - span.start) / each <= width / 90) || 7776000;
  picture.append(draw("line", { class: "axis", x1: x(span.start), x2: x(span.stop), y1: y, y2: y }));
  for (let at = Math.ceil(span.start / step) * step; at <= span.stop; at += step) {
    const words = at ? secs(at).replace(/\.0+ s/, " s") : "0";
    const anchor = x(at) > width - 26 ? "end" : x(at) < 16 ? "start" : "middle";
    picture.append(draw("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: y }), draw("text", { x: x(at), y: y + 15, "text-anchor": anchor }, words));
  }
}

function choices(select, values) {
  if (select.dataset.text === values.join()) return false;
  const chosen = select.value;
  select.dataset.text = values.join();
  select.replaceChildren(...values.map((each) => make("option", {}, each)));
  if (values.includes(chosen)) select.value = chosen;
  return values.length > 0;
}

function announce(text) {
  document.getElementById("news").textContent = text;
}

// ------------------------------------------------------------------ tabs

let shown = "all";
function showTabs() {
  const tabs = document.getElementById("tabs"), keys = ["all", ...runs.keys()];
  tabs.hidden = runs.size < 2;
  if (tabs.hidden) return;
  keys.forEach((key, index) => {
    let tab = tabs.children[index];
    if (!tab) {
      tab = tabs.appendChild(make("button", { type: "button", role: "tab" }));
      tab.addEventListener("click", () => { shown = key; showTabs(); });
      tab.addEventListener("keydown", (event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!move) return;
        shown = keys[(index + move + keys.length) % keys.length];
        showTabs();
        tabs.querySelector("[aria-selected=true]").focus();
      });
    }
    tab.setAttribute("aria-selected", String(key === shown));
    tab.tabIndex = key === shown ? 0 : -1;
    tab.setAttribute("aria-controls", key === "all" ? "runs" : `run-${key}`);
    say(tab, key === "all" ? "side by side" : runs.get(key).name);
  });
  for (const [key, run] of runs) {
    run.section.hidden = shown !== "all" && key !== shown;
    run.section.setAttribute("role", "tabpanel");
    run.section.setAttribute("aria-label", run.name);
    run.redraw();
  }
}

// ------------------------------------------------------------------ control

let mayControl = null;

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told;
}

async function session() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname);
    await post("session", { token }).catch((error) => link(error.message, true));
  }
  const answer = await (await fetch("session")).json();
  mayControl = answer.control ? answer : null;
}

async function act(run, what) {
  const form = run.find(".control"), answer = form.querySelector(".answer");
  const [pool, kind, target] = ["pool", "kind", "target"].map((name) => form.elements[name].value);
  const words = { stop: `Stop ${run.name}?`, fault: `${kind} ${target} of ${run.name}?` }[what];
  if (words && !confirm(words)) return;
  say(answer, "asking");
  try {
    say(answer, (await post("act", { run: run.number, act: what, pool, learners: form.elements.learners.valueAsNumber, kind, target })).told);
  } catch (error) {
    say(answer, error.message);
  }
}

// ------------------------------------------------------------------ the stream

function link(text, cut) {
  const place = document.getElementById("link");
  say(place, text);
  place.className = cut ? "cut" : "";
}

function listen() {
  const source = new EventSource("events");
  source.onopen = () => link("live");
  source.onerror = () => {
    const all = [...runs.values()];
    if (all.length && all.every((run) => run.ended)) link(`over; see it again: diloco watch ${all.map((run) => run.name).join(" ")}`);
    else link(source.readyState === EventSource.CLOSED ? "the server answers no more: reload" : "cut off; connecting again", true);
  };
  source.onmessage = (event) => {
    const news = JSON.parse(event.data);
    const name = event.lastEventId.split("-")[0];
    if (name !== server) for (const run of runs.values()) run.takeLines([], true); // of an earlier process
    server = name;
    skew = news.at - Date.now() / 1000;
    const of = (number) => runs.get(number) || runs.set(number, new Run(number)).get(number);
    const fresh = runs.size;
    for (const { run, topic, value } of news.states) of(run).take(topic, value);
    for (const [run, lines] of Object.entries(news.lines)) of(Number(run)).takeLines(lines, news.lost.includes(Number(run)));
    if (runs.size !== fresh || news.states.some((each) => each.topic === "run")) showTabs();
    link("live");
    document.title = [...runs.values()].map((each) => `${each.name} ${percent(each.state.status?.run?.progress)}`).join(", ");
  };
}

setInterval(() => {
  for (const run of runs.values()) if (!run.ended && !document.hidden) { run.showStatus(); run.redraw(); }
}, 1000);
session().catch(() => null).finally(listen);
