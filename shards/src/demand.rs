//! What an engine needs at a boundary, compiled from its layer groups (chapter 3.1).
//!
//! All positions and boundaries are in blocks of the prefix: boundary `b` stands after the blocks
//! `0..b`, and boundary 0 needs nothing. Every kind of group becomes one rule with three numbers: at
//! `b`, which must be a multiple of the interval, the first *sink* blocks and the last *window* blocks
//! must be there. Block `i` of a checkpoint group holds the state at the *end* of that block.
//!
//! Pure: nothing here knows media, time or I/O.

use std::ops::Range;

use orbitkv_wire::bounds::GROUPS_MAX;
use orbitkv_wire::identity::GroupId;
pub use orbitkv_wire::namespace::GroupKind;

mod presence;

pub use presence::PresenceBits;

/// One layer group of a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDemand {
    /// The group's number inside its namespace.
    pub group: GroupId,
    /// How it retains a prefix.
    pub kind: GroupKind,
}

/// Why groups do not make a demand, or a boundary is none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// A block without tokens.
    #[error("block_tokens is 0")]
    BlockTokensZero,
    /// A namespace has at least one group.
    #[error("a namespace needs at least one group")]
    NoGroups,
    /// More groups than a namespace may have.
    #[error("{groups} groups, but a namespace has at most {GROUPS_MAX}")]
    TooManyGroups {
        /// Groups given.
        groups: usize,
    },
    /// Two groups with one number.
    #[error("group {} is there twice", group.0)]
    DuplicateGroup {
        /// The number.
        group: GroupId,
    },
    /// A window of no tokens.
    #[error("group {}: window_tokens is 0", group.0)]
    WindowZero {
        /// The group.
        group: GroupId,
    },
    /// States at no distance.
    #[error("group {}: interval_tokens is 0", group.0)]
    IntervalZero {
        /// The group.
        group: GroupId,
    },
    /// States that lie inside blocks.
    #[error(
        "group {}: interval_tokens {interval_tokens} is not a multiple of block_tokens {block_tokens}",
        group.0
    )]
    IntervalInsideBlock {
        /// The group.
        group: GroupId,
        /// Its interval.
        interval_tokens: u32,
        /// Tokens of a block.
        block_tokens: u32,
    },
    /// A boundary between two states.
    #[error("boundary {blocks} splits group {}, whose states are {interval_blocks} blocks apart", group.0)]
    IllegalSplit {
        /// The boundary.
        blocks: u32,
        /// The group.
        group: GroupId,
        /// Blocks between two of its states.
        interval_blocks: u32,
    },
}

/// A boundary that no group's states are split by, in blocks. Only a [`Demand`] makes one, so an
/// illegal split cannot be expressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Boundary(u32);

impl Boundary {
    /// Blocks before the boundary.
    #[must_use]
    pub fn blocks(self) -> u32 {
        self.0
    }
}

/// The blocks of one group that are needed at a boundary: two ranges, either of which may be empty,
/// in order and apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededBlocks {
    sink: Range<u32>,
    window: Range<u32>,
}

impl NeededBlocks {
    /// The ranges that are not empty, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u32>> {
        [self.sink.clone(), self.window.clone()].into_iter().filter(|range| !range.is_empty())
    }

    /// Whether block `position` is needed.
    #[must_use]
    pub fn contains(&self, position: u32) -> bool {
        self.sink.contains(&position) || self.window.contains(&position)
    }

    /// How many blocks are needed.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.sink.end - self.sink.start) + (self.window.end - self.window.start)
    }
}

/// What a group of any kind needs at boundary `b`: blocks `0..min(sink, b)` and the last
/// `min(window, b)`, and `b` a multiple of the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    group: GroupId,
    sink_blocks: u32,
    window_blocks: u32,
    interval_blocks: u32,
}

/// The compiled demand of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    block_tokens: u32,
    rules: Vec<Rule>,
}

impl Demand {
    /// Compiles the groups of a namespace whose blocks have `block_tokens` tokens. Windows and sinks
    /// that end inside a block take in the whole block.
    ///
    /// # Errors
    /// Any [`DemandError`] but `IllegalSplit`.
    pub fn compile(block_tokens: u32, groups: &[GroupDemand]) -> Result<Demand, DemandError> {
        if block_tokens == 0 {
            return Err(DemandError::BlockTokensZero);
        }
        if groups.is_empty() {
            return Err(DemandError::NoGroups);
        }
        if groups.len() > GROUPS_MAX {
            return Err(DemandError::TooManyGroups { groups: groups.len() });
        }
        let mut rules: Vec<Rule> = Vec::with_capacity(groups.len());
        for &GroupDemand { group, kind } in groups {
            if rules.iter().any(|rule| rule.group == group) {
                return Err(DemandError::DuplicateGroup { group });
            }
            rules.push(Rule::compile(block_tokens, group, kind)?);
        }
        Ok(Demand { block_tokens, rules })
    }

    /// Groups, in the order they were given.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.rules.len()
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// The boundary after `blocks` blocks.
    ///
    /// # Errors
    /// [`DemandError::IllegalSplit`] if a group has no state there.
    pub fn boundary(&self, blocks: u32) -> Result<Boundary, DemandError> {
        match self.rules.iter().find(|rule| !blocks.is_multiple_of(rule.interval_blocks)) {
            None => Ok(Boundary(blocks)),
            Some(&Rule { group, interval_blocks, .. }) => {
                Err(DemandError::IllegalSplit { blocks, group, interval_blocks })
            }
        }
    }

    /// The longest boundary of at most `positions` blocks at which every group is satisfied.
    /// `presence` has the blocks of each group, in the groups' order.
    ///
    /// The common boundary of several demands is where lowering each in turn, with the others' result
    /// as its `positions`, changes nothing any more.
    ///
    /// # Panics
    /// If `presence` is not one per group, or does not say `positions` blocks.
    #[must_use]
    pub fn longest(&self, presence: &[PresenceBits], positions: u32) -> Boundary {
        Boundary(self.solve(presence, positions, positions))
    }

    /// What [`Demand::longest`] can still become when only the first `examined` of `positions` blocks
    /// of each group are known: exact if all the others are present, never too low. When it is no
    /// larger than the longest boundary among the examined, examining more is of no use.
    ///
    /// # Panics
    /// If `presence` is not one per group, or does not say the `examined` blocks.
    #[must_use]
    pub fn bound(&self, presence: &[PresenceBits], examined: u32, positions: u32) -> u32 {
        self.solve(presence, examined.min(positions), positions)
    }

    /// The blocks of a group, by its index in the groups' order, that are needed at `boundary`.
    ///
    /// # Panics
    /// If there is no such group, or the boundary is another demand's and splits this group.
    #[must_use]
    pub fn needed(&self, group_index: usize, boundary: Boundary) -> NeededBlocks {
        let rule = self.rules[group_index];
        let Boundary(end) = boundary;
        assert!(end.is_multiple_of(rule.interval_blocks), "a boundary splits no group");
        let sink_end = rule.sink_blocks.min(end);
        let window_start = end.saturating_sub(rule.window_blocks);
        if window_start <= sink_end {
            return NeededBlocks { sink: 0..0, window: 0..end };
        }
        NeededBlocks { sink: 0..sink_end, window: window_start..end }
    }

    /// Lowers the boundary until no group lowers it further. Each group remembers down to where it has
    /// found its blocks present, so that every block is looked at once: the work is
    /// O(positions · groups) at worst, and by words of 64 blocks.
    fn solve(&self, presence: &[PresenceBits], examined: u32, positions: u32) -> u32 {
        assert_eq!(presence.len(), self.rules.len(), "one set of blocks a group");
        assert!(presence.iter().all(|bits| bits.positions() >= examined), "the examined blocks are told");
        let mut boundary = positions;
        for (rule, bits) in self.rules.iter().zip(presence) {
            let sink = 0..rule.sink_blocks.min(examined).min(boundary);
            boundary = bits.first_missing(sink).unwrap_or(boundary);
        }
        let mut present_from = [positions; GROUPS_MAX];
        loop {
            let before = boundary;
            for ((rule, bits), present_from) in self.rules.iter().zip(presence).zip(&mut present_from) {
                boundary = rule.lower(boundary, bits, examined, present_from);
            }
            if boundary == before {
                return boundary;
            }
        }
    }
}

impl Rule {
    fn compile(block_tokens: u32, group: GroupId, kind: GroupKind) -> Result<Rule, DemandError> {
        let window_blocks = |tokens: u32| match tokens {
            0 => Err(DemandError::WindowZero { group }),
            _ => Ok(tokens.div_ceil(block_tokens)),
        };
        let free = Rule { group, sink_blocks: 0, window_blocks: 0, interval_blocks: 1 };
        match kind {
            GroupKind::Full => Ok(Rule { sink_blocks: u32::MAX, ..free }),
            GroupKind::Sliding { window_tokens } => {
                Ok(Rule { window_blocks: window_blocks(window_tokens)?, ..free })
            }
            GroupKind::Checkpoint { interval_tokens: 0 } => Err(DemandError::IntervalZero { group }),
            GroupKind::Checkpoint { interval_tokens } => {
                if !interval_tokens.is_multiple_of(block_tokens) {
                    return Err(DemandError::IntervalInsideBlock { group, interval_tokens, block_tokens });
                }
                Ok(Rule { window_blocks: 1, interval_blocks: interval_tokens / block_tokens, ..free })
            }
            GroupKind::SinkSliding { sink_tokens, window_tokens } => Ok(Rule {
                sink_blocks: sink_tokens.div_ceil(block_tokens),
                window_blocks: window_blocks(window_tokens)?,
                ..free
            }),
        }
    }

    /// The longest boundary of at most `boundary` that interval and window allow. All blocks of
    /// `present_from..boundary` are known to be present; blocks from `examined` on count as present.
    fn lower(&self, mut boundary: u32, bits: &PresenceBits, examined: u32, present_from: &mut u32) -> u32 {
        loop {
            boundary -= boundary % self.interval_blocks;
            *present_from = (*present_from).min(boundary);
            let window_start = boundary.saturating_sub(self.window_blocks);
            let unknown_end = (*present_from).min(examined);
            match bits.last_missing(window_start.min(unknown_end)..unknown_end) {
                // Every boundary from here down to the missing block has it in its window.
                Some(missing) => boundary = missing,
                None => {
                    *present_from = (*present_from).min(window_start);
                    return boundary;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
