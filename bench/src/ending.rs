//! How a benchmark ends: with a report, printed, or with what went wrong; and what its exit code says of either.

use std::error::Error;
use std::process::ExitCode;

use orbitkv::cluster::ClusterFailure;
use orbitkv::exit::Exit;

use crate::payload::WrongBytes;
use crate::report::Report;
use crate::{Failure, fail};

/// Exit code of a benchmark that has no report.
fn exit_of(error: &(dyn Error + 'static)) -> Exit {
    match error.downcast_ref::<ClusterFailure>() {
        Some(failure) => failure.exit(),
        None if error.is::<WrongBytes>() => Exit::Unmet,
        None => Exit::Environment,
    }
}

/// Prints a report as JSON or as text, and says by the exit code whether every gate is met that counts in its profile.
pub fn tell(report: &Report, json: bool) -> ExitCode {
    match json {
        true => println!("{:#}", report.json()),
        false => println!("{}", report.text()),
    }
    match report.is_accepted() {
        true => Exit::Done.into(),
        false => Exit::Unmet.into(),
    }
}

/// Prints a report, or why there is none.
pub fn conclude(measured: Result<Report, Failure>, json: bool) -> ExitCode {
    match measured {
        Ok(report) => tell(&report, json),
        Err(error) => fail(exit_of(&*error), &*error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_tell_wrong_bytes_from_what_this_machine_lacks() {
        assert_eq!(exit_of(&WrongBytes::of(1, 2)), Exit::Unmet);
        assert_eq!(exit_of(&ClusterFailure::NoEtcd), Exit::Environment);
        assert_eq!(exit_of(&ClusterFailure::Stopped { signal: "SIGINT" }), Exit::Unmet);
        assert_eq!(exit_of(&std::fmt::Error), Exit::Environment);
    }
}
