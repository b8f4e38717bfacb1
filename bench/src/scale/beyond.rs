//! Cells beyond what nodes are made for. Each has to be refused, in bounds and with a word for it: a node that does not
//! start says why, and one whose index has no room says whose blocks it does not know.

use std::time::{Duration, Instant};

use orbitkv::cluster::{COMPLETE, ClusterFailure};
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv::quantity::{ByteSize, MIB};
use orbitkv::settings::{INDEX_SLICE_BYTES_MIN, Machine};

use super::measure::run_args;
use super::plan::{Cell, Envelope};
use super::record::Refusal;
use crate::Failure;
use crate::streams::owners::{Owners, StartOrder};
use crate::streams::{failure, pause};

/// How long streams may take to find that there is no room for them.
const MISFIT_WAIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);
/// A receive budget below what a node takes.
const RECEIVE: ByteSize = ByteSize(4 * MIB);

/// Lets the cell be refused.
///
/// # Errors
/// If it is not, if a node ends, or if a signal comes.
pub fn refused(cell: &Cell, seed: u64, signals: &StopSignals) -> Result<Refusal, Failure> {
    match cell.envelope {
        Envelope::Within => Err(failure("a cell within the envelope is not refused")),
        Envelope::Index => of_index(cell, seed, signals),
        Envelope::Receive => {
            let start = StartOrder { receive: Some(RECEIVE), ..StartOrder::default() };
            at_start(cell, seed, &start, (Exit::Usage, "--receive-budget"), signals)
        }
        Envelope::Memory => {
            let dram = Some(ByteSize(Machine::observe().memory_available_bytes));
            let start = StartOrder { dram, ..StartOrder::default() };
            at_start(cell, seed, &start, (Exit::Environment, "memory bill"), signals)
        }
    }
}

/// A node that must not start: it ends with that exit code and names the cause.
fn at_start(
    cell: &Cell,
    seed: u64,
    start: &StartOrder,
    expected: (Exit, &str),
    signals: &StopSignals,
) -> Result<Refusal, Failure> {
    match Owners::start_as(&run_args(cell, seed), start, signals) {
        Ok(_) => Err(failure("the nodes have started, and they were not to")),
        Err(error) => match error.downcast_ref::<ClusterFailure>() {
            Some(ClusterFailure::Ended { status, log, .. }) => {
                let words = refusal_words(status.code(), log, expected)?;
                Ok(Refusal { words, ..Refusal::default() })
            }
            _ => Err(error),
        },
    }
}

/// The line in which a node says why it does not start.
fn refusal_words(code: Option<i32>, log: &str, (exit, cause): (Exit, &str)) -> Result<String, String> {
    let line = log.lines().rev().find(|line| line.contains(cause));
    match line.filter(|_| code == Some(exit as i32)) {
        Some(line) => Ok(line.trim().to_owned()),
        None => Err(format!(
            "a node ended with {code:?} and not with {} for its {cause}; it said:\n{log}",
            exit as i32
        )),
    }
}

/// Nodes whose index is too small: streams find no room and say so, nobody claims to know all, nothing of their own is lost,
/// and memory stays within the bill.
fn of_index(cell: &Cell, seed: u64, signals: &StopSignals) -> Result<Refusal, Failure> {
    let start = StartOrder { index: Some(ByteSize(INDEX_SLICE_BYTES_MIN)), ..StartOrder::default() };
    let mut owners = Owners::start_as(&run_args(cell, seed), &start, signals)?;
    let began = Instant::now();
    let mut refusal = Refusal { streams: owners.sessions_expected(), ..Refusal::default() };
    // Every node is to have found that its index is too small.
    loop {
        let misfits = (0..owners.len())
            .map(|at| Ok(owners.streams(at)?.owners.iter().filter(|stream| stream.misfit).count() as u64))
            .collect::<Result<Vec<u64>, Failure>>()?;
        refusal.misfits = misfits.iter().sum();
        if misfits.iter().all(|count| *count > 0) {
            break;
        }
        if began.elapsed() > MISFIT_WAIT {
            return Err(failure(format!("after {MISFIT_WAIT:?} the nodes refuse {misfits:?} streams each")));
        }
        pause(LOOK, signals)?;
    }
    let pages = owners.pages()?;
    let sum = |of: fn(&orbitkv::control::metadata::IndexTotals) -> u64| -> u64 {
        pages.iter().map(|page| of(&page.index)).sum()
    };
    refusal.false_complete = pages.iter().filter(|page| page.coverage == COMPLETE).count() as u64;
    for owner in owners.all() {
        refusal.lost += owner.lost()?;
    }
    let over = pages.iter().filter(|page| {
        page.index.accounted_bytes > page.index.budget_bytes
            || page.memory.rss_peak_bytes > page.memory.bill_bytes
    });
    let over: Vec<&str> = over.map(|page| page.identity.node_id.as_str()).collect();
    if !over.is_empty() {
        return Err(failure(format!("beyond index budget or bill: {}", over.join(", "))));
    }
    owners.require_alive()?;
    refusal.words = format!(
        "{} of {} streams found no room; {} of {} bytes of index accounted; coverage {}",
        refusal.misfits,
        refusal.streams,
        sum(|index| index.accounted_bytes),
        sum(|index| index.budget_bytes),
        pages[0].coverage
    );
    Ok(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_code_and_names_its_cause() {
        let log = "node starts\norbitkv: --receive-budget 4mib: at least 8mib\n";
        let expected = (Exit::Usage, "--receive-budget");
        let words = refusal_words(Some(2), log, expected);
        assert_eq!(words.as_deref(), Ok("orbitkv: --receive-budget 4mib: at least 8mib"));
        for (code, log) in [(Some(3), log), (None, log), (Some(2), "something else")] {
            assert!(refusal_words(code, log, expected).is_err(), "{code:?} {log}");
        }
    }
}
