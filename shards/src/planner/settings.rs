//! Bounds of the room, and whether it is obeyed.

use std::time::Duration;

/// What is done with a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is priced: the first candidate in order is asked.
    Fixed,
    /// Plans are made, judged by what happens and not followed.
    #[default]
    Shadow,
    /// Plans are followed.
    Executed,
}

/// Bounds of the room, for one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannerSettings {
    /// What is done with a plan.
    pub mode: Mode,
    /// Outcomes of a route that are remembered: two plans' worth, so that what is remembered is lately.
    pub samples_max: usize,
    /// Routes that are remembered: two media of each of 64 members.
    pub routes_max: usize,
    /// After that an outcome says nothing about now.
    pub sample_age_max: Duration,
    /// Comparable successes below which a route has no price (chapter 3.5).
    pub successes_min: usize,
    /// Successes from which on a prediction is made to be compared with what comes.
    pub predicted_from: usize,
    /// Of a hundred observed errors so many are within the margin.
    pub error_percent: usize,
    /// A route is priced for at most so many times the work that it was seen to do.
    pub reach_times: u64,
    /// Whole plans that are priced for one batch (chapter 3.5).
    pub evaluated_max: usize,
    /// Plans of a batch that are kept beside each other (chapter 3.5).
    pub alternatives_max: usize,
    /// Least improvement for which a plan is changed, beside its uncertainty: a turn or two of a core.
    pub hysteresis_min: Duration,
    /// The same as a share of the time of the plan that would be left, in percent.
    pub hysteresis_percent: u64,
    /// Sets of routes of which it is remembered which plan was last.
    pub incumbents_max: usize,
    /// Recoveries that are remembered for an operator.
    pub traces_max: usize,
}

impl Default for PlannerSettings {
    fn default() -> Self {
        PlannerSettings {
            mode: Mode::default(),
            samples_max: 64,
            routes_max: 128,
            sample_age_max: Duration::from_secs(120),
            successes_min: 32,
            predicted_from: 8,
            error_percent: 90,
            reach_times: 2,
            evaluated_max: 128,
            alternatives_max: 8,
            hysteresis_min: Duration::from_micros(200),
            hysteresis_percent: 10,
            incumbents_max: 64,
            traces_max: 32,
        }
    }
}

impl PlannerSettings {
    /// # Panics
    /// If a bound leaves no room for anything.
    pub(super) fn assert_valid(&self) {
        assert!(self.successes_min > 0 && self.successes_min <= self.samples_max, "a route can get a price");
        assert!(self.routes_max > 0 && self.incumbents_max > 0 && self.traces_max > 0, "a memory has room");
        assert!((1..=100).contains(&self.error_percent), "a share of a hundred");
        assert!(self.alternatives_max > 1 && self.evaluated_max > 1, "there is something to choose between");
    }
}
