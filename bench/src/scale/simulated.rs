//! A cell that this machine does not hold as processes: the deterministic simulator carries it in one process. Its frames
//! and its end are those of the production rooms; its times are modelled.

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orbitkv::control::signals::StopSignals;
use orbitkv_native::child::end_with_parent;
use serde_json::Value;

use super::plan::Cell;
use super::record::Simulated;
use crate::streams::{failure, pause};
use crate::{Failure, processes};

/// How often the simulator is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A simulator that does not outlive whoever waits for it.
struct Simulator(Child);

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a cell in the simulator.
///
/// # Errors
/// If there is none beside this program, it finds a violation, or a signal comes.
pub fn run(cell: &Cell, seed: u64, signals: &StopSignals) -> Result<Simulated, Failure> {
    let mut command = Command::new(processes::beside("sim")?);
    command.args(["--seed", &seed.to_string(), "--quiet", "--json"]);
    command.args(["--nodes", &cell.managers.to_string(), "--residences", &cell.residences.to_string()]);
    // A file, because nobody reads a pipe while the simulator runs.
    let directory = tempfile::tempdir()?;
    let output = directory.path().join("sim");
    let file = File::create(&output)?;
    command.stdin(Stdio::null()).stderr(file.try_clone()?).stdout(file);
    end_with_parent(&mut command);
    let mut simulator = Simulator(command.spawn()?);
    let status = loop {
        match simulator.0.try_wait()? {
            Some(status) => break status,
            None => pause(LOOK, signals)?,
        }
    };
    let mut text = String::new();
    File::open(&output)?.read_to_string(&mut text)?;
    match status.success() {
        true => Ok(parsed(&text)?),
        false => Err(failure(format!("the simulator ended with {status}: {}", text.trim_end()))),
    }
}

/// What it says in its one line of JSON.
fn parsed(text: &str) -> Result<Simulated, String> {
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or(text);
    let value: Value = serde_json::from_str(line)
        .map_err(|error| format!("the simulator does not say JSON: {error}: {line}"))?;
    let of = |name: &str| value[name].as_u64().ok_or_else(|| format!("the simulator says no {name}: {line}"));
    Ok(Simulated {
        events: of("events")?,
        virtual_us: of("virtual_us")?,
        real_us: of("real_us")?,
        frames: of("frames")?,
        frame_bytes: of("frame_bytes")?,
        visibility_p50_us: of("visibility_p50_us")?,
        visibility_p99_us: of("visibility_p99_us")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_read_or_missed_by_name() {
        let line = r#"{"seed":1,"events":10,"virtual_us":20,"real_us":30,"frames":40,"frame_bytes":50,"network_bytes":60,"visibility_p50_us":70,"visibility_p99_us":80}"#;
        let right = Simulated {
            events: 10,
            virtual_us: 20,
            real_us: 30,
            frames: 40,
            frame_bytes: 50,
            visibility_p50_us: 70,
            visibility_p99_us: 80,
        };
        assert_eq!(parsed(&format!("a word before\n{line}\n")), Ok(right));
        let missed = parsed(&line.replace("frame_bytes", "bytes")).expect_err("it lacks one");
        assert!(missed.contains("says no frame_bytes"), "{missed}");
        assert!(parsed("seed 1: no violation").is_err());
    }
}
