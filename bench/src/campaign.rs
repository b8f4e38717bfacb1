//! What campaigns have in common: a directory in which each part is kept as it ends, what has to be the same for all parts
//! of it, so that a campaign that was interrupted goes on where it was, and what ends one early.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use orbitkv::cluster::ClusterFailure;
use orbitkv::exit::Exit;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::attempt::Unmade;
use crate::{Failure, fail, machine};

/// The file that says what a directory's campaign is.
const FILE: &str = "campaign.json";
/// The file with what it says at last.
pub const REPORT: &str = "report.json";

/// What is asked of a campaign.
pub trait Order: Serialize + DeserializeOwned {
    /// What kind of file says what the campaign is.
    const KIND: &'static str;
    /// What its parts are called.
    const PARTS: &'static str;

    /// In what two of them may differ, in words, and whether they do.
    fn differences(&self, other: &Self) -> Vec<(&'static str, bool)>;
}

/// What a campaign is: the parts of one directory have all of it in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Campaign<O> {
    kind: String,
    /// What is asked of it.
    #[serde(flatten)]
    pub order: O,
    /// Commit of the build.
    pub commit: String,
    /// On what it is made.
    pub machine: String,
}

impl<O: Order> Campaign<O> {
    /// A campaign of this build on this machine.
    pub fn new(order: O) -> Campaign<O> {
        let (kind, commit) = (O::KIND.to_owned(), env!("ORBITKV_COMMIT").to_owned());
        Campaign { kind, order, commit, machine: machine::describe() }
    }

    /// Opens the directory to go on with, or makes the one of a new campaign.
    ///
    /// # Errors
    /// See [`Campaign::begin`] and [`Campaign::resume`].
    pub fn open(&self, resume: Option<&Path>, out: &Path) -> Result<Shelf, Failure> {
        match resume {
            Some(directory) => self.resume(directory),
            None => self.begin(out),
        }
    }

    /// Makes the directory of a new campaign.
    ///
    /// # Errors
    /// If it has something in it, or cannot be made.
    pub fn begin(&self, directory: &Path) -> Result<Shelf, Failure> {
        let shown = directory.display();
        let instead = format!("go on with --resume {shown}, or name another");
        let shelf = Shelf::new(new_directory(directory, &instead)?);
        shelf.write(FILE, self)?;
        Ok(shelf)
    }

    /// Opens the directory of a campaign that was begun with the same settings on the same build and machine.
    ///
    /// # Errors
    /// If there is none, or one that is another.
    pub fn resume(&self, directory: &Path) -> Result<Shelf, Failure> {
        let shown = directory.display();
        let text =
            fs::read(directory.join(FILE)).map_err(|error| format!("--resume {shown}: {FILE}: {error}"))?;
        let there: Campaign<O> =
            serde_json::from_slice(&text).map_err(|error| format!("--resume {shown}: {FILE}: {error}"))?;
        let parts = O::PARTS;
        match self.differs_from(&there) {
            None => Ok(Shelf::new(directory.canonicalize()?)),
            Some(what) => {
                Err(format!("--resume {shown}: that campaign has another {what}: {parts} would not compare")
                    .into())
            }
        }
    }

    /// The first thing that differs, in words.
    fn differs_from(&self, other: &Campaign<O>) -> Option<&'static str> {
        let kind = ("kind", self.kind != other.kind);
        let build = [("commit", self.commit != other.commit), ("machine", self.machine != other.machine)];
        let order = self.order.differences(&other.order);
        let mut pairs = [kind].into_iter().chain(order).chain(build);
        pairs.find(|(_, differs)| *differs).map(|(what, _)| what)
    }
}

/// Makes a directory for results, or takes one with nothing in it; `instead` is what to do if there is something.
///
/// # Errors
/// If it has something in it, or cannot be made.
pub fn new_directory(directory: &Path, instead: &str) -> Result<PathBuf, Failure> {
    let shown = directory.display();
    fs::create_dir_all(directory).map_err(|error| format!("--out {shown}: {error}; choose another"))?;
    if fs::read_dir(directory)?.next().is_some() {
        return Err(format!("--out {shown} is not empty: {instead}").into());
    }
    Ok(directory.canonicalize()?)
}

/// The directory of a campaign.
#[derive(Clone, Debug)]
pub struct Shelf(PathBuf);

impl Shelf {
    /// Files lie in `directory`.
    pub fn new(directory: PathBuf) -> Shelf {
        Shelf(directory)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What was kept of a part that counts, if it was.
    ///
    /// # Errors
    /// If a file is there and cannot be understood.
    pub fn take<R: DeserializeOwned>(&self, part: &str) -> Result<Option<R>, Failure> {
        let path = self.0.join(format!("{part}.json"));
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", path.display()).into()),
        };
        let record = serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Some(record))
    }

    /// Files of attempts at a part that do not count.
    pub fn failed(&self, part: &str) -> Vec<String> {
        let beginning = format!("{part}.failed-");
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.starts_with(&beginning) && name.ends_with(".json"))
            .collect();
        names.sort();
        names
    }

    /// Keeps a part; with the number of the attempt if it does not count.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub fn put(&self, part: &str, failed: Option<usize>, record: &impl Serialize) -> Result<(), Failure> {
        match failed {
            None => self.write(&format!("{part}.json"), record),
            Some(attempt) => self.write(&format!("{part}.failed-{attempt}.json"), record),
        }
    }

    /// Writes a file whole or not at all.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub fn write(&self, name: &str, value: &impl Serialize) -> Result<(), Failure> {
        let (beginning, path) = (self.0.join(format!("{name}.part")), self.0.join(name));
        let mut file = BufWriter::new(File::create(&beginning)?);
        serde_json::to_writer(&mut file, value)?;
        file.flush()?;
        file.into_inner()?.sync_all()?;
        Ok(fs::rename(beginning, path)?)
    }
}

/// Why a campaign has no report.
pub struct Ended {
    exit: Exit,
    words: String,
}

impl<F: Into<Failure>> From<F> for Ended {
    fn from(failure: F) -> Ended {
        Ended { exit: Exit::Environment, words: failure.into().to_string() }
    }
}

impl Ended {
    /// Says it, and what to do.
    pub fn tell(self) -> ExitCode {
        fail(self.exit, &*Failure::from(self.words))
    }
}

/// What becomes of a part that was not made: why, for its file, and the end of the campaign if it is one.
///
/// # Errors
/// If it ends the campaign and leaves no file: a signal came, or there is nothing to measure with.
pub fn unmade(unmade: Unmade, shelf: &Shelf) -> Result<(String, Option<Ended>), Ended> {
    match unmade {
        Unmade::Stopped(signal) => {
            let words = format!("stopped by {signal}; go on with --resume {}", shelf.path().display());
            Err(Ended { exit: Exit::Unmet, words })
        }
        Unmade::WrongBytes(words) => Ok((words.clone(), Some(Ended { exit: Exit::Unmet, words }))),
        Unmade::Failed(failure) => match failure.downcast_ref::<ClusterFailure>() {
            Some(ClusterFailure::NoEtcd) => Err(failure.into()),
            _ => Ok((failure.to_string(), None)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::WrongBytes;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Asked {
        size: u64,
        seed: u64,
    }

    impl Order for Asked {
        const KIND: &'static str = "test-campaign";
        const PARTS: &'static str = "parts";

        fn differences(&self, other: &Asked) -> Vec<(&'static str, bool)> {
            vec![("size", self.size != other.size), ("seed (--seed)", self.seed != other.seed)]
        }
    }

    #[test]
    fn a_directory_is_gone_on_with_only_by_the_same_campaign() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("campaign");
        let campaign = Campaign::new(Asked { size: 1, seed: 1 });
        let words = |opened: Result<Shelf, Failure>| opened.err().map(|error| error.to_string());
        assert!(words(campaign.resume(&directory)).is_some_and(|words| words.contains(FILE)));
        new_directory(&directory, "").expect("it is new");
        assert_eq!(words(campaign.begin(&directory)), None, "nothing is in it yet");
        let shown = directory.display();
        let other = format!("--out {shown} is not empty: go on with --resume {shown}, or name another");
        assert_eq!(words(campaign.begin(&directory)), Some(other));
        assert_eq!(words(campaign.resume(&directory)), None);
        let another = || "another".to_owned();
        for (other, what) in [
            (Campaign { kind: another(), ..campaign.clone() }, "kind"),
            (Campaign::new(Asked { size: 2, seed: 2 }), "size"),
            (Campaign::new(Asked { size: 1, seed: 2 }), "seed (--seed)"),
            (Campaign { commit: another(), ..campaign.clone() }, "commit"),
            (Campaign { machine: another(), ..campaign.clone() }, "machine"),
        ] {
            let refused =
                format!("--resume {shown}: that campaign has another {what}: parts would not compare");
            assert_eq!(words(other.resume(&directory)), Some(refused));
        }
    }

    #[test]
    fn wrong_bytes_end_a_campaign_and_leave_a_file_a_signal_leaves_none() {
        let shelf = Shelf::new(PathBuf::from("/there"));
        let of = |failure: Failure| match unmade(failure.into(), &shelf) {
            Ok((why, ended)) => (Some(why), ended.map(|ended| (ended.exit, ended.words))),
            Err(ended) => (None, Some((ended.exit, ended.words))),
        };
        let wrong = WrongBytes::of(1, 2).to_string();
        assert_eq!(of(WrongBytes::of(1, 2).into()), (Some(wrong.clone()), Some((Exit::Unmet, wrong))));
        let stopped = "stopped by SIGINT; go on with --resume /there".to_owned();
        let failure = ClusterFailure::Stopped { signal: "SIGINT" };
        assert_eq!(of(failure.into()), (None, Some((Exit::Unmet, stopped))));
        let none = ClusterFailure::NoEtcd.to_string();
        assert_eq!(of(ClusterFailure::NoEtcd.into()), (None, Some((Exit::Environment, none))));
        assert_eq!(of("it rained".into()), (Some("it rained".to_owned()), None));
    }
}
