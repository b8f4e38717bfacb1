// Numbers with units, and the node's words in plain ones.

// Between a number and its unit, so that no line ends there.
export const GAP = "\u00a0";

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

export const count = (number) => Math.round(number).toLocaleString("en-US");

export function bytes(number) {
  const unit = UNITS.find(([, size]) => number >= size);
  return unit ? `${(number / unit[1]).toFixed(2)}${GAP}${unit[0]}` : `${number}${GAP}B`;
}

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)}${GAP}ms`;
  if (ms < 60_000) return `${Number((ms / 1000).toFixed(1))}${GAP}s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.floor((ms % 3_600_000) / 60_000)} min`;
}

export function micros(us) {
  if (us < 1000) return `${us}${GAP}µs`;
  return us < 1e6 ? `${(us / 1000).toFixed(2)}${GAP}ms` : `${(us / 1e6).toFixed(2)}${GAP}s`;
}

export function percent(part, whole) {
  const share = whole === 0 ? 0 : (100 * part) / whole;
  return share > 0 && share < 1 ? `under 1${GAP}%` : `${Math.round(share)}${GAP}%`;
}

export const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);

export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

const COVERAGE = new Map([
  ["CompleteAtWatermarks", "every stream of every other member is installed and fresh: what is not named, nobody had"],
  ["PartialHints", "something is missing, being repaired or old: what is named may be had, absence is not claimed"],
  ["Unavailable", "nothing is brought from peers: the members are not known, or nothing is installed of them"],
]);

const REASONS = new Map([
  ["fixed-mode", "nothing is priced in this mode"],
  ["one-route", "nobody else has the blocks"],
  ["few-successes", "a route has no price yet"],
  ["beyond-reach", "more at once than twice what was seen"],
  ["exhausted", "more plans than are priced"],
  ["not-better", "no plan is better by more than its error"],
  ["kept", "stays with the last change"],
  ["better", "better by more than its error"],
]);

const UNKNOWN = "a word that this page does not know";
export const coverageWords = (name) => COVERAGE.get(name) ?? UNKNOWN;
export const reasonWords = (name) => REASONS.get(name) ?? UNKNOWN;

// Failure modes from none to the worst; the names are the node's. One that is not known here counts as the worst.
const MODES = ["", "healthy", "partial", "stale", "slow-or-cut", "down"];
const LOOKS = ["soft", "good", "doubt", "doubt", "bad", "bad"];
export const badness = (mode) => (MODES.includes(mode) ? MODES.indexOf(mode) : MODES.length - 1);
export const worstMode = (modes) => modes.reduce((worst, mode) => (badness(mode) > badness(worst) ? mode : worst), "");
export const modeClass = (mode) => LOOKS[badness(mode)];
