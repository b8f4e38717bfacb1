//! Lesson 11: what may be lost (`data-loss`) and how long recovery may take (`rto-budget`).

use orbitkv_shards::resilience::objectives::{
    BackupPlan, DowntimeBudget, SECONDS_PER_DAY, StandbyMonth, at_risk,
};
use serde::{Deserialize, Serialize};

use crate::lab::Model;
use crate::lab::base_rates::{EDGE_PEAK, WRITE_PEAK};
use crate::lab::parameters::Given;
use crate::lab::refusal::{Refusal, within};
use crate::lab::report::{Fields, Outcome, Row, Seeding};
use crate::lab::rounding::{self, whole};

/// Backup intervals that are compared, by name and seconds.
const INTERVALS: [(&str, u32); 6] =
    [("24 hr", 86_400), ("6 hr", 21_600), ("1 hr", 3_600), ("15 min", 900), ("5 min", 300), ("1 min", 60)];

/// Those of which copies are counted.
const COUNTED: [&str; 3] = ["24 hr", "1 hr", "5 min"];

/// Seconds that a replica is behind.
const LAGS_S: [f64; 5] = [0.0, 0.5, 1.0, 5.0, 10.0];

/// Days over which copies are kept, and days between two full ones.
const KEPT_DAYS: f64 = 30.0;
const FULL_EVERY_DAYS: f64 = 7.0;

/// Events of a day.
const EVENTS_PER_DAY: f64 = 2_800_000.0;

/// The model `data-loss`.
pub struct DataLoss;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossParameters {
    events_per_day: f64,
    peak: f64,
    events_per_shipment: f64,
    growth_gb: f64,
    full_gb: f64,
}

impl Model for DataLoss {
    type Parameters = LossParameters;

    const LESSON: u8 = 11;
    const TITLE: &'static str = "Recovery Objectives";
    const NAME: &'static str = "data-loss";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "events_per_day": 2800000, "peak": 97.22, "events_per_shipment": 7, "growth_gb": 0.976,
        "full_gb": 712.48
    }"#;

    fn settle(parameters: &mut LossParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("events_per_day", parameters.events_per_day, 0.0..=1e12)?;
        within("peak", parameters.peak, 0.0..=1e9)?;
        within("events_per_shipment", parameters.events_per_shipment, 0.001..=1e6)?;
        within("growth_gb", parameters.growth_gb, 0.0..=1e9)?;
        within("full_gb", parameters.full_gb, 0.0..=1e9)
    }

    fn run(parameters: &LossParameters, _seed: u64) -> Outcome {
        let average = parameters.events_per_day / SECONDS_PER_DAY;
        let mut rows = vec![
            Row::of("rates")
                .rounded("average_events_per_s", average, 2)
                .number("peak_events_per_s", parameters.peak),
        ];
        for (interval, seconds) in INTERVALS {
            let lost = at_risk(average, f64::from(seconds));
            rows.push(
                Row::of("backup_interval")
                    .with("interval", interval)
                    .with("loss_s", seconds)
                    .with("lost_avg", whole(lost))
                    .with("lost_peak", whole(at_risk(parameters.peak, f64::from(seconds))))
                    .with("lost_shipments", whole(lost / parameters.events_per_shipment)),
            );
        }
        for lag_s in LAGS_S {
            let lost = at_risk(parameters.peak, lag_s);
            rows.push(
                Row::of("replication_lag")
                    .rounded("lag_s", lag_s, 1)
                    .rounded("objective_s", lag_s, 1)
                    .rounded("lost_peak", lost, 2)
                    .rounded("lost_shipments", lost / parameters.events_per_shipment, 2),
            );
        }
        for (interval, seconds) in INTERVALS.into_iter().filter(|(name, _)| COUNTED.contains(name)) {
            let plan = BackupPlan { interval_s: f64::from(seconds), full_every_days: FULL_EVERY_DAYS };
            let incremental = BackupPlan::incremental(parameters.growth_gb, KEPT_DAYS);
            rows.push(
                Row::of("backup_count")
                    .with("interval", interval)
                    .rounded("per_day", plan.per_day(), 0)
                    .rounded("per_30_days", plan.per_day() * KEPT_DAYS, 0)
                    .rounded("incremental_gb_30d", incremental, 2)
                    .rounded("full_backup_gb", plan.full(parameters.full_gb, KEPT_DAYS), 2),
            );
        }
        Outcome { rows, generator: Fields::new() }
    }
}

/// The model `rto-budget`.
pub struct RecoveryBudget;

/// Parameters, as the vector file names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetParameters {
    failure_share_min: f64,
    monthly_budget_min: f64,
    window_s: f64,
    #[serde(rename = "stops_month_KU2")]
    stops_month: f64,
    #[serde(rename = "lag_s_KU6")]
    lag_s: f64,
}

/// Objectives in minutes that are compared with a failover's window.
const OBJECTIVES_MIN: [u32; 4] = [5, 10, 30, 60];

/// The objective that the load's own description has.
const REFERENCE_MIN: f64 = 10.0;

impl Model for RecoveryBudget {
    type Parameters = BudgetParameters;

    const LESSON: u8 = 11;
    const TITLE: &'static str = "Recovery Objectives";
    const NAME: &'static str = "rto-budget";
    const SEEDING: Option<Seeding> = None;
    const PARAMETERS: &'static str = r#"{
        "failure_share_min": 28.2, "monthly_budget_min": 43.2, "window_s": 8, "stops_month_KU2": 2,
        "lag_s_KU6": 1
    }"#;

    fn settle(parameters: &mut BudgetParameters, _given: &Given<'_>) -> Result<(), Refusal> {
        within("failure_share_min", parameters.failure_share_min, 0.001..=1e6)?;
        within("monthly_budget_min", parameters.monthly_budget_min, 0.001..=1e6)?;
        within("window_s", parameters.window_s, 0.001..=1e6)?;
        within("stops_month_KU2", parameters.stops_month, 0.001..=1e6)?;
        within("lag_s_KU6", parameters.lag_s, 0.001..=1e6)
    }

    fn run(parameters: &BudgetParameters, _seed: u64) -> Outcome {
        let budget = DowntimeBudget {
            month_min: parameters.monthly_budget_min,
            failure_min: parameters.failure_share_min,
            planned_min: parameters.monthly_budget_min - parameters.failure_share_min,
        };
        let window_s = parameters.window_s;
        let failover = (format!("{window_s} sec (failover)"), window_s / 60.0);
        let timed = OBJECTIVES_MIN.map(|minutes| (format!("{minutes} min"), f64::from(minutes)));
        let mut rows = Vec::new();
        for (objective, minutes) in [failover].into_iter().chain(timed) {
            rows.push(
                Row::of("rto")
                    .with("objective", objective)
                    .rounded("fits_in_failure_share", budget.failures_that_fit(minutes), 2)
                    .rounded("one_failure_pct", budget.month_pct(minutes), 2)
                    .with("dropped_edge_requests", whole(at_risk(EDGE_PEAK, minutes * 60.0))),
            );
        }
        let month = StandbyMonth {
            stops: parameters.stops_month,
            window_s,
            lag_s: parameters.lag_s,
            write_per_s: WRITE_PEAK,
        };
        let (refused, lost) = (month.refused_when_synchronous(), month.lost_when_asynchronous());
        let fitting = rounding::number(budget.failures_that_fit(REFERENCE_MIN), 2);
        rows.extend([
            Row::of("k01_reference").number("recovery_min", REFERENCE_MIN).with("failures", fitting),
            Row::of("sync_rounds").number("extra_rounds_per_day", EVENTS_PER_DAY),
            Row::of("standby_window").number("seconds", window_s),
            Row::of("sync").rounded("dropped_writes", refused, 2),
            Row::of("async").rounded("lost_events", lost, 2),
            Row::of("ratio").rounded("ratio", refused / lost, 2),
        ]);
        Outcome { rows, generator: Fields::new() }
    }
}
