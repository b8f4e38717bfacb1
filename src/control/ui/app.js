// The page's rounds: asks the node every 2 s while somebody looks, and says so when it does not answer.
import * as node from "./node.js";
import * as others from "./peers.js";
import { at, say, show, remark } from "./paint.js";
import * as reading from "./reading.js";
import { duration } from "./words.js";

const ROUND_MS = 2000;
const TICK_MS = 500;
// Moments of the course of ages that are kept: five minutes of rounds.
const MOMENTS_MAX = 160;

// What was answered last, why something was not, when anything was heard, and whether the last question was not answered.
const seen = { ready: null, metadata: null, owners: null, routes: null };
const refused = new Map();
let heard = null;
let is_silent = false;

let is_paused = false;
let is_asking = false;
let timer = null;
let moments = [];
let life = "";

const is_watching = () => !is_paused && document.visibilityState === "visible";

function remember(age_ms) {
  moments = [...moments, { at: Date.now(), age_ms }].slice(-MOMENTS_MAX);
}

async function ask(name) {
  try {
    seen[name] = await reading[name]();
    refused.delete(name);
  } catch (error) {
    if (!(error instanceof reading.Refusal)) throw error;
    refused.set(name, error.message);
  }
  heard = Date.now();
}

async function askAll() {
  await ask("ready");
  await ask("metadata");
  const page = seen.metadata;
  if (page === null) return;
  const now = `${page.identity.node_id} ${page.incarnation}`;
  if (now !== life) [moments, life] = [[], now];
  if (page.standalone) return;
  remember(page.oldest_age_ms);
  await ask("owners");
  await ask("routes");
}

async function round() {
  is_asking = true;
  try {
    await askAll();
    is_silent = false;
    paint();
  } catch (error) {
    if (error instanceof reading.Silence) {
      is_silent = true;
      if (heard !== null) remember(null);
      others.course(moments, Date.now());
    } else {
      remark("trouble", `This page does not understand the node's answer; load it again. (${error})`);
      console.error(error);
    }
  }
  is_asking = false;
  tick();
  if (is_watching()) timer = setTimeout(round, ROUND_MS);
}

function follow() {
  clearTimeout(timer);
  if (is_watching() && !is_asking) void round();
  tick();
}

// A section has something to draw, or says why not.
function section(id, why_not, paint) {
  const place = at(id).parentElement;
  const [none, some] = ["none", "some"].map((name) => place.querySelector(`[data-${name}]`));
  show(none, why_not !== "");
  say(none, why_not);
  show(some, why_not === "");
  if (why_not === "") paint();
}

function whyNoPeers(page, answer) {
  if (page.standalone) return "No peers: this node is standalone.";
  if (answer === null) return "Not answered yet.";
  return others.areThere(page) ? "" : "No peers: no other node is a member.";
}

function paint() {
  const { ready, metadata: page, owners, routes } = seen;
  const reasons = [...refused].map(([name, reason]) => `${name}: ${reason}`);
  remark("trouble", reasons.length > 0 ? `Not answered this time, older answers below: ${reasons.join("; ")}.` : "");
  if (page === null) return;
  show(at("page"), true);
  node.state(page, ready, refused.get("ready"));
  node.tiers(page);
  section("coverage", whyNoPeers(page, owners), () => others.coverage(page, owners));
  section("lag", whyNoPeers(page, owners), paintLag);
  section("routes", whyNoPeers(page, routes), () => others.routes(page, routes));
  section("peers", whyNoPeers(page, owners), () => others.peers(page, owners));
  section("resets", page.standalone ? "Nothing to reset: this node is standalone." : "", () => {
    if (!node.resets(page)) say(at("reset-words"), "None since this node was started.");
    show(at("reset-rows").closest(".wide"), at("reset-rows").children.length > 0);
  });
}

function paintLag() {
  others.lag(seen.metadata, seen.owners);
  others.course(moments, Date.now());
}

const clock = (moment) => new Date(moment).toLocaleTimeString();

// What is said of time itself, between rounds, too.
function tick() {
  const ago = heard === null ? "" : duration(Math.floor((Date.now() - heard) / 1000) * 1000);
  show(at("silence"), is_silent);
  // The words are read out once, the time beside them is not.
  say(at("silence-what"), is_silent ? "The node does not answer." : "");
  say(at("silence-ago"), heard === null
    ? "It never has since this page was opened."
    : `Last seen ${ago} ago; all below is as it was at ${clock(heard)}.`);
  at("page").className = is_silent && heard !== null ? "past" : "";
  if (heard === null) return;
  const stopped = is_paused ? "Paused. " : "";
  say(at("seen"), is_silent ? "Asking again every few seconds." : `${stopped}Last answer at ${clock(heard)}.`);
}

at("pause").addEventListener("click", () => {
  is_paused = !is_paused;
  say(at("pause"), is_paused ? "Go on" : "Pause");
  follow();
});
others.onMore(paint);
document.addEventListener("visibilitychange", follow);
setInterval(tick, TICK_MS);
follow();
