//! Every planted bug is found, by the oracle it is for.

use orbitkv_sim::oracle::Oracle;
use orbitkv_sim::{Canary, Log, Plan, World};

/// Seeds within which a planted bug has to be found.
const SEEDS: u64 = 60;

fn found_by(canary: Canary) -> Option<Oracle> {
    (0..SEEDS).find_map(|seed| {
        let report = World::new(Plan::of_seed(seed), Some(canary), Log::Quiet).run();
        report.violation.map(|violation| violation.oracle)
    })
}

#[test]
fn every_planted_bug_is_found() {
    for &canary in Canary::ALL {
        assert_eq!(found_by(canary), Some(canary.found_by()), "{}", canary.name());
    }
}

#[test]
fn every_oracle_has_a_planted_bug() {
    let oracles = [
        Oracle::Source,
        Oracle::Rows,
        Oracle::Fenced,
        Oracle::Complete,
        Oracle::Absence,
        Oracle::Watermark,
        Oracle::Bounds,
        Oracle::Credits,
        Oracle::Merge,
        Oracle::Await,
        Oracle::Convergence,
        Oracle::Conservation,
    ];
    for oracle in oracles {
        assert!(Canary::ALL.iter().any(|canary| canary.found_by() == oracle), "{oracle:?}");
    }
}

#[test]
fn a_canary_has_a_name() {
    for &canary in Canary::ALL {
        assert_eq!(Canary::from_name(canary.name()), Some(canary));
    }
}
