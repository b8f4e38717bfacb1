//! Where a run leaves its report and its raw histograms: a directory of the operator's, a run's files beside those of
//! others. Failed runs leave theirs, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::RunArgs;
use super::distribution::Distribution;
use crate::profile::{FormalProfile, Label};
use crate::report::Report;
use crate::{Failure, progress};

/// The files of one run.
pub struct Outlet {
    directory: Option<PathBuf>,
    stem: String,
    began: SystemTime,
}

impl Outlet {
    /// Of a run that begins now.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn of(benchmark: &str, args: &RunArgs) -> Result<Outlet, Failure> {
        let name = format!("{benchmark}-{}", args.managers);
        Outlet::named(args.out.as_deref(), &name, args.profile, args.seed)
    }

    /// The same of a benchmark whose name says what it is of.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn named(
        directory: Option<&Path>,
        name: &str,
        profile: FormalProfile,
        seed: u64,
    ) -> Result<Outlet, Failure> {
        if let Some(directory) = directory {
            fs::create_dir_all(directory)
                .map_err(|error| format!("--out {}: {error}; choose another", directory.display()))?;
        }
        let began = SystemTime::now();
        let unix = began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let profile = Label::from(profile).name;
        let stem = format!("{name}-{profile}-seed{seed}-{unix}");
        Ok(Outlet { directory: directory.map(Path::to_owned), stem, began })
    }

    /// Writes the report and a log for each distribution, if somebody wants them.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, report: &Report, distributions: &[&Distribution]) -> Result<(), Failure> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let lasted = self.began.elapsed().unwrap_or(Duration::ZERO);
        for distribution in distributions {
            let file = directory.join(format!("{}.{}.hlog", self.stem, distribution.name));
            fs::write(&file, distribution.log(self.began, lasted))?;
        }
        let file = directory.join(format!("{}.json", self.stem));
        fs::write(&file, format!("{:#}\n", report.json()))?;
        progress(&format!("written: {}", file.display()));
        Ok(())
    }
}
