//! `orbitkv-bench churn`: how many changes all owners of a cluster may make while all others follow, and how soon each is
//! seen meanwhile; how much waits in the nodes' queues; and that etcd hears nothing of it.
//!
//! First the owners change as much as the best known system did, and the peak of the queues is taken; then ten times as
//! much, for a minute. Each publication of a journal is bound at each observer to the one interval that has its
//! sequence; a hole between intervals fails the collection. When all is still every key is compared.

mod plan;
mod pressure;

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::signals::StopSignals;
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::report::{Gate, Report};
use crate::streams::RunArgs;
use crate::streams::convergence::{self, Convergence};
use crate::streams::distribution::Distribution;
use crate::streams::outlet::Outlet;
use crate::streams::owners::{Owners, Sessions, await_applied};
use crate::streams::samples::Samples;
use crate::{Failure, machine};
use plan::{Plan, QUEUE_BYTES_MAX, RATE_KNOWN, VISIBILITY_MS_MAX};
use pressure::Made;

/// What to measure.
#[derive(Args)]
pub struct ChurnArgs {
    #[command(flatten)]
    run: RunArgs,
}

/// Bytes that ever waited in queues of inventory frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Queues {
    /// The peaks of all nodes together.
    sum: u64,
    /// The largest.
    node_max: u64,
}

/// What came of the sustained rate.
struct Sustained {
    made: Made,
    sights: Result<(Distribution, Distribution), String>,
    sessions: Result<(), String>,
}

/// Measures, prints, and says by its exit code whether the gates are met.
pub fn run(args: &ChurnArgs) -> ExitCode {
    let args = &args.run;
    let measured = Outlet::of("churn", args).and_then(|outlet| measure(args, &outlet));
    conclude(measured, args.json)
}

fn measure(args: &RunArgs, outlet: &Outlet) -> Result<Report, Failure> {
    let machine = machine::describe();
    let signals = StopSignals::watch()?;
    let mut owners = Owners::start(args, args.coalesce, &signals)?;
    let count = owners.len();
    let plan = Plan::of(args.profile, count);
    let load = machine::Pressure::now();
    let revision_before = owners.coordinator().revision()?;
    let known = pressure::run(&mut owners, &plan.known, args.seed, &signals)?;
    await_applied(&owners, &signals)?;
    let queues = queues(&owners)?;

    let mut samples = Samples::of(owners.identities());
    samples.read_all(owners.http())?;
    let before = owners.sessions()?;
    let (used_before, began) = (owners.used()?, Instant::now());
    let made = pressure::run(&mut owners, &plan.sustained, args.seed, &signals)?;
    let used = owners.used()?.since(&used_before).json(began.elapsed());
    await_applied(&owners, &signals)?;
    samples.read_all(owners.http())?;
    let after = owners.sessions()?;
    let sights = seen(&samples, &made);
    let sessions = Sessions::stayed_up(&before, &after, owners.sessions_expected());
    let sustained = Sustained { sights, sessions, made };
    let convergence = convergence::check(&mut owners, &signals)?;
    owners.require_alive()?;
    let etcd_writes = owners.coordinator().revision()? - revision_before;

    let distributions: Vec<Distribution> = match &sustained.sights {
        Ok((publication, save)) => vec![publication.clone(), save.clone()],
        Err(_) => Vec::new(),
    };
    let details = json!({
        "histograms": distributions.iter().map(|one| (one.name.to_owned(), one.json())).collect::<serde_json::Map<_, _>>(),
        "changes_per_second": sustained.made.rate(),
        "late_ms_max": sustained.made.late_ns_max() as f64 / 1e6,
        "processors": used,
    });
    let figures = figures(&known, &sustained.made, &queues, &distributions);
    let pages = owners.pages()?;
    let report = Report {
        name: "churn",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures,
        gates: gates(args, &plan, &known, &sustained, &queues, &convergence, etcd_writes, details),
        settings: json!({
            "managers": count,
            "sizes": plan,
            "residences": args.residences,
            "coalescing_window_us": args.coalescing_window().as_micros() as u64,
            "placement": pages.iter().map(|page| page.identity.placement.clone()).collect::<Vec<_>>(),
            "sessions": { "before": before, "after": after, "expected": owners.sessions_expected() },
            "convergence": convergence,
            "queue_bytes_peak_at_the_end": self::queues(&owners)?.sum,
            "pressure": load.until_now(),
        }),
    };
    outlet.write(&report, &distributions.iter().collect::<Vec<_>>())?;
    Ok(report)
}

fn queues(owners: &Owners) -> Result<Queues, Failure> {
    let mut queues = Queues::default();
    for page in owners.pages()? {
        let of_node = page.shards.iter().filter_map(|shard| shard.peers.as_ref());
        let peak = of_node.map(|peers| peers.queue_bytes_peak).sum();
        queues = Queues { sum: queues.sum + peak, node_max: queues.node_max.max(peak) };
    }
    Ok(queues)
}

/// How soon each publication was seen, and each burst from its intended beginning on.
fn seen(samples: &Samples, made: &Made) -> Result<(Distribution, Distribution), String> {
    let mut publication = Distribution::of("publication_install");
    let mut save = Distribution::of("save_start_install");
    for sight in samples.of_publications(made.span.clone()).map_err(|invalid| invalid.to_string())? {
        publication.record(sight.installed_ns - sight.published_ns);
    }
    for burst in made.bursts.iter().flatten() {
        for installed_ns in
            samples.installed(burst.owner, burst.terminal).map_err(|invalid| invalid.to_string())?
        {
            save.record(installed_ns.saturating_sub(burst.intended_ns));
        }
    }
    Ok((publication, save))
}

fn figures(known: &Made, sustained: &Made, queues: &Queues, distributions: &[Distribution]) -> String {
    let mut table = Table::new(["milliseconds", "p50", "p90", "p99", "p99.9", "max", "count"]);
    distributions.iter().for_each(|distribution| table.row(distribution.cells()));
    format!(
        "{table}\n{:.0} changes a second, then {:.0}; queue peaks at the first rate: {} bytes over all nodes, {} in one",
        known.rate(),
        sustained.rate(),
        queues.sum,
        queues.node_max
    )
}

#[expect(clippy::too_many_arguments, reason = "everything that was measured ends here, once")]
fn gates(
    args: &RunArgs,
    plan: &Plan,
    known: &Made,
    sustained: &Sustained,
    queues: &Queues,
    convergence: &Convergence,
    etcd_writes: u64,
    details: Value,
) -> Vec<Gate> {
    let owners = usize::from(args.managers);
    let gate = |name| Gate::new(name, args.profile, args.seed);
    let visibility = gate(if owners == 16 { "churn_16" } else { "churn" })
        .at_most(VISIBILITY_MS_MAX)
        .against("best known p99 of visibility at a tenth of the rate, ms", Some(VISIBILITY_MS_MAX))
        .details(details);
    let rate = gate(if owners == 16 { "churn_rate_16" } else { "churn_rate" })
        .at_least(plan.rate_min as f64)
        .against("best known changes a second", Some(RATE_KNOWN as f64))
        .value(sustained.made.rate())
        .details(json!({ "seconds": sustained.made.seconds() }));
    let rate = match sustained.made.seconds() < plan.sustained.seconds as f64 {
        true => rate.invalid(format!("it lasted only {:.1} s", sustained.made.seconds())),
        false => rate,
    };
    let visibility = match (&sustained.sights, &sustained.sessions) {
        (Err(why), _) | (_, Err(why)) => visibility.invalid(why.clone()),
        (Ok((publication, _)), Ok(())) => {
            let visibility = visibility.value(publication.milliseconds(0.99));
            match rate.is_met() {
                false => visibility.invalid(format!(
                    "{:.0} changes a second were made for {:.1} s, and {} for {} s are asked for",
                    sustained.made.rate(),
                    sustained.made.seconds(),
                    plan.rate_min,
                    plan.sustained.seconds
                )),
                true => visibility,
            }
        }
    };
    let queue = gate("churn_queue")
        .at_most(QUEUE_BYTES_MAX)
        .against("best known peak, bytes", Some(QUEUE_BYTES_MAX))
        .value(queues.sum as f64)
        .details(json!({
            "node_max": queues.node_max,
            "changes_per_second": known.rate(),
        }));
    let queue = match owners == 16 && known.rate() < RATE_KNOWN as f64 {
        true => queue.invalid(format!(
            "{:.0} changes a second were made, and {RATE_KNOWN} are asked for",
            known.rate()
        )),
        false => queue,
    };
    let none = |name, value: u64, what: &str| gate(name).against(what, None).none_ever(value);
    vec![
        rate,
        visibility,
        queue,
        none("churn_convergence", convergence.faults(), "faults, key by key at the end"),
        none("churn_etcd", etcd_writes, "writes to etcd"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_counts_only_at_the_rate_it_asks_for_and_with_all_sessions() {
        let args = RunArgs {
            managers: 16,
            profile: crate::profile::FormalProfile::Formal,
            seed: 1,
            coalesce: None,
            residences: 512,
            out: None,
            json: false,
        };
        let plan = Plan::of(args.profile, 16);
        let lasting = |seconds: u64, rate: u64| Made {
            bursts: Vec::new(),
            span: 0..seconds * 1_000_000_000,
            changes: seconds * rate,
        };
        let met = |made, latency_ms: u64, sessions: Result<(), String>, known, queue| {
            let mut publication = Distribution::of("publication_install");
            publication.record(latency_ms * 1_000_000);
            let sights = Ok((publication, Distribution::of("save_start_install")));
            let sustained = Sustained { made, sights, sessions };
            let queues = Queues { sum: queue, node_max: 0 };
            let right = Convergence::default();
            let gates = gates(&args, &plan, &known, &sustained, &queues, &right, 0, Value::Null);
            assert_eq!(gates[0].name(), "churn_rate_16");
            [gates[0].is_met(), gates[1].is_met(), gates[2].is_met()]
        };
        let (enough, known) = (|| lasting(60, 40_830), || lasting(20, 4_083));
        let up = || Ok(());
        assert_eq!(met(enough(), 29, up(), known(), 697_538), [true; 3]);
        assert_eq!(met(lasting(60, 40_829), 29, up(), lasting(20, 4_082), 697_538), [false; 3]);
        assert_eq!(met(lasting(59, 40_830), 29, up(), known(), 697_538), [false, false, true]);
        assert_eq!(met(enough(), 30, up(), known(), 697_539), [true, false, false]);
        assert_eq!(met(enough(), 29, Err("one was lost".to_owned()), known(), 0), [true, false, true]);
    }
}
