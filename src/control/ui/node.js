// What the node says of itself: its state, its tiers, its resets.
import { at, bar, cards, number, rows, say, terms } from "./paint.js";
import { bytes, count, duration, many, percent, sum } from "./words.js";

function membership(page) {
  const { validity, detail, revision } = page.membership;
  if (page.standalone) return { value: "standalone", note: "no etcd, no peers" };
  const life = page.epoch === null ? "no registered life" : `epoch ${page.epoch}`;
  const map = revision === null ? "members not known" : `revision ${count(revision)}`;
  return { value: validity, kind: validity === "member" ? "good" : "bad", note: detail || `${life}, ${map}` };
}

function readiness(ready, refusal) {
  if (refusal !== undefined) return { value: "not ready", kind: "bad", note: refusal };
  if (ready === null) return { value: "…" };
  return { value: ready.ready ? "ready" : "not ready", kind: ready.ready ? "good" : "bad", note: ready.phase };
}

const COVERAGE_KINDS = new Map([["CompleteAtWatermarks", "good"], ["PartialHints", "doubt"]]);

export function state(page, ready, refusal) {
  const { identity, memory, config } = page;
  say(at("name"), identity.node_id);
  document.title = `${identity.node_id}: OrbitKV node`;
  const alone = page.standalone;
  cards(at("cards"), [
    { label: "This node is", ...readiness(ready, refusal) },
    { label: "Membership", ...membership(page) },
    {
      label: "Coverage",
      value: page.coverage,
      kind: COVERAGE_KINDS.get(page.coverage) ?? "bad",
      note: alone ? "nobody else is expected" : `oldest view ${duration(page.oldest_age_ms)}`,
    },
    ...(alone ? [] : [{
      label: "Members",
      value: count(page.membership.members.length),
      note: many(page.sessions, "inventory session"),
    }]),
    { label: "Resident memory", value: bytes(memory.rss_bytes), note: `of ${bytes(memory.bill_bytes)} billed` },
  ]);
  const settings = config.version === 0 ? "as the flags say" : `version ${config.version}, from ${config.origin}`;
  terms(at("identity"), [
    ["incarnation", page.incarnation],
    ...(alone ? [] : [
      ["cluster", page.cluster ?? "none registered"],
      ["scope digest", page.scope_digest ?? "none"],
      ["settings", settings],
    ]),
    ["version", identity.version],
    ["engine socket", identity.engine_socket],
    ["cores", identity.placement],
    ["arena pages", identity.arena_pages],
  ]);
}

function dramCell(shards) {
  const of = (name) => sum(shards, (shard) => shard.arena[name]);
  const [capacity, allocated, pinned] = [of("capacity_bytes"), of("allocated_bytes"), of("pinned_bytes")];
  const rest = Math.max(0, allocated - pinned);
  return {
    bars: [bar({ share: pinned / capacity, fill: "two" }, { share: rest / capacity, fill: "one" })],
    text: `${bytes(allocated)} of ${bytes(capacity)} (${percent(allocated, capacity)})`,
    note: `${many(sum(shards, (shard) => shard.residents.dram), "block")}, ${bytes(pinned)} pinned (striped)`,
  };
}

function ssdTrouble({ ssd }) {
  if (ssd.state.state === "degraded") return `degraded: ${ssd.state.fault}, ${ssd.state.detail}`;
  return ssd.breaker.state === "" || ssd.breaker.state === "closed" ? "" : `left alone, breaker ${ssd.breaker.state}`;
}

function ssdCell(shards) {
  const of = (name) => sum(shards, (shard) => shard.ssd[name]);
  if (shards.every((shard) => shard.ssd.state.state === "off")) return { text: "off", word: "soft" };
  const [capacity, live, queued, lost] = ["capacity_bytes", "live_bytes", "write_backs_queued", "lost_writes"].map(of);
  const troubles = [...new Set(shards.map(ssdTrouble).filter((trouble) => trouble !== ""))];
  if (lost > 0) troubles.push(many(lost, "lost write"));
  return {
    bars: [bar({ share: live / capacity, fill: troubles.length > 0 ? "bad" : "three" })],
    text: [`${bytes(live)} of ${bytes(capacity)} (${percent(live, capacity)})`, ...troubles].join("; "),
    word: troubles.length > 0 ? "bad" : "",
    note: `${many(sum(shards, (shard) => shard.residents.ssd), "block")}, ${count(queued)} waiting to be written`,
  };
}

function journalCell(shards) {
  const of = (name) => sum(shards, (shard) => shard.journal[name]);
  const [used, capacity] = [of("used_bytes"), of("capacity_bytes")];
  const note = shards.length === 1 ? `at sequence ${count(shards[0].journal.head_sequence)}` : "";
  return {
    bars: [bar({ share: used / capacity, fill: "four" })],
    text: `${bytes(used)} of ${bytes(capacity)} (${percent(used, capacity)})`,
    note,
  };
}

export function tiers(page) {
  const { shards, index, memory } = page;
  const row = (name, of) => [name, dramCell(of), ssdCell(of), journalCell(of)];
  const each = shards.map((shard) => row(String(shard.shard), [shard]));
  rows(at("tier-rows"), shards.length > 1 ? [row("all", shards), ...each] : each);
  const used = (name, fill, part, whole, note) => [
    name,
    { bars: [bar({ share: part / whole, fill })], text: `${bytes(part)} of ${bytes(whole)} (${percent(part, whole)})`, note },
  ];
  const over = memory.rss_bytes > memory.bill_bytes ? "bad" : "one";
  rows(at("budget-rows"), [
    ...(page.standalone ? [] : [
      used("Index of peers' blocks", "three", index.accounted_bytes, index.budget_bytes, many(index.rows, "row")),
    ]),
    used("Resident memory", over, memory.rss_bytes, memory.bill_bytes, "of the memory bill"),
  ]);
  hits(shards);
}

function hits(shards) {
  const of = (take) => sum(shards, (shard) => take(shard.service));
  const places = [
    ["this node's DRAM", "one", of((service) => service.hits.dram)],
    ["this node's SSD", "two", of((service) => service.hits.ssd)],
    ["a peer's DRAM", "three", of((service) => service.peer_hits.dram)],
    ["a peer's SSD", "four", of((service) => service.peer_hits.ssd)],
    ["nowhere: missed", "bad", of((service) => service.misses)],
  ];
  const all = sum(places, ([, , blocks]) => blocks);
  rows(at("hit-rows"), places.map(([name, fill, blocks]) => [
    name,
    { bars: [bar({ share: blocks / all, fill })], text: percent(blocks, all) },
    number(count(blocks)),
  ]));
}

// What was counted, from where, and in plain words.
function incidents(page) {
  const { membership, shards } = page;
  const peers = shards.map((shard) => shard.peers).filter((of) => of !== null);
  const foreign = Object.keys(membership.foreign_hash);
  const refused = new Map();
  for (const [cause, times] of peers.flatMap((of) => Object.entries(of.sessions_refused))) {
    refused.set(cause, (refused.get(cause) ?? 0) + times);
  }
  const counted = (what, cause, times) => [what, cause, times];
  return [
    ...page.resets.map(({ cause, count: times }) => counted("a source told this node to begin anew", cause, times)),
    ...[...refused].map(([cause, times]) => counted("this node refused a peer's session", cause, times)),
    counted("a session was superseded", "the source is another life than was asked", sum(peers, (of) => of.sessions_superseded)),
    counted("a session was lost", "connection ended", sum(peers, (of) => of.sessions_lost)),
    counted("a snapshot was refused", "no room in the index", sum(peers, (of) => of.snapshots_refused)),
    counted("a requester was cut off", "it broke the protocol", sum(peers, (of) => of.protocol_errors)),
    counted("this node was fenced", "its registered life ended", membership.fences),
    counted("remote admission was suspended", "members not known", membership.suspensions),
    counted("a watch of etcd ended", "opened again", membership.watches_ended),
    counted("etcd did not answer in time", "requests and renewals", membership.unanswered),
    counted("another key at a member's address", membership.disputed.join(", ") || "none disputed now", membership.superseded),
    counted("a member is left out", `another hash version: ${foreign.join(", ")}`, foreign.length),
    counted("alarm", "see the log", membership.alarms),
  ].filter(([, , times]) => times > 0);
}

// Whether there was anything.
export function resets(page) {
  const all = incidents(page);
  rows(at("reset-rows"), all.map(([what, cause, times]) => [what, cause, number(count(times))]));
  const lives = page.membership.registrations;
  say(at("reset-words"), `Counted since this node was started; it has registered ${many(lives, "life", "lives")} since.`);
  return all.length > 0;
}
