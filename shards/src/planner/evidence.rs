//! What was seen of a route lately, and what follows for its price.
//!
//! Time to usable is a line over the work: the bytes ahead of a block in its queue and its own. Least squares over
//! the successes give its two numbers. Failures and timeouts stay: they make a route dearer by what they cost, as
//! often as they happen. Each outcome is predicted from those before it, and what it took longer is the
//! observed error; a high quantile of those is the margin.

use std::collections::VecDeque;
use std::time::Duration;

use super::route::{Trial, TrialOutcome};
use super::settings::PlannerSettings;
use crate::time::Moment;

/// Works that differ by less than this share of their mean say nothing about the slope.
const SPREAD_MIN: f64 = 0.05;
/// A route that always fails is as dear as if it succeeded this often.
const SUCCESS_SHARE_MIN: f64 = 0.01;

/// A success: time over work.
#[derive(Clone, Copy, Debug)]
struct Success {
    at: Moment,
    work_bytes: u64,
    elapsed_ns: u64,
}

/// An outcome, whatever it is.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    at: Moment,
    elapsed_ns: u64,
    /// By how much it took longer than was predicted, if anything was.
    error_ns: Option<u64>,
    is_success: bool,
}

/// What was seen of one route, oldest first. Successes have a ring of their own: a source that has begun to fail is
/// no unknown one.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    successes: VecDeque<Success>,
    outcomes: VecDeque<Outcome>,
    /// When it was last of use.
    pub used: Moment,
}

/// Why a route has no price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FewSuccesses;

/// What a route costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Price {
    /// Whatever the work is, what failures cost included.
    pub base_ns: f64,
    pub byte_ns: f64,
    /// What is to be added so that a prediction is seldom too short.
    pub margin_ns: f64,
    /// Most work that it is good for.
    pub reach_bytes: u64,
    pub successes: usize,
    /// Time since the newest outcome.
    pub age: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Fit {
    base_ns: f64,
    byte_ns: f64,
}

impl Fit {
    fn predicted_ns(&self, work_bytes: u64) -> f64 {
        self.base_ns + self.byte_ns * work_bytes as f64
    }
}

impl Evidence {
    /// Takes an outcome in. One that compares with nothing is none.
    pub fn take(&mut self, trial: &Trial, settings: &PlannerSettings, now: Moment) {
        let is_success = trial.outcome == TrialOutcome::Usable;
        if is_success && !trial.is_comparable {
            return;
        }
        self.expire(settings, now);
        let work_bytes = trial.ahead_bytes.saturating_add(trial.bytes).max(1);
        let elapsed_ns = nanoseconds(trial.elapsed);
        let fit = self.fit().filter(|_| self.successes.len() >= settings.predicted_from);
        let error_ns = match is_success {
            true => fit.map(|fit| (elapsed_ns as f64 - fit.predicted_ns(work_bytes)).max(0.0) as u64),
            // All of it was for nothing.
            false => Some(elapsed_ns),
        };
        if is_success {
            push(&mut self.successes, Success { at: now, work_bytes, elapsed_ns }, settings.samples_max);
        }
        push(&mut self.outcomes, Outcome { at: now, elapsed_ns, error_ns, is_success }, settings.samples_max);
        self.used = now;
    }

    /// Forgets what is too old.
    pub fn expire(&mut self, settings: &PlannerSettings, now: Moment) {
        let is_old = |at: Moment| now - at > settings.sample_age_max;
        while self.successes.front().is_some_and(|success| is_old(success.at)) {
            self.successes.pop_front();
        }
        while self.outcomes.front().is_some_and(|outcome| is_old(outcome.at)) {
            self.outcomes.pop_front();
        }
    }

    /// Outcomes that are remembered.
    pub fn len(&self) -> usize {
        self.outcomes.len().max(self.successes.len())
    }

    fn fit(&self) -> Option<Fit> {
        if self.successes.is_empty() {
            return None;
        }
        let count = self.successes.len() as f64;
        let sum = |of: fn(&Success) -> u64| self.successes.iter().map(|s| of(s) as f64).sum::<f64>();
        let (mean_x, mean_y) = (sum(|s| s.work_bytes) / count, sum(|s| s.elapsed_ns) / count);
        let (mut squares, mut products) = (0.0, 0.0);
        for success in &self.successes {
            let (x, y) = (success.work_bytes as f64 - mean_x, success.elapsed_ns as f64 - mean_y);
            squares += x * x;
            products += x * y;
        }
        // More work never takes less time, and none takes no less than none.
        let through_origin = mean_y / mean_x;
        let is_spread = squares > count * (SPREAD_MIN * mean_x) * (SPREAD_MIN * mean_x);
        let byte_ns =
            if is_spread { (products / squares).clamp(0.0, through_origin) } else { through_origin };
        Some(Fit { base_ns: mean_y - byte_ns * mean_x, byte_ns })
    }

    /// What it costs now. Whoever asks has let it expire.
    pub fn price(&self, settings: &PlannerSettings, now: Moment) -> Result<Price, FewSuccesses> {
        let successes = self.successes.len();
        let Some(fit) = self.fit().filter(|_| successes >= settings.successes_min) else {
            return Err(FewSuccesses);
        };
        let failed = self.outcomes.iter().filter(|outcome| !outcome.is_success);
        let failures = failed.clone().count();
        let failed_ns = failed.map(|outcome| outcome.elapsed_ns as f64).sum::<f64>() / failures.max(1) as f64;
        let share = 1.0 - failures as f64 / self.outcomes.len().max(1) as f64;
        let share = share.max(SUCCESS_SHARE_MIN);
        let largest = self.successes.iter().map(|success| success.work_bytes).max().unwrap_or_default();
        Ok(Price {
            // As many failures as come before a success, on average.
            base_ns: fit.base_ns + failed_ns * (1.0 - share) / share,
            byte_ns: fit.byte_ns,
            margin_ns: self.margin_ns(settings),
            reach_bytes: largest.saturating_mul(settings.reach_times),
            successes,
            age: self.outcomes.back().map_or(Duration::ZERO, |newest| now - newest.at),
        })
    }

    /// The quantile of the observed errors.
    fn margin_ns(&self, settings: &PlannerSettings) -> f64 {
        let mut errors: Vec<u64> = self.outcomes.iter().filter_map(|outcome| outcome.error_ns).collect();
        if errors.is_empty() {
            return 0.0;
        }
        errors.sort_unstable();
        let rank = (errors.len() * settings.error_percent).div_ceil(100).max(1);
        errors[rank - 1] as f64
    }
}

fn push<T>(ring: &mut VecDeque<T>, newest: T, most: usize) {
    if ring.len() == most {
        ring.pop_front();
    }
    ring.push_back(newest);
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
