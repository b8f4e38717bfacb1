// What an owner stream is worth to this node: one word and one look each, for the matrix and the table of lag.
import { count, duration } from "./words.js";

// Age up to which a view is fresh, in milliseconds.
export const FRESH_MS = 5000;

// Looks in order from good to bad, each with what it means.
export const LOOKS = [
  { look: "live", word: "live", means: "installed, follows the changes, fresh within 5 s" },
  { look: "old", word: "old", means: "installed and open, but not fresh within 5 s: hints only" },
  { look: "repair", word: "repairing", means: "installed, its session is being opened again or repaired: hints only" },
  { look: "full", word: "no room", means: "the index has no room for it: raise --index-budget" },
  { look: "missing", word: "missing", means: "nothing installed yet; the word says how far it is" },
];

export const behind = (stream) => Math.max(0, stream.source_head - stream.applied);

function lookOf(stream) {
  if (!stream.installed) return stream.misfit ? "full" : "missing";
  if (stream.state !== "live") return "repair";
  return stream.age_ms !== null && stream.age_ms <= FRESH_MS ? "live" : "old";
}

function wordOf(stream, look) {
  return look === "missing" ? stream.state : LOOKS.find((one) => one.look === look).word;
}

export function sight(stream) {
  const look = lookOf(stream);
  return { look, word: wordOf(stream, look) };
}

const lack = (stream) => (stream.lacking_ms === null ? "no view" : `for ${duration(stream.lacking_ms)}`);

// A cell of the matrix. Without a stream the shard is one that nothing is known of.
export function cell(stream, is_expected) {
  if (!stream) return is_expected ? { text: "no stream", kind: "state-missing" } : { text: "–", kind: "state-none" };
  const { look, word } = sight(stream);
  const note = stream.installed ? `${count(behind(stream))} behind` : lack(stream);
  return { text: word, note, kind: `state-${look}` };
}

// Worst first: those without a view, then by age, then by records behind.
export function byNeed(one, other) {
  const need = (stream) => (stream.installed ? stream.age_ms ?? Number.MAX_SAFE_INTEGER : Infinity);
  const [a, b] = [need(one), need(other)];
  if (a !== b) return a > b ? -1 : 1;
  return behind(other) - behind(one) || one.node_id.localeCompare(other.node_id) || one.shard - other.shard;
}
