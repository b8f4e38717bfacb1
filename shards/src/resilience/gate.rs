//! The gate before work: a throttle for each flow, so that one cannot take what others were promised, and
//! shedding by class, so that what is given up first is what is missed least.
//!
//! The models' throttle forgets at every tick what a flow did not use, and refuses a third of a flow whose
//! work comes in pieces larger than a tick's ceiling. A node's carries it, up to a burst, and lets what is larger than a
//! burst go when all of that is there, on credit.

use std::time::Duration;

use crate::time::Moment;

/// How a throttle's tokens come back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refill {
    /// At every tick they are this many, whatever was left.
    EachTick {
        /// Tokens of a tick.
        ceiling: f64,
    },
    /// They grow with time.
    Carrying {
        /// Tokens a second.
        rate: f64,
        /// Most that is carried.
        burst: f64,
    },
}

/// Tokens of one flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Throttle {
    refill: Refill,
    tokens: f64,
    at: Moment,
}

/// A flow asked for more tokens than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// When there may be enough; `None` if there never are, or only a tick brings them.
    pub retry_after: Option<Duration>,
}

/// Classes of work, in the order in which they are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Releases, leases: what frees.
    Release,
    /// What an engine waits for.
    Demand,
    /// Prefetch, drain copies: what nobody waits for.
    Background,
}

/// When work of a class is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Units that may be queued, with it.
    pub queued_units: u64,
    /// Longest that the head of the queue may have waited.
    pub age: Option<Duration>,
}

/// Whether work is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Admit,
    /// Too much is queued.
    ShedForLength,
    /// What is queued waits too long.
    ShedForAge,
}

/// Lets work in, or not, by its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shedder {
    limits: [Limit; 3],
}

/// Longest wait at the head of a node's queue before demand is shed.
const DEMAND_AGE: Duration = Duration::from_millis(500);
/// The same for work that nobody waits for.
const BACKGROUND_AGE: Duration = Duration::from_millis(50);

impl Throttle {
    /// A throttle with all tokens it can have.
    #[must_use]
    pub const fn new(refill: Refill, now: Moment) -> Throttle {
        let empty = Throttle { refill, tokens: 0.0, at: now };
        Throttle { tokens: empty.full(), ..empty }
    }

    /// A tick: tokens come back.
    pub fn tick(&mut self, now: Moment) {
        self.tokens = match self.refill {
            Refill::EachTick { ceiling } => ceiling,
            Refill::Carrying { rate, burst } => {
                (self.tokens + rate * now.since(self.at).as_secs_f64()).min(burst)
            }
        };
        self.at = now;
    }

    /// Takes tokens, or none.
    ///
    /// # Errors
    /// Says when there may be enough.
    pub fn take(&mut self, amount: f64) -> Result<(), Throttled> {
        if self.has(amount) {
            self.tokens -= amount;
            return Ok(());
        }
        let may_ever = amount <= self.full();
        Err(Throttled { retry_after: self.wait_for(amount).filter(|_| may_ever) })
    }

    /// Whether so many tokens may go now: as many are there, or there is a whole burst and they are more.
    ///
    /// # Errors
    /// Says when they may, if nothing else takes any until then.
    pub fn admits(&self, amount: f64) -> Result<(), Throttled> {
        let wanted = amount.min(self.full());
        if self.has(wanted) {
            return Ok(());
        }
        Err(Throttled { retry_after: self.wait_for(wanted) })
    }

    fn has(&self, tokens: f64) -> bool {
        self.tokens >= tokens
    }

    /// Most tokens that there can be.
    const fn full(&self) -> f64 {
        match self.refill {
            Refill::EachTick { ceiling } => ceiling,
            Refill::Carrying { burst, .. } => burst,
        }
    }

    /// Time until there are so many tokens, which are more than there are; `None` if time brings none.
    fn wait_for(&self, wanted: f64) -> Option<Duration> {
        match self.refill {
            Refill::EachTick { .. } => None,
            Refill::Carrying { rate, .. } => Duration::try_from_secs_f64((wanted - self.tokens) / rate).ok(),
        }
    }

    /// Tokens go. What is more than there are is owed: nothing else is admitted until it has come back.
    pub fn charge(&mut self, amount: f64) {
        self.tokens -= amount;
    }
}

impl Shedder {
    /// The same limit for all classes: order alone protects the first (the models').
    #[must_use]
    pub const fn uniform(queued_units: u64) -> Shedder {
        Shedder { limits: [Limit { queued_units, age: None }; 3] }
    }

    /// A node's: what nobody waits for is shed at half the limit and first when the queue is old; what frees
    /// is never shed for its age, and a quarter above the limit is its own.
    #[must_use]
    pub const fn by_class(queued_units: u64) -> Shedder {
        Shedder {
            limits: [
                Limit { queued_units: queued_units.saturating_add(queued_units / 4), age: None },
                Limit { queued_units, age: Some(DEMAND_AGE) },
                Limit { queued_units: queued_units / 2, age: Some(BACKGROUND_AGE) },
            ],
        }
    }

    /// A node's, where demand has deadlines of its own that end it: until then it is of use however old the queue is, and a
    /// queue that a rate holds back is old by right.
    #[must_use]
    pub const fn with_deadlines(queued_units: u64) -> Shedder {
        let mut shedder = Shedder::by_class(queued_units);
        shedder.limits[Class::Demand as usize].age = None;
        shedder
    }

    /// Longest that the head of the queue may have waited for work of a class to be let in, if that is bounded.
    #[must_use]
    pub const fn age_max(&self, class: Class) -> Option<Duration> {
        self.limits[class as usize].age
    }

    /// Whether work of so many units is let in behind `queued_units`, whose head has waited for `age`.
    #[must_use]
    pub fn admit(&self, class: Class, units: u64, queued_units: u64, age: Duration) -> Verdict {
        let limit = self.limits[class as usize];
        if queued_units.saturating_add(units) > limit.queued_units {
            Verdict::ShedForLength
        } else if limit.age.is_some_and(|most| age > most) {
            Verdict::ShedForAge
        } else {
            Verdict::Admit
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// What is there of a burst after all that went, from the definition alone: of every span that ends now, what the rate
    /// and a burst let go in it less what went.
    fn level(rate: i64, burst: i64, gone: &[(i64, i64)], now: i64) -> i64 {
        let of_span = |from: usize| {
            let went: i64 = gone[from..].iter().map(|(_, amount)| amount).sum();
            burst + (now - gone[from].0) * rate / 8 - went
        };
        (0..gone.len()).map(of_span).min().unwrap_or(burst).min(burst)
    }

    proptest! {
        /// Eighths of a second and rates that are multiples of eight: floating point has them exactly.
        #[test]
        fn every_span_has_its_rate_and_one_burst_and_what_is_larger_is_owed(
            (rate, burst) in (1i64..40, 1i64..60),
            tries in proptest::collection::vec((0i64..12, 1i64..90), 1..80),
        ) {
            let rate = 8 * rate;
            let mut throttle =
                Throttle::new(Refill::Carrying { rate: rate as f64, burst: burst as f64 }, Moment(0));
            let (mut now, mut gone) = (0, Vec::new());
            for (eighths, amount) in tries {
                now += eighths;
                throttle.tick(Moment(now as u64 * SECOND / 8));
                let level = level(rate, burst, &gone, now);
                let wanted = amount.min(burst);
                match throttle.admits(amount as f64) {
                    Ok(()) => {
                        prop_assert!(level >= wanted, "{amount} of {level}");
                        throttle.charge(amount as f64);
                        gone.push((now, amount));
                    }
                    Err(Throttled { retry_after }) => {
                        prop_assert!(level < wanted, "{amount} of {level}");
                        let wait = Duration::from_secs_f64((wanted - level) as f64 / rate as f64);
                        prop_assert_eq!(retry_after, Some(wait));
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_tick_leaves_is_carried_up_to_a_burst() {
        let rate = 1.8;
        let mut node = Throttle::new(Refill::Carrying { rate, burst: 4.0 }, Moment(0));
        let mut model = Throttle::new(Refill::EachTick { ceiling: rate }, Moment(0));
        let (mut of_node, mut of_model) = (0, 0);
        for tick in 1..=100 {
            node.tick(Moment(tick * SECOND));
            model.tick(Moment(tick * SECOND));
            // One and two pieces in turn: 1.5 a tick, below the ceiling.
            for _ in 0..1 + tick % 2 {
                of_node += u32::from(node.take(1.0).is_ok());
                of_model += u32::from(model.take(1.0).is_ok());
            }
        }
        assert_eq!((of_node, of_model), (150, 100), "the model refuses a third of what it promised");
        node.tick(Moment(1_000 * SECOND));
        assert_eq!((0..9).filter(|_| node.take(1.0).is_ok()).count(), 4, "a pause is no licence");
    }

    #[test]
    fn who_is_throttled_is_told_for_how_long() {
        let mut throttle = Throttle::new(Refill::Carrying { rate: 2.0, burst: 4.0 }, Moment(0));
        assert_eq!(throttle.take(4.0), Ok(()));
        assert_eq!(throttle.take(1.0), Err(Throttled { retry_after: Some(Duration::from_millis(500)) }));
        assert_eq!(throttle.take(5.0), Err(Throttled { retry_after: None }), "never");
        throttle.tick(Moment(SECOND / 2));
        assert_eq!(throttle.take(1.0), Ok(()));
    }

    #[test]
    fn what_nobody_waits_for_goes_first_and_what_frees_last() {
        let shedder = Shedder::by_class(100);
        let admits = |class, queued| shedder.admit(class, 1, queued, Duration::ZERO) == Verdict::Admit;
        for (queued, admitted) in
            [(49, [true; 3]), (50, [true, true, false]), (100, [true, false, false]), (125, [false; 3])]
        {
            let found = [Class::Release, Class::Demand, Class::Background].map(|class| admits(class, queued));
            assert_eq!(found, admitted, "behind {queued}");
        }
        let aged = |class, milliseconds| shedder.admit(class, 1, 0, Duration::from_millis(milliseconds));
        assert_eq!(aged(Class::Background, 51), Verdict::ShedForAge);
        assert_eq!(
            (aged(Class::Demand, 51), aged(Class::Demand, 501)),
            (Verdict::Admit, Verdict::ShedForAge)
        );
        assert_eq!(aged(Class::Release, 1_000_000), Verdict::Admit);
        // Where demand ends by itself its age is no reason, and all else is.
        let ends = Shedder::with_deadlines(100);
        for class in [Class::Release, Class::Demand, Class::Background] {
            for (queued, milliseconds) in [(0, 51), (49, 0), (50, 0), (100, 0), (125, 0)] {
                let age = Duration::from_millis(milliseconds);
                assert_eq!(ends.admit(class, 1, queued, age), shedder.admit(class, 1, queued, age));
            }
        }
        assert_eq!(ends.admit(Class::Demand, 1, 0, Duration::MAX), Verdict::Admit);
        assert_eq!(
            (ends.age_max(Class::Demand), ends.age_max(Class::Background)),
            (None, Some(BACKGROUND_AGE))
        );
    }

    #[test]
    fn the_models_limit_is_one_for_all() {
        let shedder = Shedder::uniform(100);
        for class in [Class::Release, Class::Demand, Class::Background] {
            assert_eq!(shedder.admit(class, 60, 40, Duration::MAX), Verdict::Admit);
            assert_eq!(shedder.admit(class, 60, 41, Duration::ZERO), Verdict::ShedForLength);
        }
    }
}
