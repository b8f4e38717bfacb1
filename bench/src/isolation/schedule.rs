//! Which runs a campaign has, in which order: pure, so that a campaign that was interrupted goes on with the same list.
//!
//! Pairs are balanced in order, so that what a machine does with time meets both sides alike: of four pairs one after
//! another the sides come as A B, B A (the first block, ABBA), then B A, A B (the second, BAAB), and so on. Media and
//! kinds begin with different blocks, because five pairs cannot be balanced alone.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Where the foreground's blocks are restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Memory of the node.
    Dram,
    /// Its SSD file, DRAM having been cleared.
    Ssd,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::Dram => "dram",
            Medium::Ssd => "ssd",
        })
    }
}

/// What the two runs of a pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Both are quiet: what the machine itself does to the ratio.
    QuietQuiet,
    /// One is quiet, the other under pressure.
    QuietPressure,
}

/// Which run of its pair one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// A: what is compared with.
    Base,
    /// B: what is compared.
    Compared,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// Its place in the campaign, from 1.
    pub number: usize,
    /// Medium of the foreground.
    pub medium: Medium,
    /// What its pair is.
    pub kind: Kind,
    /// Its pair, from 1.
    pub pair: usize,
    /// Which of the two.
    pub side: Side,
}

impl Cell {
    /// Whether the pressure works.
    pub fn is_under_pressure(&self) -> bool {
        self.kind == Kind::QuietPressure && self.side == Side::Compared
    }

    /// A name that says what it is; files are called so.
    pub fn name(&self) -> String {
        let Cell { number, medium, kind, pair, side } = self;
        let what = match (kind, side) {
            (Kind::QuietQuiet, Side::Base) => "quiet-quiet-pair{}-a",
            (Kind::QuietQuiet, Side::Compared) => "quiet-quiet-pair{}-b",
            (Kind::QuietPressure, Side::Base) => "quiet-pressure-pair{}-quiet",
            (Kind::QuietPressure, Side::Compared) => "quiet-pressure-pair{}-pressure",
        };
        format!("{number:02}-{medium}-{}", what.replace("{}", &pair.to_string()))
    }
}

/// All runs of a campaign, in order: medium by medium, and of each the quiet pairs first.
pub fn schedule(media: &[Medium], pairs: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &medium in media {
        for kind in [Kind::QuietQuiet, Kind::QuietPressure] {
            let begins_with_second_block = (medium == Medium::Ssd) != (kind == Kind::QuietQuiet);
            for pair in 0..pairs {
                for side in order(pair, begins_with_second_block) {
                    cells.push(Cell { number: cells.len() + 1, medium, kind, pair: pair + 1, side });
                }
            }
        }
    }
    cells
}

/// The sides of a pair in the order they run.
fn order(pair: usize, begins_with_second_block: bool) -> [Side; 2] {
    let is_base_first = matches!(pair % 4, 0 | 3);
    match is_base_first != begins_with_second_block {
        true => [Side::Base, Side::Compared],
        false => [Side::Compared, Side::Base],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(cells: &[Cell], medium: Medium, kind: Kind) -> String {
        let of = cells.iter().filter(|cell| cell.medium == medium && cell.kind == kind);
        of.map(|cell| if cell.side == Side::Base { 'A' } else { 'B' }).collect()
    }

    #[test]
    fn pairs_come_as_abba_and_baab_and_are_balanced_over_all() {
        let cells = schedule(&[Medium::Dram, Medium::Ssd], 5);
        assert_eq!(cells.len(), 40);
        assert_eq!(letters(&cells, Medium::Dram, Kind::QuietPressure), "ABBABAABAB");
        assert_eq!(letters(&cells, Medium::Dram, Kind::QuietQuiet), "BAABABBABA");
        assert_eq!(letters(&cells, Medium::Ssd, Kind::QuietPressure), "BAABABBABA");
        assert_eq!(letters(&cells, Medium::Ssd, Kind::QuietQuiet), "ABBABAABAB");
        for kind in [Kind::QuietQuiet, Kind::QuietPressure] {
            let of = cells.iter().filter(|cell| cell.kind == kind).collect::<Vec<_>>();
            let first = of.chunks(2).filter(|pair| pair[0].side == Side::Base).count();
            assert_eq!((of.len(), first), (20, 5), "as many pairs begin with either side");
        }
    }

    #[test]
    fn quiet_pairs_come_first_and_both_runs_of_a_pair_are_neighbours() {
        for media in [&[Medium::Dram][..], &[Medium::Ssd], &[Medium::Dram, Medium::Ssd]] {
            let cells = schedule(media, 5);
            for medium in media {
                let of = cells.iter().filter(|cell| cell.medium == *medium);
                assert!(of.map(|cell| cell.kind).is_sorted());
            }
            for (at, pair) in cells.chunks(2).enumerate() {
                let same = |cell: &Cell| (cell.medium, cell.kind, cell.pair);
                assert_eq!(same(&pair[0]), same(&pair[1]));
                assert_ne!(pair[0].side, pair[1].side);
                assert_eq!((pair[0].number, pair[1].number), (2 * at + 1, 2 * at + 2));
            }
        }
    }

    #[test]
    fn only_one_run_of_a_pair_with_pressure_has_it_and_names_differ() {
        let cells = schedule(&[Medium::Dram, Medium::Ssd], 5);
        assert_eq!(cells.iter().filter(|cell| cell.is_under_pressure()).count(), 10);
        let mut names: Vec<_> = cells.iter().map(Cell::name).collect();
        assert_eq!(names[10], "11-dram-quiet-pressure-pair1-quiet");
        assert_eq!(names[11], "12-dram-quiet-pressure-pair1-pressure");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 40);
    }
}
