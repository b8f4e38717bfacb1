//! What the figures are worth: gates and tables.

use orbitkv::cli::table::Table;
use serde_json::{Value, json};

use super::frames::Frames;
use super::retirement::Retirement;
use super::throughput::{Rates, Throughput};
use crate::profile::Profile;
use crate::report::Gate;
use crate::statistics::Figures;

/// Accounted bytes a row, at every fill.
const ROW_BYTES_TARGET: f64 = 64.0;

/// Changes a second on one core, with [`OWNERS`].
const APPLY_TARGET: f64 = 5e6;

/// Keys a second on one core, with [`OWNERS`].
const LOOKUP_TARGET: f64 = 10e6;

/// What is left of both with [`MANY_OWNERS`].
const MANY_OWNERS_TARGET: f64 = 0.5;

/// What the index has of a bare map's speed.
const MAP_TARGET: f64 = 0.5;

/// How much longer a lookup may take while rows are removed.
const RETIREMENT_TARGET: f64 = 2.0;

const OWNERS: u32 = 64;
const MANY_OWNERS: u32 = 1_000;

/// Of which run.
pub struct Context {
    /// Whose sizes.
    pub profile: Profile,
    /// Seed of rows and keys.
    pub seed: u64,
}

impl Context {
    fn gate(&self, name: &'static str) -> Gate {
        Gate::new(name, self.profile, self.seed)
    }
}

/// What the index and indexers of others did on one stream, repetition by repetition.
pub struct Beside {
    /// How many owners.
    pub owners: u32,
    /// The index.
    pub index: Vec<Value>,
    /// The others, by name.
    pub rivals: Vec<(&'static str, Vec<Value>)>,
}

fn figures(found: &[Value], name: &str) -> Figures {
    Figures(found.iter().map(|value| value[name].as_f64().unwrap_or(f64::NAN)).collect())
}

impl Beside {
    /// All of it.
    pub fn json(&self) -> Value {
        let rivals: serde_json::Map<_, _> =
            self.rivals.iter().map(|(name, found)| ((*name).to_owned(), json!(found))).collect();
        json!({ "owners": self.owners, "index": self.index, "rivals": rivals })
    }

    /// The best of the others at something: its name and figures.
    fn best(&self, name: &str, is_better: fn(&f64, &f64) -> bool) -> Option<(&'static str, Figures)> {
        let all = self.rivals.iter().map(|(rival, found)| (*rival, figures(found, name)));
        all.reduce(|best, next| if is_better(&next.1.median(), &best.1.median()) { next } else { best })
    }
}

fn spread(figures: &Figures) -> Value {
    let (min, max) = figures.range();
    json!({ "min": min, "max": max, "raw": figures.0 })
}

/// Changes a second: the slower of filling a table and changing a full one.
fn apply(rates: &Rates) -> &Figures {
    if rates.load.median() < rates.churn.median() { &rates.load } else { &rates.churn }
}

/// The gates on speed and size.
pub fn throughput(context: &Context, all: &[Throughput]) -> Vec<Gate> {
    let Some(worst) = all.iter().max_by(|a, b| a.worst_bytes_a_row.total_cmp(&b.worst_bytes_a_row)) else {
        return Vec::new();
    };
    let bytes = context
        .gate("index_bytes_a_row")
        .at_most(ROW_BYTES_TARGET)
        .against("bare hash map, bytes a row", Some(worst.map.bytes_a_row))
        .value(worst.worst_bytes_a_row)
        .details(json!({ "owners": worst.owners, "rss_bytes_a_row": worst.index.rss_bytes_a_row }));
    let mut gates = vec![bytes];
    let with = |owners| all.iter().find(|found| found.owners == owners);
    let Some(few) = with(OWNERS) else { return gates };
    for (name, target, figures, map) in [
        ("index_apply_64", APPLY_TARGET, apply(&few.index), apply(&few.map)),
        ("index_lookup_64", LOOKUP_TARGET, &few.index.lookup, &few.map.lookup),
    ] {
        let gate = context.gate(name).at_least(target).against("bare hash map, a second", Some(map.median()));
        gates.push(gate.value(figures.median()).details(json!({ "ratios": spread(figures) })));
    }
    for (name, ours, map) in [
        ("index_load_over_map", &few.index.load, &few.map.load),
        ("index_churn_over_map", &few.index.churn, &few.map.churn),
        ("index_lookup_over_map", &few.index.lookup, &few.map.lookup),
    ] {
        let ratios = ours.over(map);
        let gate =
            context.gate(name).at_least(MAP_TARGET).against("bare hash map, a second", Some(map.median()));
        gates.push(gate.value(ratios.median()).details(json!({ "ratios": spread(&ratios) })));
    }
    let Some(many) = with(MANY_OWNERS) else { return gates };
    for (name, many, few) in [
        ("index_apply_1000_over_64", apply(&many.index), apply(&few.index)),
        ("index_lookup_1000_over_64", &many.index.lookup, &few.index.lookup),
    ] {
        let gate = context
            .gate(name)
            .at_least(MANY_OWNERS_TARGET)
            .against("64 owners, a second", Some(few.median()));
        gates.push(gate.value(many.median() / few.median()).details(json!({ "a_second": spread(many) })));
    }
    gates
}

/// The gate on lookups while rows are removed.
pub fn retirement(context: &Context, found: &Retirement) -> Gate {
    let gate = context.gate("index_retirement_p99").at_most(RETIREMENT_TARGET).against("quiet p99, µs", None);
    let Some(verdict) = found.verdict() else { return gate.invalid("too few windows") };
    let details = found.json();
    let mut gate = gate.measured_against(found.quiet.median()).value(verdict.ratio).details(json!({
        "windows": details,
        "quiet_over_quiet": verdict.quiet_over_quiet,
    }));
    if let Some(why) = verdict.why_invalid {
        gate = gate.invalid(why);
    }
    gate
}

/// The gates of being ahead of every indexer measured beside it.
pub fn trace(context: &Context, all: &[Beside]) -> Vec<Gate> {
    let mut gates = Vec::new();
    for (owners, bytes, lookups) in [
        (OWNERS, "index_rss_bytes_64", "index_queries_64"),
        (MANY_OWNERS, "index_rss_bytes_1000", "index_queries_1000"),
    ] {
        let (bytes, lookups) = (
            context.gate(bytes).at_most(1.0).against("best of other indexers, bytes a row", None),
            context.gate(lookups).at_least(1.0).against("best of other indexers, queries a second", None),
        );
        let found = all.iter().find(|beside| beside.owners == owners);
        let best = |name, is_better| found.and_then(|found| Some((found, found.best(name, is_better)?)));
        gates.push(ahead(bytes, "rss_bytes_a_row", best("rss_bytes_a_row", |next, best| next < best)));
        gates.push(ahead(
            lookups,
            "queries_per_second",
            best("queries_per_second", |next, best| next > best),
        ));
    }
    gates
}

fn ahead(gate: Gate, name: &str, best: Option<(&Beside, (&'static str, Figures))>) -> Gate {
    let Some((found, (rival, theirs))) = best else {
        return gate.invalid("not measured: needs --trace and --rivals");
    };
    let ratios = figures(&found.index, name).over(&theirs);
    let gate = gate.measured_against(theirs.median()).value(ratios.median());
    gate.details(json!({ "best": rival, "ratios": spread(&ratios) }))
}

fn millions(figures: &Figures) -> String {
    format!("{:.1}", figures.median() / 1e6)
}

fn microseconds(latencies: &Value) -> String {
    format!(
        "{:.0} / {:.0}",
        latencies["p50"].as_f64().unwrap_or(0.0),
        latencies["p99"].as_f64().unwrap_or(0.0)
    )
}

/// Speed and size at every number of owners.
pub fn throughput_table(all: &[Throughput]) -> Table {
    let mut table = Table::new([
        "owners",
        "table",
        "load M/s",
        "churn M/s",
        "lookup M/s",
        "p50 / p99 µs",
        "bytes a row",
        "worst",
        "RSS a row",
    ]);
    for found in all {
        let worst = format!("{:.1}", found.worst_bytes_a_row);
        for (name, rates, worst) in [("index", &found.index, worst), ("bare map", &found.map, String::new())]
        {
            table.row([
                found.owners.to_string(),
                name.to_owned(),
                millions(&rates.load),
                millions(&rates.churn),
                millions(&rates.lookup),
                microseconds(&rates.lookup_us),
                format!("{:.1}", rates.bytes_a_row),
                worst,
                format!("{:.1}", rates.rss_bytes_a_row),
            ]);
        }
        table.row([
            found.owners.to_string(),
            "index, churning".to_owned(),
            String::new(),
            String::new(),
            millions(&found.lookup_during_churn),
            microseconds(&found.lookup_during_churn_us),
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    table
}

/// Nanoseconds a change on its way.
pub fn frames_table(found: &Frames) -> Table {
    let mut table = Table::new(["frame of", "encode ns", "check ns", "apply ns", "memcpy ns"]);
    let nanoseconds = |ns: f64| format!("{ns:.1}");
    table.row([
        format!("{} changes, {} bytes", found.changes, found.bytes),
        nanoseconds(found.encode_ns),
        nanoseconds(found.check_ns),
        nanoseconds(found.apply_ns),
        nanoseconds(found.copy_ns),
    ]);
    table
}

/// Everybody on the trace.
pub fn trace_table(all: &[Beside]) -> Table {
    let mut table =
        Table::new(["owners", "indexer", "rows", "load M/s", "queries/s", "p50 µs", "p99 µs", "RSS a row"]);
    for beside in all {
        let ours = [("index", &beside.index)];
        for (name, found) in ours.into_iter().chain(beside.rivals.iter().map(|(name, found)| (*name, found)))
        {
            let median = |name| figures(found, name).median();
            table.row([
                beside.owners.to_string(),
                name.to_owned(),
                format!("{:.0}", median("rows")),
                format!("{:.1}", median("load_rows_per_second") / 1e6),
                format!("{:.0}", median("queries_per_second")),
                format!("{:.2}", median("query_p50_us")),
                format!("{:.2}", median("query_p99_us")),
                format!("{:.1}", median("rss_bytes_a_row")),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: Context = Context { profile: Profile::Full, seed: 1 };

    fn rates(load: f64, churn: f64, lookup: f64) -> Rates {
        let figure = |value| Figures(vec![value]);
        Rates { load: figure(load), churn: figure(churn), lookup: figure(lookup), ..Rates::default() }
    }

    fn found(owners: u32, bytes: f64, index: Rates) -> Throughput {
        Throughput {
            owners,
            index,
            map: rates(10e6, 10e6, 10e6),
            worst_bytes_a_row: bytes,
            lookup_during_churn: Figures::default(),
            lookup_during_churn_us: Value::Null,
        }
    }

    fn unmet(gates: &[Gate]) -> Vec<&'static str> {
        gates.iter().filter(|gate| !gate.is_met()).map(Gate::name).collect()
    }

    #[test]
    fn every_figure_has_its_gate() {
        let good = || rates(6e6, 7e6, 11e6);
        let gates =
            |few, bytes, many| throughput(&CONTEXT, &[found(64, 60.0, few), found(1_000, bytes, many)]);
        assert_eq!(unmet(&gates(good(), 60.0, good())), Vec::<&str>::new());
        assert_eq!(unmet(&gates(good(), 64.1, good())), ["index_bytes_a_row"]);
        assert_eq!(
            unmet(&gates(rates(4.9e6, 7e6, 11e6), 60.0, good())),
            ["index_apply_64", "index_load_over_map"]
        );
        assert_eq!(
            unmet(&gates(rates(7e6, 4.9e6, 11e6), 60.0, good())),
            ["index_apply_64", "index_churn_over_map"]
        );
        assert_eq!(unmet(&gates(rates(6e6, 7e6, 9.9e6), 60.0, good())), ["index_lookup_64"]);
        assert_eq!(unmet(&gates(good(), 60.0, rates(9e6, 2.9e6, 11e6))), ["index_apply_1000_over_64"]);
        assert_eq!(unmet(&gates(good(), 60.0, rates(6e6, 7e6, 5.4e6))), ["index_lookup_1000_over_64"]);
    }

    #[test]
    fn lookups_while_rows_are_removed_have_theirs() {
        let gate = |quiet: &[f64], retiring: &[f64]| {
            let (quiet, retiring) = (Figures(quiet.into()), Figures(retiring.into()));
            retirement(
                &CONTEXT,
                &Retirement { quiet, retiring, retiring_alone: Figures(vec![1.0]), ..Retirement::default() },
            )
        };
        assert!(gate(&[10.0; 4], &[19.9; 4]).is_met());
        assert!(!gate(&[10.0; 4], &[20.1; 4]).is_met());
        assert!(!gate(&[10.0, 30.0, 10.0, 30.0], &[15.0; 4]).is_met(), "nothing was resolved");
        assert!(!gate(&[10.0; 3], &[15.0; 3]).is_met(), "too few windows");
    }

    fn beside(owners: u32, ours: (f64, f64), theirs: &[(&'static str, f64, f64)]) -> Beside {
        let found = |bytes: f64, queries: f64| {
            vec![json!({ "rss_bytes_a_row": bytes, "queries_per_second": queries })]
        };
        let rivals = theirs.iter().map(|&(name, bytes, queries)| (name, found(bytes, queries))).collect();
        Beside { owners, index: found(ours.0, ours.1), rivals }
    }

    #[test]
    fn ahead_is_ahead_of_the_best_at_each_thing() {
        let rivals = [("small", 90.0, 100.0), ("fast", 200.0, 1_000.0)];
        let gates = |few: (f64, f64), many| {
            trace(&CONTEXT, &[beside(64, few, &rivals), beside(1_000, many, &rivals)])
        };
        assert_eq!(unmet(&gates((80.0, 1_100.0), (80.0, 1_100.0))), Vec::<&str>::new());
        assert_eq!(unmet(&gates((95.0, 900.0), (80.0, 1_100.0))), ["index_rss_bytes_64", "index_queries_64"]);
        assert_eq!(unmet(&gates((80.0, 1_100.0), (80.0, 999.0))), ["index_queries_1000"]);
    }

    #[test]
    fn what_was_not_measured_beside_others_is_not_claimed() {
        assert_eq!(unmet(&trace(&CONTEXT, &[])).len(), 4);
        assert_eq!(
            unmet(&trace(&CONTEXT, &[beside(64, (1.0, 1e9), &[]), beside(1_000, (1.0, 1e9), &[])])).len(),
            4
        );
    }
}
