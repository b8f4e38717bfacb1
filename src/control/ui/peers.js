// What the node says of other nodes: coverage, lag, routes, and how they answer.
import { at, draw, each, element, matrix, number, remark, rows, say, show, thin } from "./paint.js";
import { OWNERS_MAX } from "./reading.js";
import { FRESH_MS, LOOKS, behind, byNeed, cell, sight } from "./streams.js";
import {
  GAP, badness, bytes, count, coverageWords, duration, many, micros, modeClass, percent, reasonWords, sum, worstMode,
} from "./words.js";

// Members and batches that are drawn at most.
const MEMBERS_MAX = 128;
const BATCHES_MAX = 64;
// Rows of tables that are shown in part until somebody asks for all, and which rows those are.
const PARTS = { streams: [16, "worst"], batches: [8, "newest"], peers: [16, "worst"] };
// Names of one cell before the rest is counted.
const NAMED_MAX = 4;
// Rows of a table of the matrix if it has few columns; further ones go beside it.
const MATRIX_ROWS = 16;
const NARROW_COLUMNS = 4;
// How far back the drawing of ages goes.
const COURSE_MS = 300_000;

const others = (page) => page.membership.members.filter((member) => member.node_id !== page.identity.node_id);

function few(names) {
  const rest = names.length - NAMED_MAX;
  return names.slice(0, NAMED_MAX).join("; ") + (rest > 0 ? `; and ${rest} more` : "");
}

const whole = new Set();

// The rows of a table that are to be shown now.
function part(id, list, short) {
  const [most, which] = PARTS[id];
  const button = at(`${id}-all`);
  show(button, list.length > short.length || whole.has(id));
  say(button, whole.has(id) ? `Show the ${most} ${which}` : `Show all ${count(list.length)}; these are the ${most} ${which}`);
  return whole.has(id) ? list : short;
}

// Calls back when somebody wants to see more, or less.
export function onMore(repaint) {
  for (const id of Object.keys(PARTS)) {
    at(`${id}-all`).addEventListener("click", () => {
      if (!whole.delete(id)) whole.add(id);
      repaint();
    });
  }
}

// The streams of each node by shard; of two lives the one that is a member.
function byNode(page, streams) {
  const lives = new Set(page.membership.members.map((member) => member.incarnation));
  const nodes = new Map();
  for (const stream of streams) {
    const of = nodes.get(stream.node_id) ?? new Map();
    if (!of.has(stream.shard) || lives.has(stream.incarnation)) of.set(stream.shard, stream);
    nodes.set(stream.node_id, of);
  }
  return nodes;
}

function legend(streams) {
  const looks = streams.map((stream) => sight(stream).look);
  const make = () => {
    const item = element("li");
    item.append(element("span", "sample"), element("span"));
    return item;
  };
  each(at("legend"), LOOKS, make, (item, { look, word, means }) => {
    const number = looks.filter((one) => one === look).length;
    say(item.children[0], word, `sample state-${look}`);
    say(item.children[1], `${many(number, "stream")}: ${means}`);
  });
}

export function coverage(page, { streams, more }) {
  say(at("coverage-words"), `${page.coverage}: ${coverageWords(page.coverage)}.`);
  legend(streams);
  const [nodes, members] = [byNode(page, streams), others(page)];
  const shown = members.slice(0, MEMBERS_MAX);
  const known = new Set(members.map((member) => member.node_id));
  const gone = [...nodes.keys()].filter((node) => !known.has(node)).map((node) => ({ node_id: node, shards: 0 }));
  const lines = [...shown, ...gone].map((member) => ({ member, of: nodes.get(member.node_id) ?? new Map() }));
  const columns = Math.max(1, ...lines.map(({ member, of }) => Math.max(member.shards, ...[...of.keys()].map((shard) => shard + 1))));
  const cells = lines.map(({ member, of }) => [
    { text: member.node_id, note: member.shards === 0 ? "no member now" : "" },
    ...Array.from({ length: columns }, (_, shard) => cell(of.get(shard), shard < member.shards && !more)),
  ]);
  const height = columns <= NARROW_COLUMNS ? MATRIX_ROWS : Math.max(1, cells.length);
  const tables = [];
  for (let from = 0; from < cells.length; from += height) {
    const part = cells.slice(from, from + height);
    const headings = ["Member", ...Array.from({ length: columns }, (_, shard) => `shard ${shard}`)];
    tables.push({ key: `${columns}`, caption: `Members ${from + 1} to ${from + part.length} of ${cells.length}`, headings, cells: part });
  }
  matrix(at("matrix"), tables);
  const left = members.length - shown.length;
  remark("matrix-more", [
    left > 0 ? `${many(left, "member")} more than the ${MEMBERS_MAX} shown here: orbitkv status lists all.` : "",
    more ? `There are more than the ${count(OWNERS_MAX)} streams read here: orbitkv owners lists all.` : "",
  ].join(" ").trim());
}

function lagRow(stream, full) {
  const { look, word } = sight(stream);
  const lag = behind(stream);
  const fill = look === "live" ? "good" : "bad";
  const age = stream.age_ms === null ? "never fresh" : duration(stream.age_ms);
  return [
    { text: `${stream.node_id}/${stream.shard}`, note: `on core ${stream.core}` },
    {
      text: word,
      word: look === "live" ? "good" : look === "old" || look === "repair" ? "doubt" : "bad",
      note: stream.lacking_ms === null ? (stream.misfit ? "no room for what it has" : "") : `lacking for ${duration(stream.lacking_ms)}`,
    },
    stream.installed
      ? { bars: [thin({ share: lag / full, fill: lag > 0 ? "two" : "good" })], text: many(lag, "record") }
      : { text: "no view", word: "bad" },
    { bars: [thin({ share: stream.age_ms === null ? 1 : stream.age_ms / FRESH_MS, fill })], text: age },
    number(count(stream.applied)),
    number(count(stream.source_head)),
    number(count(stream.rows)),
  ];
}

export function lag(page, { streams }) {
  const sorted = [...streams].sort(byNeed);
  const installed = streams.filter((stream) => stream.installed);
  const most = Math.max(0, ...installed.map(behind));
  const full = Math.max(1000, most);
  const rearmost = Math.max(0, ...page.shards.map((shard) => shard.peers?.lag_records_max ?? 0));
  say(at("lag-words"), [
    `${many(streams.length, "owner stream")}, ${count(streams.length - installed.length)} without a view; ${most > 0 ? `no view is more than ${many(most, "record")} behind` : "no view is behind"}.`,
    `Of the peers that follow this node the rearmost is ${many(rearmost, "record")} behind.`,
    `A full bar is ${count(full)} records, or ${duration(FRESH_MS)}, beyond which absence is not claimed.`,
  ].join(" "));
  const shown = part("streams", sorted, sorted.slice(0, PARTS.streams[0]));
  rows(at("lag-rows"), shown.map((stream) => lagRow(stream, full)));
}

// The ages seen since this page was opened: `{ at, age_ms }`, the age null where the node did not answer.
export function course(moments, now) {
  const [left, right, top, bottom] = [54, 752, 10, 122];
  const seen = moments.filter((moment) => now - moment.at <= COURSE_MS);
  const ages = seen.filter((moment) => moment.age_ms !== null).map((moment) => moment.age_ms);
  const highest = Math.max(1.2 * FRESH_MS, ...ages);
  const x = (moment) => right - ((now - moment.at) / COURSE_MS) * (right - left);
  const y = (ms) => bottom - (ms / highest) * (bottom - top);
  const shapes = [0, highest / 2, highest].flatMap((ms) => [
    ["line", { class: "grid", x1: left, x2: right, y1: y(ms), y2: y(ms) }],
    ["text", { x: left - 6, y: y(ms) + 4, "text-anchor": "end" }, duration(ms)],
  ]);
  for (const minutes of [5, 4, 3, 2, 1, 0]) {
    const place = right - ((minutes * 60_000) / COURSE_MS) * (right - left);
    const anchor = minutes === 0 ? "end" : minutes === 5 ? "start" : "middle";
    shapes.push(["text", { x: place, y: bottom + 18, "text-anchor": anchor }, minutes === 0 ? "now" : `${minutes} min ago`]);
  }
  shapes.push(["line", { class: "limit", x1: left, x2: right, y1: y(FRESH_MS), y2: y(FRESH_MS) }]);
  shapes.push(["text", { class: "limit-words", x: left + 6, y: y(FRESH_MS) - 4 }, "no longer fresh"]);
  let run = [];
  const end = () => {
    if (run.length > 0) shapes.push(["polyline", { class: "line", points: run.join(" ") }]);
    run = [];
  };
  seen.forEach((moment, index) => {
    if (moment.age_ms !== null) return void run.push(`${x(moment).toFixed(1)},${y(moment.age_ms).toFixed(1)}`);
    end();
    const until = seen[index + 1] ?? { at: now };
    shapes.push(["line", { class: "gap", x1: x(moment), x2: x(until), y1: bottom, y2: bottom }]);
  });
  end();
  draw(at("course"), shapes);
  const most = ages.length === 0 ? "none seen yet" : `at most ${duration(Math.max(...ages))}, last ${duration(ages.at(-1))}`;
  const silent = seen.length > ages.length ? " A thick line at the bottom: the node did not answer." : "";
  say(at("course-words"), `Age of the least fresh view since this page was opened, 5 minutes at most: ${most}.${silent}`);
}

// What came is compared with the plan that was followed.
function courseOf(batch) {
  const followed = batch.followed ? batch.planned : "fixed";
  const priced = batch.alternatives.find((plan) => plan.plan === followed);
  const came = batch.usable > 0;
  const ceiling = priced ? priced.predicted_us + priced.margin_us : 0;
  return { followed, priced, came, ceiling, longest: Math.max(ceiling, came ? batch.ready_us : 0) };
}

function batchRow(core, batch, scale) {
  const { followed, priced, came, ceiling } = courseOf(batch);
  const told = (plan) => `${micros(plan.predicted_us)} ± ${micros(plan.margin_us)}`;
  const late = came && priced !== undefined && batch.ready_us > ceiling;
  const bars = [];
  if (priced) bars.push(thin({ share: priced.predicted_us / scale, fill: "one" }, { share: priced.margin_us / scale, fill: "error" }));
  if (came) bars.push(thin({ share: batch.ready_us / scale, fill: late ? "doubt" : "three" }));
  const compared = batch.alternatives.filter((plan) => plan !== priced).map((plan) => `${plan.plan} ${told(plan)}`);
  return [
    { text: count(batch.batch), note: `on core ${core}` },
    few(batch.routes.map((route) => `${route.route}${GAP}×${GAP}${route.blocks}, ${bytes(route.bytes)}`)) || "nobody",
    {
      text: followed === batch.planned ? followed : `${batch.planned}, not followed: asked in the fixed order`,
      note: `${batch.reason}: ${reasonWords(batch.reason)}`,
    },
    {
      bars,
      text: `${priced ? told(priced) : "not predicted"}, ${came ? `took ${micros(batch.ready_us)}` : "nothing came"}${late ? ": later than predicted" : ""}`,
      note: compared.length > 0 ? `compared: ${few(compared)}` : "",
    },
    {
      text: `${count(batch.usable)} of ${count(batch.wanted)}`,
      note: batch.failed > 0 ? `${count(batch.failed)} did not come` : "",
      word: batch.failed > 0 ? "bad" : "",
    },
    batch.replans.map(([why, times]) => `${why}${GAP}×${GAP}${times}`).join(", ") || "–",
  ];
}

const REASON_COUNTERS = [
  ["better", "changed"], ["kept", "kept"], ["not-better", "not_better"], ["one-route", "one_route"],
  ["few-successes", "few_successes"], ["beyond-reach", "beyond_reach"], ["exhausted", "exhausted"],
];

export function routes(page, { cores }) {
  const planning = page.shards.flatMap((shard) => (shard.peers ? [shard.peers.planning] : []));
  const of = (name) => sum(planning, (figures) => figures[name]);
  const [batches, judged, within] = [of("batches"), of("judged"), of("within_margin")];
  say(at("route-words"), [
    `${many(batches, "batch", "batches")} of blocks sought at peers since this node was started.`,
    judged > 0 ? `Of ${count(judged)} whose time was predicted ${percent(within, judged)} came within prediction and margin.` : "",
  ].join(" ").trim());
  rows(at("reason-rows"), REASON_COUNTERS.map(([reason, counter]) => [
    { text: reason, note: reasonWords(reason) },
    { bars: [thin({ share: of(counter) / batches, fill: "one" })], text: percent(of(counter), batches) },
    number(count(of(counter))),
  ]));
  // As many of each core, at most so many together.
  const newest = (most) => {
    const share = Math.max(1, Math.floor(most / Math.max(1, cores.length)));
    const of = (core) => core.batches.slice(-share).reverse().map((batch) => [core.core, batch]);
    return cores.flatMap(of).slice(0, most);
  };
  const latest = newest(BATCHES_MAX);
  const shown = part("batches", latest, newest(PARTS.batches[0]));
  const scale = Math.max(1, ...shown.map(([, batch]) => courseOf(batch).longest));
  rows(at("batch-rows"), shown.map(([core, batch]) => batchRow(core, batch, scale)));
  remark("batches-words", latest.length === 0 ? "" : [
    "The upper bar is the prediction with its error in stripes, the lower one what it took, striped if that is later.",
    `A full bar is ${micros(scale)}.`,
  ].join(" "));
  show(at("batches"), latest.length > 0);
  remark("batches-none", latest.length > 0 ? "" : "None: nothing was brought from peers, or --route-policy is fixed.");
  const left = sum(cores, (core) => core.batches.length) - latest.length;
  remark("batches-more", left > 0 ? `${count(left)} more are remembered: orbitkv routes lists all.` : "");
}

function grouped(list) {
  const groups = new Map();
  for (const one of list) groups.set(one.node_id, [...(groups.get(one.node_id) ?? []), one]);
  return groups;
}

function breakerCell(breakers) {
  const away = breakers.filter((breaker) => breaker.state !== "closed");
  const opens = sum(breakers, (breaker) => breaker.opens);
  const note = opens > 0 ? `left alone ${many(opens, "time")} so far` : "";
  if (away.length === 0) return { text: "closed", word: "good", note };
  return { text: few([...new Set(away.map((breaker) => `shard ${breaker.shard} ${breaker.state}`))]), word: "bad", note };
}

function loadText(streams) {
  const loads = streams.map((stream) => stream.load).filter((load) => load !== null);
  if (loads.length === 0) return "nothing lately";
  const most = (name) => Math.round(Math.max(...loads.map((load) => load[name])) / 10);
  return `${many(sum(loads, (load) => load.reads), "block")} read, SSD ${most("ssd_permille")} %, egress ${most("egress_permille")} %`;
}

export function peers(page, { streams }) {
  const of = (name) => page.shards.flatMap((shard) => shard.peers?.[name] ?? []);
  const [sources, breakers, owned] = [grouped(of("sources")), grouped(of("breakers")), grouped(streams)];
  const members = others(page).map((member) => {
    const calls = sources.get(member.node_id) ?? [];
    const mode = worstMode(calls.map((source) => source.mode));
    const is_left_alone = (breakers.get(member.node_id) ?? []).some((breaker) => breaker.state !== "closed");
    return { member, calls, mode, need: badness(mode) + (is_left_alone ? 10 : 0) };
  });
  const sorted = members.sort((one, other) => other.need - one.need).slice(0, MEMBERS_MAX);
  const shown = part("peers", sorted, sorted.slice(0, PARTS.peers[0]));
  rows(at("peer-rows"), shown.map(({ member, calls, mode }) => {
    const answers = sum(calls, (source) => source.answers);
    const time = answers === 0 ? "–" : `${count(sum(calls, (source) => source.ms_mean * source.answers) / answers)} ms`;
    return [
      { text: member.node_id, note: member.zone === "" ? "" : `zone ${member.zone}` },
      { text: mode || (calls.length > 0 ? "too few calls to say" : "not called"), word: modeClass(mode) },
      number(count(answers)),
      number(count(sum(calls, (source) => source.errors))),
      number(count(sum(calls, (source) => source.timeouts))),
      number(time),
      breakerCell(breakers.get(member.node_id) ?? []),
      loadText(owned.get(member.node_id) ?? []),
      { text: member.address, note: `${many(member.shards, "shard")}, epoch ${count(member.epoch)}` },
    ];
  }));
  const left = members.length - MEMBERS_MAX;
  remark("peers-more", left > 0 ? `${many(left, "member")} more than the ${MEMBERS_MAX} shown here: orbitkv status lists all.` : "");
}

// Whether anybody else is a member.
export const areThere = (page) => others(page).length > 0;
