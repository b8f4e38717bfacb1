//! Settings that can be changed while a node runs: what its flags say, and what a record in etcd lays over that.
//!
//! The record holds text; here it is understood, by the parsers and within the bounds of the flags, all of it or
//! nothing. Which of its versions is for which node is decided by [`orbitkv_shards::resilience::configuration`].

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use orbitkv_shards::planner::Mode;
use orbitkv_shards::resilience::configuration::{Published, Rollout};
use orbitkv_wire::config::{ConfigRecord, PLACES, Staged, Texts, Version};
use thiserror::Error;

use super::cluster::{coalesce, routing};
use super::config_file::{nearest, setting_names};
use super::guard::{PeerGuard, guard};
use super::{NodeArgs, NodeSettings, RoutePolicy, SettingsError, audit_interval};
use crate::quantity::Span;

/// What can be changed while a node runs, in the order of names; `log` has no flag.
pub const CHANGEABLE: [&str; 9] = [
    "audit",
    "breaker",
    "breaker-calls",
    "breaker-pause",
    "call-budget",
    "coalesce",
    "log",
    "retry-percent",
    "route-policy",
];

/// What a node logs at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What went wrong.
    Error,
    /// And what may.
    Warn,
    /// And what happens now and then.
    Info,
    /// And what happens often.
    Debug,
    /// And everything else.
    Trace,
}

impl LogLevel {
    /// For the log's filter: libraries say no more than at `info`.
    #[must_use]
    pub fn directives(self) -> String {
        match self {
            LogLevel::Debug | LogLevel::Trace => format!("info,orbitkv={self},orbitkv_native={self}"),
            level => level.to_string(),
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&name_of(self))
    }
}

fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is hidden").get_name().to_owned()
}

/// What a node does that can be changed while it runs, decided and within its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Pause of a shard between two blocks on SSD that it reads again; none if it reads none.
    pub audit_interval: Option<Duration>,
    /// How long a change may wait for others before peers are told.
    pub coalesce: Duration,
    /// How it is chosen which node is asked for a block.
    pub routing: Mode,
    /// How peers that fail are treated.
    pub guard: PeerGuard,
    /// What is logged; none if the environment says it.
    pub log: Option<LogLevel>,
}

impl Policy {
    /// What the flags say; none if the node is standalone, where nobody could change it.
    #[must_use]
    pub fn of(settings: &NodeSettings) -> Option<Policy> {
        let cluster = settings.cluster.as_ref()?;
        Some(Policy {
            audit_interval: settings.audit_interval,
            coalesce: cluster.coalesce,
            routing: cluster.routing,
            guard: cluster.guard,
            log: None,
        })
    }

    /// Each setting that can be changed, and its value as text.
    #[must_use]
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        let policy = match self.routing {
            Mode::Fixed => RoutePolicy::Fixed,
            Mode::Shadow => RoutePolicy::Shadow,
            Mode::Executed => RoutePolicy::Executed,
        };
        let guard = &self.guard.guard;
        let text = |name: &'static str| match name {
            "audit" => Span(self.audit_interval.unwrap_or_default()).to_string(),
            "breaker" => guard.failed_percent.to_string(),
            "breaker-calls" => guard.window_calls.to_string(),
            "breaker-pause" => Span(guard.open_for).to_string(),
            "call-budget" => Span(self.guard.call_budget).to_string(),
            "coalesce" => Span(self.coalesce).to_string(),
            "log" => self.log.map_or_else(|| "as started".to_owned(), |level| level.to_string()),
            "retry-percent" => (guard.extra_permille / 10).to_string(),
            "route-policy" => name_of(&policy),
            name => unreachable!("{name} cannot be changed"),
        };
        CHANGEABLE.into_iter().map(|name| (name, text(name))).collect()
    }
}

/// Why settings of a record are not taken, none of them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// A setting that a running node cannot change.
    #[error(
        "{name} needs a restart: it is fixed while a node runs; give --{name} when the node is started. What can be \
         changed: {}", CHANGEABLE.join(", ")
    )]
    NeedsRestart {
        /// Its name.
        name: String,
    },
    /// No setting.
    #[error("{name} is no setting of this version; did you mean {nearest}?")]
    Unknown {
        /// Its name.
        name: String,
        /// The setting most like it.
        nearest: String,
    },
    /// A value that is none.
    #[error("{name} {value}: {why}; {remedy}")]
    Value {
        /// The setting.
        name: String,
        /// The value as written.
        value: String,
        /// What it has to satisfy.
        why: String,
        /// What to do.
        remedy: String,
    },
}

/// What a version of a record lays over the flags. All of it is within its bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    args: NodeArgs,
    log: Option<LogLevel>,
}

impl Overrides {
    /// Understands settings.
    ///
    /// # Errors
    /// The first that is not taken; then none is.
    pub fn of(texts: &Texts) -> Result<Overrides, PolicyError> {
        let mut overrides = Overrides::default();
        for (name, value) in texts {
            overrides.set(name, value)?;
        }
        // Written in another way it would be another record that means the same.
        for (name, exact) in overrides.alone().texts() {
            let Some(value) = texts.get(name).filter(|value| **value != exact) else { continue };
            return Err(PolicyError::Value {
                name: name.to_owned(),
                value: value.clone(),
                why: "is written in another way".to_owned(),
                remedy: format!("write {exact}"),
            });
        }
        Ok(overrides)
    }

    /// A setting as an operator may write it, in the one way in which it stands in a record.
    ///
    /// # Errors
    /// If it is not taken.
    pub fn exact(name: &str, value: &str) -> Result<String, PolicyError> {
        let mut overrides = Overrides::default();
        overrides.set(name, value)?;
        let text = overrides.alone().texts().into_iter().find(|(known, _)| *known == name);
        Ok(text.expect("what is taken can be changed").1)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), PolicyError> {
        let wrong = |why: String| PolicyError::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            why,
            remedy: "see the operator guide, Change settings while nodes run".to_owned(),
        };
        let span = || value.parse::<Span>().map(Some).map_err(|error| wrong(error.to_string()));
        let count = || {
            let count = value.parse::<u32>().ok();
            count.map(Some).ok_or_else(|| wrong("must be a whole number".to_owned()))
        };
        let args = &mut self.args;
        match name {
            "audit" => args.audit = span()?,
            "breaker" => args.breaker = count()?,
            "breaker-calls" => args.breaker_calls = count()?,
            "breaker-pause" => args.breaker_pause = span()?,
            "call-budget" => args.call_budget = span()?,
            "coalesce" => args.coalesce = span()?,
            "log" => self.log = Some(one_of::<LogLevel>(value).map_err(wrong)?),
            "retry-percent" => args.retry_percent = count()?,
            "route-policy" => args.route_policy = Some(one_of::<RoutePolicy>(value).map_err(wrong)?),
            _ => {
                let name = name.to_owned();
                return Err(match setting_names().contains(&name) {
                    true => PolicyError::NeedsRestart { name },
                    false => PolicyError::Unknown { nearest: nearest(&name, CHANGEABLE), name },
                });
            }
        }
        self.check().map_err(|error| match error {
            SettingsError::Refused { bound, remedy, .. } => PolicyError::Value {
                name: name.to_owned(),
                value: value.to_owned(),
                why: bound,
                remedy: remedy.replace(&format!("--{name} "), &format!("{name}=")),
            },
            other => wrong(other.to_string()),
        })
    }

    /// Whether everything is within the bounds of its flag.
    fn check(&self) -> Result<(), SettingsError> {
        coalesce(&self.args)?;
        guard(&self.args)?;
        audit_interval(&self.args).map(|_| ())
    }

    /// What these settings alone come to, where the others have their defaults.
    fn alone(&self) -> Policy {
        let within = "what was set is within its bounds";
        Policy {
            audit_interval: audit_interval(&self.args).expect(within),
            coalesce: coalesce(&self.args).expect(within),
            routing: routing(&self.args),
            guard: guard(&self.args).expect(within),
            log: self.log,
        }
    }

    /// What a node does whose flags say this.
    #[must_use]
    pub fn over(&self, flags: &Policy) -> Policy {
        let (set, args) = (self.alone(), &self.args);
        let mut policy = *flags;
        if args.audit.is_some() {
            policy.audit_interval = set.audit_interval;
        }
        if args.coalesce.is_some() {
            policy.coalesce = set.coalesce;
        }
        if args.route_policy.is_some() {
            policy.routing = set.routing;
        }
        if args.call_budget.is_some() {
            policy.guard.call_budget = set.guard.call_budget;
        }
        let (peers, set_peers) = (&mut policy.guard.guard, set.guard.guard);
        if args.breaker.is_some() {
            peers.failed_percent = set_peers.failed_percent;
        }
        if args.breaker_calls.is_some() {
            peers.window_calls = set_peers.window_calls;
        }
        if args.breaker_pause.is_some() {
            peers.open_for = set_peers.open_for;
        }
        if args.retry_percent.is_some() {
            peers.extra_permille = set_peers.extra_permille;
        }
        policy.log = self.log.or(flags.log);
        policy
    }
}

fn one_of<T: ValueEnum>(value: &str) -> Result<T, String> {
    T::from_str(value, false).map_err(|_| {
        let names: Vec<String> = T::value_variants().iter().map(name_of).collect();
        format!("must be one of {}", names.join(", "))
    })
}

/// A record as it is rolled out: version numbers with what they lay over the flags.
pub type Rollouts = Published<(u64, Overrides)>;

fn understood(version: &Version) -> Result<(u64, Overrides), PolicyError> {
    Overrides::of(&version.settings).map(|overrides| (version.number, overrides))
}

/// Understands a record, every version of it.
///
/// # Errors
/// The first setting that is not taken; then nothing of the record is.
pub fn rollouts(record: &ConfigRecord) -> Result<Rollouts, PolicyError> {
    // Somebody may want it back.
    record.former.as_ref().map(understood).transpose()?;
    let candidate = record.staged.as_ref().map(|Staged { version, share }| {
        let rollout = Rollout::Staged { admitted: *share, of: PLACES };
        understood(version).map(|version| (version, rollout))
    });
    Ok(Published {
        version: record.number,
        stable: understood(&record.stable)?,
        candidate: candidate.transpose()?,
    })
}

#[cfg(test)]
mod tests;
