//! Settings that change while nodes run: what following them costs while nothing fails, and how many recoveries a wrong
//! value spoils that a share of the nodes has first, against one that all of them have at once.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orbitkv::control::signals::StopSignals;
use serde_json::{Value, json};

use super::Given;
use super::figures::{COST_MAX, Figure};
use super::rows::{DEADLINE, Row, blocks, quiet};
use super::stage::{READER, Scene, Stage};
use crate::streams::pause;
use crate::{Failure, processes};

/// The node that has the blocks.
const SOURCE: usize = 1;
/// Nodes whose engines want them.
const READERS: [usize; 3] = [READER, 2, 3];
const NODES: usize = 4;
/// What spoils recoveries if a source is silent for a moment, though each is within its bounds: whoever has these gives
/// it up at once and leaves it alone for a minute.
const WRONG: [&str; 5] = ["set", "breaker=1", "breaker-calls=1", "breaker-pause=60s", "call-budget=10ms"];
/// How long the source is silent: less than a call may take with the settings of before.
const SILENCE: Duration = Duration::from_millis(100);
/// Recoveries of each reader after that.
const RECOVERIES: u64 = 50;
/// Blocks that a reader asks for: before, in the midst of and after the silence.
const BLOCKS_OF_READER: u64 = 2 + RECOVERIES;
/// Between two changes while nothing fails: six hundred times as often as a node looks by itself.
const CHANGE_PAUSE: Duration = Duration::from_millis(50);
/// Changes at least amid which recoveries have to be measured.
const CHANGES_MIN: u64 = 2;

/// Who changes settings, with the command that operators have.
struct Operator {
    program: std::path::PathBuf,
    etcd: String,
}

impl Operator {
    fn of(stage: &Stage) -> Result<Operator, Failure> {
        let etcd = stage.cluster().etcd_url().ok_or("the cluster has an etcd of its own")?;
        Ok(Operator { program: processes::program()?, etcd })
    }

    /// Runs `orbitkv config` to its end; what it says.
    fn run(&self, words: &[&str]) -> Result<Value, Failure> {
        let mut command = Command::new(&self.program);
        command.arg("config").args(words).args(["--json", "--etcd", &self.etcd, "--cluster", "bench"]);
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("orbitkv config {}: {}", words.join(" "), why.trim()).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Changes a setting that decides nothing while no call fails, again and again until `is_over`; without `is_written`
    /// all but writing it. How often.
    fn change_until(&self, is_over: &AtomicBool, is_written: bool) -> Result<u64, String> {
        let (values, more): (_, &[&str]) = match is_written {
            true => (["breaker-calls=21", "breaker-calls=22"], &[]),
            false => (["breaker-calls=31", "breaker-calls=32"], &["--dry-run"]),
        };
        let mut changes = 0;
        while !is_over.load(Ordering::Relaxed) {
            let words = [&["set", values[changes as usize % 2]], more].concat();
            self.run(&words).map_err(|error| error.to_string())?;
            changes += 1;
            thread::sleep(CHANGE_PAUSE);
        }
        Ok(changes)
    }
}

/// The smallest share of nodes that has a reader among them, in percent.
fn first_share() -> u32 {
    let places = READERS.map(Stage::place);
    places.into_iter().min().expect("there are readers") + 1
}

/// Recoveries of blocks while settings change, or while somebody all but changes them: microseconds of the median, and
/// how often.
fn amid_changes(
    stage: &mut Stage,
    operator: &Operator,
    is_written: bool,
    (generation, count): (u64, usize),
    signals: &StopSignals,
) -> Result<(f64, u64), Failure> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let changing = scope.spawn(|| operator.change_until(&is_over, is_written));
        let quiet_us = quiet(stage, generation, count, signals);
        is_over.store(true, Ordering::Relaxed);
        let changes = changing.join().expect("no panic")?;
        Ok((quiet_us?, changes))
    })
}

/// A wrong value is set, and the source is silent for a moment: recoveries of all readers that miss after that, and how
/// long it took until no node had the value any more.
fn mistake(
    stage: &mut Stage,
    operator: &Operator,
    stage_words: &[&str],
    generation: u64,
    signals: &StopSignals,
) -> Result<(u64, Duration), Failure> {
    // A dial has its own time: what a call may take is for those over a connection that is there.
    for (number, at) in (0..).zip(READERS) {
        let first = number * BLOCKS_OF_READER;
        if stage.engine_at(at).ask(generation, first..first + 1, DEADLINE)?.ready != 1 {
            return Err("a block does not come though nothing fails yet".into());
        }
    }
    let set = operator.run(&[&WRONG[..], stage_words].concat())?;
    stage.await_settings(&set, signals)?;
    let mut missed = 0;
    for (number, at) in (0..).zip(READERS) {
        // Of other blocks than the readers before, which have theirs now and would give them, too.
        let first = number * BLOCKS_OF_READER;
        let stopped = stage.stop(SOURCE)?;
        thread::scope(|scope| -> Result<(), Failure> {
            let engine = stage.engine_at(at);
            let asking = scope.spawn(move || {
                engine.ask(generation, first + 1..first + 2, DEADLINE).map_err(|error| error.to_string())
            });
            pause(SILENCE, signals)?;
            drop(stopped);
            asking.join().expect("no panic")?;
            Ok(())
        })?;
        for index in first + 2..first + BLOCKS_OF_READER {
            pause(Duration::ZERO, signals)?;
            let asked = stage.engine_at(at).ask(generation, index..index + 1, DEADLINE)?;
            missed += 1 - asked.ready as u64;
        }
    }
    let began = Instant::now();
    let reverted = operator.run(&["revert"])?;
    stage.await_settings(&reverted, signals)?;
    Ok((missed, began.elapsed()))
}

/// What was seen of each way: a wrong value for a share first, and for all at once.
#[derive(Default)]
struct Mistakes {
    /// Medians of recoveries while settings change, and while they do not.
    quiet_us: [Vec<f64>; 2],
    /// Changes amid each of the former.
    changes: Vec<u64>,
    /// Recoveries that missed, staged and not.
    missed: [Vec<f64>; 2],
    taken_back_ms: Vec<f64>,
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

impl Mistakes {
    fn cost(&self) -> Figure {
        let [changing, still] = [0, 1].map(|way| mean(&self.quiet_us[way]));
        let fewest = self.changes.iter().copied().min().unwrap_or(0);
        let why = (fewest < CHANGES_MIN)
            .then(|| format!("settings were changed {fewest} times while blocks came: too few to be seen"));
        let figure = Figure {
            name: "rollout_cost",
            value: changing / still,
            target: COST_MAX,
            at_most: true,
            against: "median recovery of a block beside an operator who only looks what would be written",
            words: format!(
                "a block in {changing:.0} us while settings change ({} times), {still:.0} us else: {:.3}",
                self.changes.iter().sum::<u64>(),
                changing / still
            ),
            details: json!({ "changing_us": self.quiet_us[0], "still_us": self.quiet_us[1], "changes": self.changes }),
            why_invalid: None,
        };
        figure.proves_nothing(why)
    }

    fn gain(&self, share: u32) -> Figure {
        let [staged, at_once] = [0, 1].map(|way| mean(&self.missed[way]));
        let all = READERS.len() as u64 * RECOVERIES;
        let why = if at_once == 0.0 {
            Some("no recovery missed with the wrong value: it did no harm".to_owned())
        } else if staged == 0.0 {
            Some("nothing missed at the node that had the wrong value first: it did no harm there".to_owned())
        } else {
            None
        };
        let figure = Figure {
            name: "rollout_gain",
            value: at_once / staged.max(1.0),
            target: 2.0,
            at_most: false,
            against: "recoveries that miss where all nodes have a wrong value at once",
            words: format!(
                "of {all} recoveries a wrong value spoils {staged:.0} if {share} % of the nodes have it first, {at_once:.0} \
                 at once; taken back within {:.0} ms",
                self.taken_back_ms.iter().copied().fold(0.0, f64::max)
            ),
            details: json!({
                "share": share,
                "recoveries": all,
                "missed_staged": self.missed[0],
                "missed_at_once": self.missed[1],
                "taken_back_ms": self.taken_back_ms,
            }),
            why_invalid: None,
        };
        figure.proves_nothing(why)
    }
}

/// Settings change, and one of them is wrong.
pub fn configuration(given: &Given<'_>) -> Result<Row, Failure> {
    let Given { profile, signals, .. } = *given;
    let count = blocks(profile);
    let share = first_share();
    let percent = share.to_string();
    let mut seen = Mistakes::default();
    for way in [0, 1, 1, 0] {
        let mut stage = Stage::start(&Scene::of(NODES, &[]), signals)?;
        let operator = Operator::of(&stage)?;
        let orders = if way == 0 { [true, false] } else { [false, true] };
        for (generation, is_written) in (1..).zip(orders) {
            stage.save(SOURCE, generation, count, signals)?;
            let (us, changes) =
                amid_changes(&mut stage, &operator, is_written, (generation, count), signals)?;
            seen.quiet_us[usize::from(!is_written)].push(us);
            if is_written {
                seen.changes.push(changes);
            }
        }
        let blocks = READERS.len() * BLOCKS_OF_READER as usize;
        stage.save(SOURCE, 3, blocks, signals)?;
        for at in READERS {
            stage.await_shown(at, 3, blocks, signals)?;
        }
        let stage_words: &[&str] = if way == 0 { &["--stage", &percent] } else { &[] };
        let (missed, taken_back) = mistake(&mut stage, &operator, stage_words, 3, signals)?;
        seen.missed[way].push(missed as f64);
        seen.taken_back_ms.push(taken_back.as_secs_f64() * 1e3);
    }
    Ok(Row { pattern: "configuration", cost: Some(seen.cost()), gain: seen.gain(share) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_share_has_one_reader_and_is_a_stage() {
        let share = first_share();
        assert!((1..100).contains(&share));
        assert_eq!(READERS.iter().filter(|&&at| Stage::place(at) < share).count(), 1);
    }

    fn judged(figure: Figure) -> String {
        let why = figure.why_invalid.clone();
        match (why, figure.gate(crate::profile::Profile::Full).is_met()) {
            (Some(why), false) => why,
            (Some(why), true) => panic!("met though {why}"),
            (None, true) => "met".to_owned(),
            (None, false) => "missed".to_owned(),
        }
    }

    #[test]
    fn a_wrong_value_is_judged_only_if_it_did_harm_wherever_it_was() {
        let of = |staged: f64, at_once: f64| {
            let seen = Mistakes { missed: [vec![staged; 2], vec![at_once; 2]], ..Mistakes::default() };
            judged(seen.gain(20))
        };
        assert_eq!([of(50.0, 150.0), of(50.0, 100.0), of(50.0, 99.0)], ["met", "met", "missed"]);
        assert!(of(0.0, 150.0).contains("had the wrong value first"));
        assert_eq!(of(0.0, 0.0), "missed", "what is missed stays missed");
        assert!(of(0.0, 2.0).contains("no harm there"));
    }

    #[test]
    fn following_is_judged_only_if_there_was_something_to_follow() {
        let of = |changing: f64, changes: [u64; 4]| {
            let quiet_us = [vec![changing; 4], vec![100.0; 4]];
            judged(Mistakes { quiet_us, changes: changes.into(), ..Mistakes::default() }.cost())
        };
        assert_eq!([of(109.0, [5; 4]), of(111.0, [5; 4])], ["met", "missed"]);
        assert_eq!(of(111.0, [0; 4]), "missed", "what is missed stays missed");
        assert!(of(100.0, [5, 5, 1, 5]).contains("changed 1 times"));
    }
}
