//! Streams from node to node, against the design that they replace: a record of each block in etcd, which everybody
//! watches, plain and with coalescing.
//!
//! One real node with four engines makes the same bursts on every side, at the same moments. What is measured of a burst
//! is its last change: from when it was made until an observer has it, by each observer that wants its namespace. The
//! sides with etcd are spared what real nodes cost: publisher and observers are threads of this program, and a change
//! counts as made only once the engine has its answer.

mod publisher;
mod record;
mod sight;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use orbitkv::client::BlockHash;
use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;
use serde_json::{Value, json};

use super::judgement::{Question, Sense, Trial, UNLESS_BETTER, in_turn};
use super::plan::{ETCD_WINDOW, PERIOD, PLAIN_IN_FLIGHT, Plan, TRANSACTION_CHANGES};
use super::{Ablation, AblationArgs, Column, run_args};
use crate::fanout::cell::Nodes;
use crate::fanout::plan::{Cell, NAMESPACES, Subscription};
use crate::processes::processor_time;
use crate::statistics::Latencies;
use crate::streams::cadence::rotation;
use crate::streams::owners::{StartOrder, identity};
use crate::streams::samples::Samples;
use crate::streams::{RunArgs, WAIT, failure, pause};
use crate::{Failure, machine, progress};
use publisher::{Batch, Form, Publisher, patience};
use sight::Sight;

/// The sides, in the order of their names.
const SIDES: [&str; 4] = ["etcd, plain", "etcd, coalesced", "streams, all", "streams, 1 of 4"];
const PLAIN: usize = 0;
const COALESCED: usize = 1;
const ALL: usize = 2;
const SCOPED: usize = 3;

/// Blocks of each namespace when it begins.
const RESIDENCES: u64 = 512;
/// What one of four namespaces has to spare of the bytes: half, where a quarter of the changes is wanted.
const SCOPED_LEAST: f64 = 2.0;
/// Samples that a node keeps.
const SAMPLES: u32 = 65_536;
/// How often observers are looked at.
const LOOK: Duration = Duration::from_millis(20);

const COLUMNS: [Column; 11] = [
    Column { figure: "offered_a_second", title: "offered/s", digits: 0 },
    Column { figure: "reached_a_second", title: "reached/s", digits: 0 },
    Column { figure: "seen_p50_ms", title: "seen ms p50", digits: 2 },
    Column { figure: "seen_p99_ms", title: "p99", digits: 2 },
    Column { figure: "etcd_writes", title: "etcd writes", digits: 0 },
    Column { figure: "etcd_revisions", title: "revisions", digits: 0 },
    Column { figure: "etcd_cores", title: "etcd cores", digits: 3 },
    Column { figure: "etcd_disk_bytes", title: "etcd disk B/change", digits: 0 },
    Column { figure: "told_bytes", title: "told B/change", digits: 0 },
    Column { figure: "node_cores", title: "node cores", digits: 3 },
    Column { figure: "processor_us", title: "CPU us/change", digits: 1 },
];

/// The ablation.
pub struct Etcd {
    args: RunArgs,
    observers: u16,
    changes: u64,
    plan: Plan,
}

/// What was changed in a run.
struct Made {
    /// When the first burst was to begin, and when the last had been made.
    span_ns: std::ops::Range<u64>,
    /// Of each burst its namespace, and the head of the journal behind it.
    bursts: Vec<(usize, u64)>,
}

/// What all of it has used and said by some moment.
struct Reading {
    etcd: Sight,
    nodes: Duration,
    bench: Duration,
    at: Instant,
}

impl Etcd {
    /// As it is asked for.
    pub fn new(args: &AblationArgs, plan: Plan) -> Etcd {
        let run = run_args(args, args.observers + 1, RESIDENCES);
        Etcd { args: run, observers: args.observers, changes: args.changes, plan }
    }

    fn all_changes(&self) -> u64 {
        self.plan.bursts as u64 * self.changes
    }

    /// All bursts of a run. What was changed is told after each, by number of namespace.
    fn make(
        &self,
        nodes: &mut Nodes,
        signals: &StopSignals,
        mut tell: impl FnMut(Batch) -> Result<(), Failure>,
    ) -> Result<Made, Failure> {
        let began_ns = monotonic_ns();
        let mut bursts = Vec::with_capacity(self.plan.bursts);
        for (number, planned) in rotation(self.args.seed, 1, self.plan.bursts, PERIOD).into_iter().enumerate()
        {
            let intended_ns = began_ns + planned.offset_ns;
            pause(Duration::from_nanos(intended_ns.saturating_sub(monotonic_ns())), signals)?;
            let (namespace, head) = (number % NAMESPACES, nodes.head());
            let owner = nodes.owner(namespace);
            let before = owner.keys().live();
            owner.burst(0, self.changes, intended_ns)?;
            let (made_ns, keys) = (monotonic_ns(), owner.keys());
            let begun = keys.names(before.end..keys.live().end);
            let ended = keys.names(before.start..keys.live().start);
            let changes = record::changes(namespace as u8, head + 1, &begun, &ended);
            tell(Batch { changes, made_ns: Some(made_ns) })?;
            bursts.push((namespace, nodes.head()));
        }
        Ok(Made { span_ns: began_ns..monotonic_ns(), bursts })
    }

    fn streams(&self, subscription: Subscription, signals: &StopSignals) -> Result<Trial, Failure> {
        let cell = Cell { receivers: self.observers, subscription };
        let start = StartOrder { samples: SAMPLES, ..StartOrder::default() };
        let mut nodes = Nodes::start(&self.args, cell, &start, signals)?;
        nodes.await_applied(signals)?;
        let http = nodes.http();
        let identities = http.iter().map(identity).collect::<Result<Vec<_>, _>>()?;
        let mut samples = Samples::of(&identities);
        samples.read_all(&http)?;
        let (told_before, before) = (nodes.counters()?[0].delta_bytes, Reading::of(&mut nodes)?);
        let made = self.make(&mut nodes, signals, |_| Ok(()))?;
        nodes.await_applied(signals)?;
        let after = Reading::of(&mut nodes)?;
        let told_bytes = nodes.counters()?[0].delta_bytes - told_before;
        samples.read_all(&http)?;
        let (mut latencies, mut last_ns) = (Latencies::new(), made.span_ns.end);
        let wanted = subscription.namespaces();
        let bursts = made.bursts.iter().enumerate().filter(|(_, (namespace, _))| *namespace < wanted);
        let sights = bursts.map(|(number, (_, terminal))| samples.of_sequence(number, 0, *terminal));
        let sights = sights.collect::<Result<Vec<_>, _>>();
        for sight in sights.iter().flatten().flatten() {
            latencies.record(Duration::from_nanos(sight.installed_ns - sight.published_ns));
            last_ns = last_ns.max(sight.installed_ns);
        }
        let rows_wrong = nodes.rows_wrong(cell)?;
        if let Some(words) = nodes.cluster().obituaries().into_iter().next() {
            return Err(failure(words));
        }
        let used = after.since(&before);
        // Whoever streams writes nothing there, whatever changes.
        let written = used.revisions;
        let mut trial = self.trial(&made, last_ns, &latencies, &used, told_bytes as f64);
        trial.wrong = rows_wrong + written;
        trial.fault = sights.err().map(|invalid| invalid.to_string());
        Ok(trial)
    }

    fn etcd(&self, form: Form, signals: &StopSignals) -> Result<Trial, Failure> {
        let cell = Cell { receivers: 0, subscription: Subscription::All };
        let mut nodes = Nodes::start(&self.args, cell, &StartOrder::default(), signals)?;
        let url = nodes.cluster().etcd_url().ok_or("an etcd was started")?;
        let publisher = Publisher::start(&url, form, self.observers, self.plan.bursts + NAMESPACES)?;
        let observers = u64::from(self.observers);
        await_until(&publisher, WAIT, signals, || publisher.watching() >= observers)?;
        let mut first = 1;
        for namespace in 0..NAMESPACES {
            let names = names_of(&mut nodes, namespace);
            let changes = record::changes(namespace as u8, first, &names, &[]);
            first += names.len() as u64;
            publisher.tell(Batch { changes, made_ns: None })?;
        }
        let begun = RESIDENCES * NAMESPACES as u64 * observers;
        await_until(&publisher, 6 * WAIT, signals, || publisher.applied() >= begun)?;
        let before = Reading::of(&mut nodes)?;
        let made = self.make(&mut nodes, signals, |batch| publisher.tell(batch))?;
        let all = begun + self.all_changes() * observers;
        let changing = Duration::from_nanos(made.span_ns.end - made.span_ns.start);
        let waited = await_until(&publisher, patience(changing), signals, || publisher.applied() >= all);
        let after = Reading::of(&mut nodes)?;
        if let Err(error) = waited {
            return Ok(Trial::failed(&format!(
                "{} of {all} changes were seen: {error}",
                publisher.applied()
            )));
        }
        let seen = publisher.end()?;
        let mut latencies = Latencies::new();
        seen.latencies_ns.iter().for_each(|ns| latencies.record(Duration::from_nanos(*ns)));
        let mut right = HashSet::new();
        for namespace in 0..NAMESPACES {
            right.extend(names_of(&mut nodes, namespace).iter().map(|hash| (namespace as u8, hash.0)));
        }
        let wrong = seen.tables.iter().map(|table| table.symmetric_difference(&right).count() as u64);
        let used = after.since(&before);
        let mut trial = self.trial(&made, seen.last_ns, &latencies, &used, used.etcd.client_bytes);
        trial.wrong = wrong.sum::<u64>() + (made.bursts.len() as u64 * observers).abs_diff(latencies.count());
        Ok(trial)
    }

    fn trial(
        &self,
        made: &Made,
        last_ns: u64,
        latencies: &Latencies,
        used: &UsedHere,
        told_bytes: f64,
    ) -> Trial {
        let changes = self.all_changes() as f64;
        let a_second = |end_ns: u64| changes * 1e9 / (end_ns - made.span_ns.start) as f64;
        let milliseconds = |quantile| latencies.microseconds(quantile) / 1e3;
        let processor = used.nodes + used.bench + used.etcd.seconds;
        let mut trial = Trial::of([
            ("offered_a_second", a_second(made.span_ns.end)),
            ("reached_a_second", a_second(last_ns)),
            ("seen_p50_ms", milliseconds(0.5)),
            ("seen_p99_ms", milliseconds(0.99)),
            ("etcd_writes", used.etcd.writes),
            ("etcd_revisions", used.revisions as f64),
            ("etcd_cores", used.etcd.seconds / used.elapsed),
            ("etcd_disk_bytes", used.etcd.disk_bytes / changes),
            ("told_bytes", told_bytes / changes),
            ("node_cores", used.nodes / used.elapsed),
            ("processor_us", processor * 1e6 / changes),
        ]);
        trial.details = json!({ "seen_us": latencies.json() });
        trial
    }
}

/// What came to everybody in a span of time, in seconds.
struct UsedHere {
    etcd: Sight,
    revisions: u64,
    nodes: f64,
    bench: f64,
    elapsed: f64,
}

impl Reading {
    fn of(nodes: &mut Nodes) -> Result<Reading, Failure> {
        let cluster = nodes.cluster();
        let etcd = cluster.etcd_url().zip(cluster.etcd_process_id()).ok_or("an etcd was started")?;
        let mut used = Duration::ZERO;
        for node in cluster.nodes() {
            used += processor_time(node.process_id())?;
        }
        let bench = processor_time(std::process::id())?;
        Ok(Reading { etcd: Sight::now(&etcd.0, etcd.1)?, nodes: used, bench, at: Instant::now() })
    }

    fn since(&self, before: &Reading) -> UsedHere {
        let etcd = self.etcd.since(&before.etcd);
        UsedHere {
            etcd,
            revisions: etcd.revision,
            nodes: self.nodes.saturating_sub(before.nodes).as_secs_f64(),
            bench: self.bench.saturating_sub(before.bench).as_secs_f64(),
            elapsed: (self.at - before.at).as_secs_f64(),
        }
    }
}

/// The names of the live blocks of a namespace.
fn names_of(nodes: &mut Nodes, namespace: usize) -> Vec<BlockHash> {
    let keys = nodes.owner(namespace).keys();
    keys.names(keys.live())
}

fn await_until(
    publisher: &Publisher,
    longest: Duration,
    signals: &StopSignals,
    is_so: impl Fn() -> bool,
) -> Result<(), Failure> {
    let began = Instant::now();
    while !is_so() {
        if publisher.has_ended() {
            return Err(failure("the publisher has ended: etcd refuses something or is gone"));
        }
        if began.elapsed() > longest {
            return Err(failure(format!("it was waited for {longest:.0?}")));
        }
        pause(LOOK, signals)?;
    }
    Ok(())
}

impl Ablation for Etcd {
    fn sides(&self) -> &[&'static str] {
        &SIDES
    }

    fn columns(&self) -> &[Column] {
        &COLUMNS
    }

    fn questions(&self) -> Vec<Question> {
        let of =
            |gate, other, figure, sense, least| Question { gate, built: ALL, other, figure, sense, least };
        let unless = 1.0 / UNLESS_BETTER;
        vec![
            of("ablation_etcd_plain_seen", PLAIN, "seen_p99_ms", Sense::Lower, unless),
            of("ablation_etcd_coalesced_seen", COALESCED, "seen_p99_ms", Sense::Lower, unless),
            of("ablation_etcd_plain_reached", PLAIN, "reached_a_second", Sense::Higher, unless),
            of("ablation_etcd_coalesced_reached", COALESCED, "reached_a_second", Sense::Higher, unless),
            of("ablation_etcd_plain_processor", PLAIN, "processor_us", Sense::Lower, unless),
            of("ablation_etcd_coalesced_processor", COALESCED, "processor_us", Sense::Lower, unless),
            Question {
                gate: "ablation_etcd_scoped_bytes",
                built: SCOPED,
                other: ALL,
                figure: "told_bytes",
                sense: Sense::Lower,
                least: SCOPED_LEAST,
            },
        ]
    }

    fn settings(&self) -> Value {
        json!({
            "disk": machine::disk_of(&std::env::temp_dir()),
            "observers": self.observers,
            "changes_per_burst": self.changes,
            "bursts": self.plan.bursts,
            "period_ms": PERIOD.as_millis() as u64,
            "namespaces": NAMESPACES,
            "residences_per_namespace": RESIDENCES,
            "etcd_window_ms": ETCD_WINDOW.as_millis() as u64,
            "etcd_transaction_changes": TRANSACTION_CHANGES,
            "etcd_plain_in_flight": PLAIN_IN_FLIGHT,
            "stream_coalescing_window_us": self.args.coalescing_window().as_micros() as u64,
        })
    }

    fn run(&mut self, number: usize, signals: &StopSignals) -> Result<Vec<Trial>, Failure> {
        in_turn(SIDES.len(), number, |side| {
            progress(&format!("{}, {} observers", SIDES[side], self.observers));
            let trial = match side {
                PLAIN => self.etcd(Form::Plain, signals)?,
                COALESCED => self.etcd(Form::Coalesced, signals)?,
                ALL => self.streams(Subscription::All, signals)?,
                _ => self.streams(Subscription::One, signals)?,
            };
            Ok(trial)
        })
    }
}

// A block that is deleted was put so long before that no request in flight is of it.
const _: () = assert!(RESIDENCES > 2 * PLAIN_IN_FLIGHT as u64 && RESIDENCES > 2 * TRANSACTION_CHANGES as u64);
