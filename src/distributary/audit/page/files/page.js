"use strict";
// The page's one script. Text from data is only ever set as text, never as markup.
(() => {
  const PAGE = 100, QUIET_SEC = 3600, POLL_MS = 2000, CHANGES = 100;
  const live = document.documentElement.dataset.live === "yes";
  const by = (id) => document.getElementById(id);
  let facts = JSON.parse(by("facts").textContent);
  let shown = PAGE, charts = [], chartKey = "";
  const state = Object.assign({ q: "", only: "", sort: "", dir: "", route: "" }, Object.fromEntries(new URLSearchParams(location.hash.slice(1))));

  const make = (name, text, attributes = {}, children = []) => {
    const made = document.createElement(name);
    if (text !== null && text !== undefined) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const number = (n) => (n === null || n === undefined ? "?" : n.toLocaleString("en-US"));
  const age = (sec) => {
    if (sec === null || sec === undefined) return "-";
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (sec >= 2 * size) return `${Math.round(sec / size)} ${unit}`;
    return `${Math.round(sec)} s`;
  };
  const seconds = (iso) => (iso ? Date.parse(iso) / 1000 : null);
  const since = (iso) => (iso ? Math.max(0, seconds(facts.at) - seconds(iso)) : null);

  // -- in short ------------------------------------------------------------------------------------------
  const rate = () => {
    const known = facts.batches;
    if (known.length < 2) return null;
    const recent = known.filter((one) => one.at > known[known.length - 1].at - 600);
    const span = recent[recent.length - 1].at - recent[0].at;
    return span > 0 ? recent.slice(1).reduce((sum, one) => sum + one.rows, 0) / span : null;
  };
  const tile = (label, value, kind = "") => make("div", null, { class: kind }, [make("b", value), document.createTextNode(label)]);
  const tiles = () => {
    const bad = facts.tables.filter((t) => !t.well).length, rows = rate();
    const runs = { true: "running", false: "not running", null: "unknown" }[String(facts.running)];
    const waits = facts.waiting_files !== null ? `${number(facts.waiting_files)} files` : number(facts.waiting_rows);
    by("tiles").replaceChildren(
      tile("state", facts.unwell.length ? "NOT WELL" : "well", facts.unwell.length ? "bad" : "good"),
      tile("process", runs, facts.running === false ? "warn" : ""),
      tile("since the last batch", age(since(facts.finished_at))),
      tile("rows a second, of the last batches", rows === null ? "-" : number(Math.round(rows))),
      tile("tables", number(facts.tables.length)),
      tile("tables not well", number(bad), bad ? "bad" : "good"),
      tile("rows in tables", number(facts.rows)),
      tile("waiting at the source", waits),
      tile("rows in the quarantine", number(facts.quarantined), facts.quarantined ? "warn" : ""),
    );
  };

  // -- over time -----------------------------------------------------------------------------------------
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const place = (title, unit) => make("div", null, {}, [make("h3", title), make("p", unit, { class: "soft" })]);
  const chart = (place, data, series) => {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const options = {
      width: Math.max(280, place.clientWidth), height: 190, cursor: { drag: { x: true, y: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [axis, { ...axis, size: wide, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en-US")) }],
      series: [{}, ...series],
    };
    charts.push(new uPlot(options, data, place));
  };
  // As wide as its longest number.
  const wide = (_, texts) => 24 + 8 * Math.max(4, ...(texts || []).map((text) => text.length));
  const overTime = (force) => {
    const known = facts.batches, last = known[known.length - 1];
    const key = last ? `${known.length} ${last.stream} ${last.batch}` : "none";
    if (key === chartKey && !force) return;
    chartKey = key;
    charts.forEach((one) => one.destroy());
    charts = [];
    const into = by("charts");
    into.replaceChildren();
    if (!known.length) return into.append(make("p", "no batch yet", { class: "soft" }));
    const at = known.map((one) => one.at), points = { show: known.length < 60 };
    const throughput = place("Throughput", "rows of each batch, when it was done");
    const freshness = place("Freshness", "seconds from the newest record of a batch until it was in its table");
    into.append(throughput, freshness); // both, before either is measured
    chart(throughput, [at, known.map((one) => one.rows), known.map((one) => one.quarantined)], [
      { label: "written", stroke: colour("--blue"), fill: colour("--blue") + "33", width: 2, points },
      { label: "quarantined", stroke: colour("--bad"), width: 2, points },
    ]);
    chart(freshness, [at, known.map((one) => one.behind_sec)], [
      { label: "seconds", stroke: colour("--good"), width: 2, points },
    ]);
  };

  // -- tables --------------------------------------------------------------------------------------------
  const COLUMNS = [
    ["route", "route", (t) => t.route, "t route"],
    ["state", "state", (t) => t.shown, "t state"],
    ["rows", "rows", (t) => number(t.rows), "n"],
    ["age_sec", "age", (t) => age(t.age_sec), "n"],
    ["lag_sec", "event lag", (t) => age(t.lag_sec), "n"],
    ["lag_rows", "waiting", (t) => number(t.lag_rows), "n"],
    ["quarantined", "quarantined", (t) => number(t.quarantined), "n"],
    ["last_batch", "last batch", (t) => (t.last_batch === null ? "-" : t.last_batch), "n"],
    ["engine", "engine", (t) => t.engine, "t"],
  ];
  const CHOICES = {
    unwell: (t) => !t.well,
    bad: (t) => t.quarantined > 0,
    quiet: (t) => t.age_sec === null || t.age_sec > QUIET_SEC,
  };
  const compare = (a, b) => {
    if (a === b) return 0;
    if (a === null || a === undefined) return 1;
    if (b === null || b === undefined) return -1;
    return a < b ? -1 : 1;
  };
  const chosen = () => {
    const wanted = state.q.toLowerCase(), only = CHOICES[state.only] || (() => true);
    const found = facts.tables.filter((t) => only(t) && t.route.toLowerCase().includes(wanted));
    const key = COLUMNS.some(([name]) => name === state.sort) ? state.sort : "";
    if (!key) return found; // as they come: the worst first
    found.sort((a, b) => compare(a[key], b[key]) || compare(a.route, b.route));
    return state.dir === "desc" ? found.reverse() : found;
  };
  const remember = () => {
    const kept = Object.entries(state).filter(([, value]) => value);
    history.replaceState(null, "", kept.length ? `#${new URLSearchParams(kept)}` : location.pathname + location.search);
  };
  const sortBy = (key, isNumber) => {
    const first = isNumber ? "desc" : "asc", second = isNumber ? "asc" : "desc";
    if (state.sort !== key) Object.assign(state, { sort: key, dir: first });
    else if (state.dir === first) state.dir = second;
    else Object.assign(state, { sort: "", dir: "" });
    remember();
    tables();
  };
  const heads = () =>
    make("tr", null, {}, COLUMNS.map(([key, label, , kind]) => {
      const sorted = state.sort !== key ? "none" : state.dir === "desc" ? "descending" : "ascending";
      const button = make("button", label, { type: "button", "data-sort": key });
      button.addEventListener("click", () => { sortBy(key, kind === "n"); by("tables").querySelector(`[data-sort="${key}"]`).focus(); });
      return make("th", null, { class: kind, scope: "col", "aria-sort": sorted }, [button]);
    }));
  const tables = () => {
    const found = chosen(), table = by("tables"), focused = document.activeElement?.dataset?.route;
    table.tHead.replaceChildren(heads());
    table.tBodies[0].replaceChildren(...found.slice(0, shown).map((t) => {
      const kind = t.well ? (t.refused ? "bad" : "fine") : "unwell";
      const row = make("tr", null, { class: kind, tabindex: "0", "data-route": t.route, title: t.error || t.table || "" });
      row.append(...COLUMNS.map(([, , cell, style]) => make("td", cell(t), { class: style })));
      return row;
    }));
    if (focused !== undefined) rowOf(focused)?.focus();
    by("count").textContent = `${number(Math.min(shown, found.length))} of ${number(found.length)}${found.length === facts.tables.length ? "" : `, of ${number(facts.tables.length)} in all`}`;
    const left = found.length - shown;
    by("more").hidden = left <= 0;
    by("more").textContent = `show ${number(Math.min(left, PAGE))} more`;
  };
  const rowOf = (route) => [...by("tables").tBodies[0].rows].find((row) => row.dataset.route === route);

  // -- one table -----------------------------------------------------------------------------------------
  const list = (pairs) => pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([label, value]) => make("p", `${label}: ${value}`));
  const counted = (map) => Object.entries(map || {}).map(([name, rows]) => `${name} ${number(rows)}`).join(", ");
  const told = (step) => [
    step.created ? "new table" : "", step.new_schemas?.length ? `schema id ${step.new_schemas.join(", ")} came` : "",
    Object.keys(step.new_columns || {}).length ? `new columns: ${Object.entries(step.new_columns).map(([n, k]) => `${n} ${k}`).join(", ")}` : "",
    ...Object.entries(step.type_changes || {}).map(([name, [from, to]]) => `${name}: ${from} becomes ${to}`),
    step.error ? `${step.state}: ${step.error}` : "",
  ].filter(Boolean).join("; ");
  const timeline = (past) => {
    const parts = [make("h3", "Schemas")];
    for (const one of past.schemas) {
      const offsets = Object.entries(one.first_offset || {}).map(([p, o]) => `${p}: ${number(o)}`).join(", ");
      parts.push(make("p", `schema id ${one.id}: ${number(one.rows)} rows, first in batch ${one.first_batch ?? "?"} at ${one.first_at ?? "?"}${offsets ? `, offsets ${offsets}` : ""}`));
    }
    parts.push(make("h3", "What changed"));
    for (const step of past.steps) if (told(step)) parts.push(make("p", `batch ${step.batch}, ${step.at}: ${told(step)}`));
    parts.push(make("h3", "Columns now"), make("pre", Object.entries(past.columns).map(([n, k]) => `${n} ${k}`).join("\n") || "none"));
    return parts.concat(past.notes.map((line) => make("p", line, { class: "soft" })));
  };
  const detail = async (focus) => {
    const into = by("detail"), one = facts.tables.find((t) => t.route === state.route);
    into.hidden = !one;
    if (!one) return;
    const body = make("div", null, { id: "past" }, [make("p", live ? "..." : "Its history: distributary history FILE --route R", { class: "soft" })]);
    into.replaceChildren(
      make("h2", one.route, { id: "h-detail" }),
      ...list([
        ["state", one.shown], ["why it is parked", one.error], ["tried again from", one.retry_at], ["failed attempts", one.failures || ""],
        ["rows that wait for it", one.lag_rows || ""], ["table", one.table], ["merged table", one.merged], ["last write", one.last_write],
        ["in the quarantine", counted(one.reasons)], ["rows that break an expectation", counted(one.warnings)], ["wider types", Object.entries(one.widened).map(([n, k]) => `${n}: ${k}`).join(", ")],
      ]),
      body,
    );
    if (focus) into.focus();
    let past = facts.histories[one.route];
    if (!past && live) {
      try {
        const answer = await fetch(`history.json?route=${encodeURIComponent(one.route)}`);
        past = answer.ok ? await answer.json() : null;
      } catch { past = null; }
    }
    if (past && state.route === one.route) body.replaceChildren(...timeline(past));
  };
  const open = (route) => { state.route = route; remember(); detail(true); };
  const close = () => { const route = state.route; state.route = ""; remember(); detail(false); rowOf(route)?.focus(); };

  // -- quarantine, changes, clusters ---------------------------------------------------------------------
  const bytes = (base64) => {
    const raw = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)).slice(0, 240);
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(raw);
      if (!/[\u0000-\u0008\u000e-\u001f]/.test(text)) return text;
    } catch { /* no text */ }
    return [...raw].map((b) => b.toString(16).padStart(2, "0")).join(" ");
  };
  const aside = () => {
    const into = by("aside");
    into.replaceChildren();
    if (facts.groups === null) return into.append(make("p", "it could not be read", { class: "soft" }));
    if (!facts.groups.length) return into.append(make("p", "empty", { class: "soft" }));
    const reasons = new Map();
    for (const group of facts.groups) {
      if (!reasons.has(group.reason)) reasons.set(group.reason, []);
      reasons.get(group.reason).push(group);
    }
    const sum = (groups) => groups.reduce((total, one) => total + one.rows, 0);
    for (const [reason, groups] of [...reasons].sort((a, b) => sum(b[1]) - sum(a[1]))) {
      const most = groups[0], rows = sum(groups);
      const routes = groups.slice(0, 5).map((g) => `${g.route ?? "without a route"} ${number(g.rows)}`).join(", ");
      into.append(make("h3", `${reason}: ${number(rows)} row${rows === 1 ? "" : "s"}`, { "data-reason": reason, "data-rows": rows }), make("p", `${routes}${groups.length > 5 ? ` and ${groups.length - 5} more routes` : ""}`));
      if (most.cause) into.append(make("p", `${most.cause} What to do: ${most.remedy}`, { class: "soft" }));
      for (const sample of most.samples.slice(0, 1)) {
        const where = Object.entries(sample.origin).map(([n, v]) => `${n} ${v}`).join(", ");
        into.append(make("p", `a sample${where ? `, ${where}` : ""}: ${sample.detail || "no detail"}`), make("pre", sample.value === null ? "no value" : bytes(sample.value)));
      }
    }
  };
  const rowsInto = (id, names, rows) => {
    const table = by(id);
    table.tHead.replaceChildren(make("tr", null, {}, names.map((name) => make("th", name, { scope: "col" }))));
    table.tBodies[0].replaceChildren(...rows.map((cells) => make("tr", null, {}, cells.map((cell) => make("td", cell)))));
  };
  const changes = () => {
    const what = (c) => [c.created ? "new table" : "", c.schemas.length ? `schema id ${c.schemas.join(", ")}` : "", c.columns && !c.created ? "new columns" : "",
      ...Object.entries(c.widened).map(([n, k]) => `${n}: ${k}`)].filter(Boolean).join("; ");
    rowsInto("changes", ["when", "batch", "route", "what"], facts.changes.slice(0, CHANGES).map((c) => [c.at, c.batch, c.route, what(c)]));
  };
  const clusters = () => {
    by("s-clusters").hidden = !facts.clusters.length;
    rowsInto("clusters", ["cluster", "state", "routes", "rows", "which"], facts.clusters.map((c) => [
      c.name, c.state ?? "-", number(c.routes.length), number(c.rows), c.routes.slice(0, 8).join(", ") + (c.routes.length > 8 ? " ..." : ""),
    ]));
  };

  // -- all of it -----------------------------------------------------------------------------------------
  const lines = (id, found) => by(id).replaceChildren(...found.map((line) => make("li", line)));
  const head = () => {
    by("head").className = facts.unwell.length ? "unwell" : "well";
    by("headline").textContent = facts.headline;
    by("asof").textContent = `as of ${facts.at}`;
    document.title = `${facts.unwell.length ? "NOT WELL" : "well"}: ${facts.pipeline} - distributary`;
    lines("attention", facts.attention);
    lines("notes", facts.notes);
  };
  const all = () => { head(); tiles(); overTime(false); tables(); aside(); changes(); clusters(); };
  by("q").value = state.q;
  by("only").value = state.only;
  by("q").addEventListener("input", () => { state.q = by("q").value; shown = PAGE; remember(); tables(); });
  by("only").addEventListener("change", () => { state.only = by("only").value; shown = PAGE; remember(); tables(); });
  by("more").addEventListener("click", () => { shown += PAGE; tables(); });
  by("tables").tBodies[0].addEventListener("click", (event) => { const row = event.target.closest("tr"); if (row) open(row.dataset.route); });
  document.addEventListener("keydown", (event) => {
    const typing = /^(input|select|textarea)$/i.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") { if (typing) event.target.blur(); else if (state.route) close(); return; }
    if (typing) return;
    const rows = [...by("tables").tBodies[0].rows], at = rows.indexOf(document.activeElement);
    if (event.key === "/") { event.preventDefault(); by("q").focus(); }
    else if (event.key === "j" || (event.key === "ArrowDown" && at >= 0)) { event.preventDefault(); rows[Math.min(rows.length - 1, at + 1)]?.focus(); }
    else if (event.key === "k" || (event.key === "ArrowUp" && at >= 0)) { event.preventDefault(); rows[Math.max(0, at - 1)]?.focus(); }
    else if (event.key === "Enter" && at >= 0) open(rows[at].dataset.route);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => overTime(true));
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => overTime(true), 200); });
  all();
  detail(false);

  const poll = async () => {
    try {
      const answer = await fetch("facts.json", { cache: "no-store" });
      if (!answer.ok) throw new Error((await answer.text()).trim());
      const before = facts.at;
      facts = await answer.json();
      by("stale").hidden = true;
      if (facts.at !== before) all();
    } catch (error) {
      by("stale").textContent = `no newer facts: ${error.message}`;
      by("stale").hidden = false;
    }
    setTimeout(poll, POLL_MS);
  };
  if (live) setTimeout(poll, POLL_MS);
})();
