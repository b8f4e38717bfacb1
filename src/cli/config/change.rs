//! What becomes of the record of settings by a change: pure, one record in, the next one out.

use orbitkv_wire::bounds::CONFIG_NUMBER_MAX;
use orbitkv_wire::config::{ConfigRecord, PLACES, Staged, Version};
use thiserror::Error;

use crate::settings::{CHANGEABLE, Overrides, PolicyError};

/// What an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Settings and their values, or none to leave a setting to the flags, for this percentage of the nodes.
    Set {
        /// By name, each once.
        settings: Vec<(String, Option<String>)>,
        /// 1 to 100.
        share: u32,
    },
    /// What is staged for this percentage of the nodes.
    Promote {
        /// 1 to 100.
        share: u32,
    },
    /// What is staged goes, else what was before comes again.
    Revert,
}

/// Why a record stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unchanged {
    /// A value.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A setting is named twice.
    #[error("{0} is named twice; name each setting once")]
    Twice(String),
    /// It says so already.
    #[error("version {0} says all of that already")]
    Same(u64),
    /// One thing at a time.
    #[error(
        "version {version} is staged for {share} % of the nodes: `orbitkv config promote` it or `orbitkv config revert` \
         it first"
    )]
    Busy {
        /// What is staged.
        version: u64,
        /// For how many.
        share: u32,
    },
    /// Nothing is staged.
    #[error("nothing is staged: `orbitkv config set … --stage PERCENT` stages")]
    NothingStaged,
    /// A stage is only left forwards.
    #[error(
        "version {version} is staged for {share} % of the nodes already: name a larger share, or `orbitkv config revert` it"
    )]
    NotMore {
        /// What is staged.
        version: u64,
        /// For how many.
        share: u32,
    },
    /// Nothing was before.
    #[error(
        "there is nothing to go back to: nothing is staged, and what version {0} took the place of is not kept; \
         `orbitkv config set` what shall hold"
    )]
    NothingBefore(u64),
    /// Numbers are used up, by a record that somebody wrote by hand or above a number that was too large.
    #[error(
        "there is no number above {0} for a record: remove it (`etcdctl del`) and, with their nodes stopped, the copies in \
         their data directories (`config`), then set anew what shall hold"
    )]
    NoNumber(u64),
}

impl Unchanged {
    /// Whether the operator has written something that is none, whatever the record says.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Unchanged::Policy(_) | Unchanged::Twice(_))
    }
}

/// The number of the next record: above that of the last, or where there is none above etcd's revision, which every
/// number before was at most unless one was made above something larger; and above `above`.
///
/// # Errors
/// [`Unchanged::NoNumber`].
pub fn next_number(before: Option<&ConfigRecord>, revision: u64, above: u64) -> Result<u64, Unchanged> {
    let last = before.map_or(revision, |before| before.number).max(above);
    if last < CONFIG_NUMBER_MAX { Ok(last + 1) } else { Err(Unchanged::NoNumber(last)) }
}

/// The record that follows, under this number. One that is numbered above something may say the same again: nodes that
/// refuse the record as older take it under its new number.
///
/// # Errors
/// [`Unchanged`].
pub fn apply(
    before: Option<&ConfigRecord>,
    number: u64,
    above: u64,
    change: &Change,
) -> Result<ConfigRecord, Unchanged> {
    let is_renumbered = above > 0 && before.is_none_or(|before| above >= before.number);
    let stable = before.map(|before| before.stable.clone()).unwrap_or_default();
    let staged = before.and_then(|before| before.staged.clone());
    let former = before.and_then(|before| before.former.clone());
    match change {
        Change::Set { settings, share } => {
            let wanted = overlaid(&stable, settings)?;
            if let Some(Staged { version, share }) = staged {
                return Err(Unchanged::Busy { version: version.number, share });
            }
            let is_same = wanted == stable.settings;
            if is_same && !is_renumbered {
                return Err(Unchanged::Same(stable.number));
            }
            let version = Version { number, settings: wanted };
            Ok(match *share {
                share if share < PLACES => {
                    ConfigRecord { number, stable, staged: Some(Staged { version, share }), former }
                }
                // What was before the same is still what was before.
                _ => {
                    let former = if is_same { former } else { Some(stable) };
                    ConfigRecord { number, stable: version, staged: None, former }
                }
            })
        }
        Change::Promote { share } => {
            let Staged { version, share: present } = staged.ok_or(Unchanged::NothingStaged)?;
            if *share <= present {
                return Err(Unchanged::NotMore { version: version.number, share: present });
            }
            Ok(match *share {
                share if share < PLACES => {
                    ConfigRecord { number, stable, staged: Some(Staged { version, share }), former }
                }
                _ => ConfigRecord { number, stable: version, staged: None, former: Some(stable) },
            })
        }
        Change::Revert => match (staged, former) {
            (Some(_), former) => Ok(ConfigRecord { number, stable, staged: None, former }),
            (None, Some(former)) => Ok(ConfigRecord { number, stable: former, staged: None, former: None }),
            (None, None) => Err(Unchanged::NothingBefore(stable.number)),
        },
    }
}

/// Settings of a version with a change laid over them.
fn overlaid(
    stable: &Version,
    changes: &[(String, Option<String>)],
) -> Result<orbitkv_wire::config::Texts, Unchanged> {
    let mut wanted = stable.settings.clone();
    for (at, (name, value)) in changes.iter().enumerate() {
        if changes[..at].iter().any(|(other, _)| other == name) {
            return Err(Unchanged::Twice(name.clone()));
        }
        match value {
            Some(value) => {
                wanted.insert(name.clone(), Overrides::exact(name, value)?);
            }
            None if CHANGEABLE.contains(&name.as_str()) => {
                wanted.remove(name);
            }
            None => {
                Overrides::exact(name, "default")?;
            }
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)], share: u32) -> Change {
        let value = |value: &str| (value != "default").then(|| value.to_owned());
        let settings = pairs.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
        Change::Set { settings, share }
    }

    fn texts(version: &Version) -> String {
        let pairs: Vec<String> =
            version.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}: {}", version.number, pairs.join(" "))
    }

    /// What stands in a record, in words: stable, staged with its share, former.
    fn words(record: &ConfigRecord) -> (u64, String, Option<(u32, String)>, Option<String>) {
        assert_eq!(ConfigRecord::decode(record.encode().as_bytes()).as_ref(), Ok(record));
        let staged = record.staged.as_ref().map(|staged| (staged.share, texts(&staged.version)));
        (record.number, texts(&record.stable), staged, record.former.as_ref().map(texts))
    }

    /// Applies one change after the other; each under the next number, none of which may be refused.
    fn after(changes: &[Change]) -> ConfigRecord {
        let record = changes.iter().fold(None, |before: Option<ConfigRecord>, change| {
            let number = next_number(before.as_ref(), 0, 0).expect("few records");
            Some(apply(before.as_ref(), number, 0, change).expect("a change"))
        });
        record.expect("at least one")
    }

    #[test]
    fn a_version_is_staged_promoted_and_settled() {
        let (first, second) =
            (set(&[("coalesce", "1ms")], 100), set(&[("breaker", "70"), ("coalesce", "0.003s")], 25));
        let s = str::to_owned;
        assert_eq!(
            words(&after(std::slice::from_ref(&first))),
            (1, s("1: coalesce=1ms"), None, Some(s("0: ")))
        );
        let staged = after(&[first.clone(), second.clone()]);
        let candidate = |share| Some((share, s("2: breaker=70 coalesce=3ms")));
        assert_eq!(words(&staged), (2, s("1: coalesce=1ms"), candidate(25), Some(s("0: "))));
        let more = Change::Promote { share: 60 };
        let promoted = after(&[first.clone(), second.clone(), more.clone()]);
        assert_eq!(words(&promoted), (3, s("1: coalesce=1ms"), candidate(60), Some(s("0: "))));
        let all = Change::Promote { share: 100 };
        let settled = after(&[first.clone(), second.clone(), more, all]);
        assert_eq!(words(&settled), (4, s("2: breaker=70 coalesce=3ms"), None, Some(s("1: coalesce=1ms"))));
        let taken_back = apply(Some(&settled), 5, 0, &Change::Revert).expect("what was before is kept");
        assert_eq!(words(&taken_back), (5, s("1: coalesce=1ms"), None, None));
        assert_eq!(apply(Some(&taken_back), 6, 0, &Change::Revert), Err(Unchanged::NothingBefore(1)));
        let given_up = apply(Some(&staged), 3, 0, &Change::Revert).expect("it is staged");
        assert_eq!(words(&given_up), (3, s("1: coalesce=1ms"), None, Some(s("0: "))));
        let to_flags = apply(Some(&settled), 5, 0, &set(&[("breaker", "default")], 100)).expect("a change");
        assert_eq!(words(&to_flags), (5, s("5: coalesce=3ms"), None, Some(s("2: breaker=70 coalesce=3ms"))));
    }

    #[test]
    fn what_changes_nothing_or_is_none_is_refused() {
        let first = after(&[set(&[("coalesce", "1ms")], 100)]);
        let staged = after(&[set(&[("coalesce", "1ms")], 50)]);
        let refused = |before: &ConfigRecord, change: &Change| {
            let refusal = apply(Some(before), before.number + 1, 0, change).expect_err("refused");
            (refusal.is_usage(), refusal.to_string())
        };
        for (before, change, is_usage, part) in [
            (&first, set(&[("coalesce", "1000us")], 100), false, "version 1 says all of that already"),
            (&first, set(&[("breaker", "default")], 50), false, "version 1 says all of that already"),
            (&staged, set(&[("breaker", "1")], 100), false, "version 1 is staged for 50 % of the nodes"),
            (&first, Change::Promote { share: 100 }, false, "nothing is staged"),
            (&staged, Change::Promote { share: 50 }, false, "name a larger share"),
            (&staged, Change::Promote { share: 10 }, false, "name a larger share"),
            (
                &first,
                set(&[("coalesce", "6ms")], 100),
                true,
                "coalesce 6ms: must be at most 5ms; use coalesce=2ms",
            ),
            (&staged, set(&[("coalesce", "6ms")], 100), true, "must be at most 5ms"),
            (&first, set(&[("dram", "1gib")], 100), true, "dram needs a restart"),
            (&first, set(&[("dram", "default")], 100), true, "dram needs a restart"),
            (&first, set(&[("coalesc", "1ms")], 100), true, "did you mean coalesce?"),
            (&first, set(&[("breaker", "1"), ("breaker", "2")], 100), true, "breaker is named twice"),
        ] {
            let (usage, text) = refused(before, &change);
            assert!(usage == is_usage && text.contains(part), "{change:?}: {text}");
        }
        assert_eq!(apply(None, 1, 0, &Change::Revert), Err(Unchanged::NothingBefore(0)));
    }

    #[test]
    fn a_record_of_an_etcd_that_was_restored_may_say_the_same_above_the_number_that_nodes_have() {
        let s = str::to_owned;
        let number =
            |before: Option<&ConfigRecord>, above| next_number(before, 7, above).expect("few records");
        let again = |before: Option<&ConfigRecord>, above, change: &Change| {
            apply(before, number(before, above), above, change)
        };
        let same = set(&[("coalesce", "1ms")], 100);
        let first = ConfigRecord { number: 40, ..after(std::slice::from_ref(&same)) };
        assert_eq!(
            words(&again(Some(&first), 50, &same).expect("it is numbered anew")),
            (51, s("51: coalesce=1ms"), None, Some(s("0: ")))
        );
        assert_eq!(words(&again(Some(&first), 40, &same).expect("above its own")).0, 41);
        // Below its number nothing is numbered anew.
        for above in [0, 39] {
            assert_eq!(again(Some(&first), above, &same), Err(Unchanged::Same(1)));
        }
        // The record is lost, and what nodes have was nothing but their flags.
        let to_flags = set(&[("coalesce", "default")], 100);
        assert_eq!(words(&again(None, 50, &to_flags).expect("a record")), (51, s("51: "), None, None));
        assert_eq!(again(None, 0, &to_flags), Err(Unchanged::Same(0)));
        // Something is staged in what was restored.
        let staged = ConfigRecord { number: 40, ..after(&[same.clone(), set(&[("breaker", "70")], 25)]) };
        assert!(matches!(again(Some(&staged), 50, &same), Err(Unchanged::Busy { .. })));
        let reverted = again(Some(&staged), 50, &Change::Revert).expect("it is staged");
        assert_eq!(words(&reverted), (51, s("1: coalesce=1ms"), None, Some(s("0: "))));
        let promoted = again(Some(&staged), 50, &Change::Promote { share: 100 }).expect("it is staged");
        assert_eq!(words(&promoted), (51, s("2: breaker=70 coalesce=1ms"), None, Some(s("1: coalesce=1ms"))));
    }

    #[test]
    fn numbers_only_grow_whatever_happened_to_the_record() {
        let first = after(&[set(&[("coalesce", "1ms")], 100)]);
        assert_eq!(next_number(Some(&first), 900, 0), Ok(2));
        assert_eq!(
            next_number(None, 900, 0),
            Ok(901),
            "a removed record that was not made above anything had at most etcd's revision"
        );
        assert_eq!(next_number(Some(&first), 900, 41), Ok(42));
        assert_eq!(next_number(None, 0, 0), Ok(1));
    }

    #[test]
    fn numbers_end_with_a_refusal() {
        let last = next_number(None, 0, CONFIG_NUMBER_MAX - 1).expect("the largest there is");
        assert_eq!(last, CONFIG_NUMBER_MAX);
        let record =
            apply(None, last, CONFIG_NUMBER_MAX - 1, &set(&[("coalesce", "1ms")], 50)).expect("a change");
        assert_eq!(words(&record).0, last);
        assert_eq!(next_number(Some(&record), 900, 0), Err(Unchanged::NoNumber(last)));
        assert_eq!(next_number(None, 900, u64::MAX), Err(Unchanged::NoNumber(u64::MAX)));
    }
}
