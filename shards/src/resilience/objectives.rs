//! Recovery objectives (chapter 5, row 11): what may be lost and how long recovery may take, as declared,
//! held against what was measured.
//!
//! Both are arithmetic over measured numbers, and nothing is assumed: a cluster without a drill has no
//! recovery time, and an objective that nobody declared is neither met nor missed.

/// Seconds of a day.
pub const SECONDS_PER_DAY: f64 = 86_400.0;

/// What an operator promises. Nothing is promised by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Objectives {
    /// Longest recovery, in seconds (RTO).
    pub recovery_s_max: Option<f64>,
    /// Most units that one failure may lose (RPO, in blocks or events).
    pub loss_max: Option<f64>,
}

/// Whether an objective is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What was measured is within it.
    Holds,
    /// It is not.
    Breaks,
    /// Nothing was promised, or nothing was measured.
    Unknown,
}

impl Verdict {
    /// `measured` against `promised`; exactly at the bound it holds.
    #[must_use]
    pub fn of(promised: Option<f64>, measured: Option<f64>) -> Verdict {
        match (promised, measured) {
            (Some(promised), Some(measured)) if measured <= promised => Verdict::Holds,
            (Some(_), Some(_)) => Verdict::Breaks,
            _ => Verdict::Unknown,
        }
    }
}

impl Objectives {
    /// Whether a recovery of this many seconds keeps what was promised.
    #[must_use]
    pub fn recovery(&self, measured_s: Option<f64>) -> Verdict {
        Verdict::of(self.recovery_s_max, measured_s)
    }

    /// Whether the loss of so many units keeps what was promised.
    #[must_use]
    pub fn loss(&self, measured: Option<f64>) -> Verdict {
        Verdict::of(self.loss_max, measured)
    }
}

/// Units at risk at any moment: `rate_per_s` of them are made and the copy is `behind_s` seconds behind. For
/// a node the rate is its saves and the lag is that of its watermarks; for backups it is the interval.
#[must_use]
pub fn at_risk(rate_per_s: f64, behind_s: f64) -> f64 {
    rate_per_s * behind_s
}

/// Minutes that a service may be down in a month, split into those that are planned and those for failures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DowntimeBudget {
    /// All of them.
    pub month_min: f64,
    /// Those for failures.
    pub failure_min: f64,
    /// Those for planned work, drills among it.
    pub planned_min: f64,
}

impl DowntimeBudget {
    /// Failures of `recovery_min` minutes each that fit into the share for failures.
    #[must_use]
    pub fn failures_that_fit(&self, recovery_min: f64) -> f64 {
        self.failure_min / recovery_min
    }

    /// Percent of the whole month's budget that `minutes` take.
    #[must_use]
    pub fn month_pct(&self, minutes: f64) -> f64 {
        minutes * 100.0 / self.month_min
    }

    /// Percent of the share for failures that `minutes` take.
    #[must_use]
    pub fn failure_pct(&self, minutes: f64) -> f64 {
        minutes * 100.0 / self.failure_min
    }

    /// Percent of the share for planned work that `minutes` take.
    #[must_use]
    pub fn planned_pct(&self, minutes: f64) -> f64 {
        minutes * 100.0 / self.planned_min
    }
}

/// Copies that a backup plan keeps over a span of days.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackupPlan {
    /// Seconds between two incremental copies.
    pub interval_s: f64,
    /// Days between two full copies.
    pub full_every_days: f64,
}

impl BackupPlan {
    /// Incremental copies a day.
    #[must_use]
    pub fn per_day(&self) -> f64 {
        SECONDS_PER_DAY / self.interval_s
    }

    /// Bytes of the incremental copies of `days`, in the unit of `growth_per_day`: however often they are
    /// made, they hold what grew.
    #[must_use]
    pub fn incremental(growth_per_day: f64, days: f64) -> f64 {
        growth_per_day * days
    }

    /// Bytes of the full copies of `days`, the first on the first day, in the unit of `stored`.
    #[must_use]
    pub fn full(&self, stored: f64, days: f64) -> f64 {
        (days / self.full_every_days).ceil() * stored
    }
}

/// What may go wrong with a write while a stand-by takes over, in a month of `stops` failures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StandbyMonth {
    /// Failures.
    pub stops: f64,
    /// Seconds until the stand-by serves.
    pub window_s: f64,
    /// Seconds that it is behind if it is written to afterwards.
    pub lag_s: f64,
    /// Writes a second.
    pub write_per_s: f64,
}

impl StandbyMonth {
    /// Writes refused, and so known to be lost, if each waits for the stand-by.
    #[must_use]
    pub fn refused_when_synchronous(&self) -> f64 {
        self.stops * at_risk(self.write_per_s, self.window_s)
    }

    /// Writes acknowledged and lost if none waits for it.
    #[must_use]
    pub fn lost_when_asynchronous(&self) -> f64 {
        self.stops * at_risk(self.write_per_s, self.lag_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_promised_or_measured_is_neither_met_nor_missed() {
        let objectives = Objectives::default();
        assert_eq!(objectives.recovery(Some(1.0)), Verdict::Unknown);
        assert_eq!(objectives.loss(Some(1.0)), Verdict::Unknown);
        let promised = Objectives { recovery_s_max: Some(30.0), loss_max: Some(10.0) };
        assert_eq!(promised.recovery(None), Verdict::Unknown);
        assert_eq!(promised.recovery(Some(30.0)), Verdict::Holds);
        assert_eq!(promised.recovery(Some(30.1)), Verdict::Breaks);
        assert_eq!(promised.loss(Some(at_risk(100.0, 0.2))), Verdict::Breaks);
        assert_eq!(promised.loss(Some(at_risk(100.0, 0.1))), Verdict::Holds);
    }

    #[test]
    fn a_budget_is_divided_by_what_one_failure_takes() {
        let budget = DowntimeBudget { month_min: 40.0, failure_min: 30.0, planned_min: 10.0 };
        assert_eq!(budget.failures_that_fit(6.0), 5.0);
        assert_eq!(budget.month_pct(10.0), 25.0);
        assert_eq!(budget.failure_pct(15.0), 50.0);
        assert_eq!(budget.planned_pct(15.0), 150.0);
    }

    #[test]
    fn how_often_a_backup_is_made_does_not_change_what_it_holds() {
        let plan = BackupPlan { interval_s: 3_600.0, full_every_days: 7.0 };
        assert_eq!(plan.per_day(), 24.0);
        assert_eq!(BackupPlan::incremental(2.0, 30.0), 60.0);
        assert_eq!(plan.full(10.0, 30.0), 50.0);
        assert_eq!(plan.full(10.0, 28.0), 40.0);
    }

    #[test]
    fn waiting_for_the_stand_by_costs_the_window_and_not_waiting_the_lag() {
        let month = StandbyMonth { stops: 2.0, window_s: 8.0, lag_s: 1.0, write_per_s: 10.0 };
        assert_eq!(month.refused_when_synchronous(), 160.0);
        assert_eq!(month.lost_when_asynchronous(), 20.0);
    }
}
