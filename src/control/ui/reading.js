// Asks the node, and hands on the fields of fields.js alone. The only file that fetches.
import { SOURCES } from "./fields.js";

// Longest wait for one answer. The node itself gives up on a silent core after 2 s.
const ANSWER_MS_MAX = 4000;
// Owner streams asked for in one page, and pages read in one round.
const OWNERS_PAGE = 500;
const OWNER_PAGES_MAX = 4;

// Owner streams that the page shows at most.
export const OWNERS_MAX = OWNERS_PAGE * OWNER_PAGES_MAX;

// The node did not answer, or not with JSON.
export class Silence extends Error {}
// It answered that it has no answer now.
export class Refusal extends Error {}

function treeOf(fields) {
  const tree = new Map();
  for (const field of fields) {
    let place = tree;
    for (const part of field.split(".")) {
      if (!place.has(part)) place.set(part, new Map());
      place = place.get(part);
    }
  }
  return tree;
}

function pick(value, tree) {
  if (tree.size === 0 || value === null || typeof value !== "object") return value;
  const each = tree.get("*");
  if (Array.isArray(value)) return each ? value.map((element) => pick(element, each)) : [];
  // Without a prototype a name that a peer chose is a name and nothing else.
  const picked = Object.create(null);
  for (const [name, below] of Object.entries(value)) {
    const wanted = tree.get(name) ?? each;
    if (wanted) picked[name] = pick(below, wanted);
  }
  return picked;
}

const TREES = Object.fromEntries(Object.entries(SOURCES).map(([name, source]) => [name, treeOf(source.fields)]));

async function ask(name, query = "") {
  let response, answer;
  try {
    response = await fetch(SOURCES[name].path + query, {
      cache: "no-store",
      signal: AbortSignal.timeout(ANSWER_MS_MAX),
    });
    answer = await response.json();
  } catch (error) {
    throw new Silence(error instanceof Error ? error.message : "no answer");
  }
  // A node that is not ready says so with 503 and the same fields; every refusal has `error` and `reason`.
  if (!response.ok && typeof answer?.reason === "string") throw new Refusal(answer.reason);
  if (answer === null || typeof answer !== "object") throw new Silence("the answer is no object");
  return pick(answer, TREES[name]);
}

export const ready = () => ask("ready");
export const metadata = () => ask("metadata");
export const routes = () => ask("routes");

// The owner streams up to OWNERS_MAX, and whether there are more.
export async function owners() {
  const streams = [];
  let after = "";
  for (let page = 0; page < OWNER_PAGES_MAX; page += 1) {
    const answer = await ask("owners", `?after=${encodeURIComponent(after)}&limit=${OWNERS_PAGE}`);
    streams.push(...answer.owners);
    if (answer.next === null) return { streams, more: false };
    after = answer.next;
  }
  return { streams, more: true };
}
