// Draws what /events sends. A run's topics replace each other; lines of its log are appended.
"use strict";

const ENDED = ["finished", "stopped", "failed"], LINES_MAX = 400, SHOWN_MAX = 200;
const runs = new Map();
let skew = 0; // seconds that the server's clock is ahead
let server = ""; // with whose name the ids begin

// ------------------------------------------------------------------ words

const percent = (value) => (known(value) ? `${num(100 * value, 1)} %` : DASH);
const clock = (at) => (known(at) ? new Date(1000 * at).toLocaleTimeString("en-GB") : DASH);
function bytes(value) {
  if (!known(value)) return DASH;
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (value >= size) return `${num(value / size, value < 100 * size ? 1 : 0)} ${unit}`;
  return `${num(value)} B`;
}
const sum = (values) => values.reduce((all, each) => all + (each || 0), 0);
const now = () => Date.now() / 1000 + skew;

// ------------------------------------------------------------------ elements

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

  // Faults that were injected, and deaths that none explains.
  get marks() {
    const struck = this.state.lanes?.struck || [], same = (one, mark) => mark[0] === one.target && Math.abs(mark[1] - one.at_s) < 0.1;
    const told = (this.state.stories || []).filter((each) => !struck.some((mark) => same(each, mark)));
    return [...struck, ...told.map((each) => [each.target, each.at_s, each.kind])].map(([target, at, kind]) => ({ target, at, kind }));
  }

  drawLoss() {
    const place = this.find(".loss"), curves = this.state.curves, span = this.span;
    if (!curves || !span) return;
    // A held-out loss is of the parameters of a step: at the time of that.
    const when = (step, at) => (step ? curves.points.find((each) => each[1] >= step)?.[0] ?? at : span.origin) - span.origin;
    const trained = curves.points.filter((each) => known(each[3])).map((each) => [each[0] - span.origin, each[3]]);
    const held = curves.held_out.filter((each) => known(each[2])).map(([at, step, loss]) => [when(step, at), loss, `step ${step}: ${num(loss, 4)}`]);
    say(this.find(".loss-words"), trained.length || held.length
      ? `Line: training loss, the mean of all learners' steps. Dots: held-out loss. Vertical lines: faults. ${unitWords(this)}` : "No step has told a loss yet.");
    const marks = this.marks.map(({ target, at, kind }) => ({ x: at, words: `${kind} ${target}` }));
    const words = `Loss over time: training ${num(trained.at(-1)?.[1], 3)}, held out ${num(held.at(-1)?.[1], 3)} at the end`;
    drawLoss(place, { ...span, trained, held, marks, timed: true, left: this.margin(place), words });
  }

  drawLanes() {
    const place = this.find(".lanes"), told = this.state.lanes, span = this.span, marks = this.marks;
    if (!told || !span) return;
    const words = "What the learners did over time; the table below says what they do now";
    const used = drawLanes(place, { ...span, lanes: told.lanes, marks, left: this.margin(place), words });
    drawLegend(this.find(".legend"), used, MEANING, marks.length ? ["▼ fault"] : []);
  }

  // The same for both, so that their times stand below each other.
  margin(place) {
    return margin(place.clientWidth, (this.state.lanes?.lanes || []).map((each) => each.learner));
  }
}

const unitWords = (run) => (run.state.status?.run?.loss_unit ? `In ${run.state.status.run.loss_unit}.` : "");

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
