//! Which cores this process may use, and pinning a thread to one of them.

use core_affinity::CoreId;
use rustix::thread::CpuSet;
use std::io;

/// Cores this build can name; what the kernel's fixed-size affinity mask holds.
pub const CORES_MAX: usize = CpuSet::MAX_CPU;

/// Why a core list was refused. Each names the part of the text that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoreListError {
    /// The list, or a part between two commas, is empty.
    #[error("core list `{list}` has an empty part; write for example `0,2-5`")]
    EmptyPart {
        /// The whole text.
        list: String,
    },
    /// A part is neither a number nor a range of two numbers.
    #[error("`{part}` in core list `{list}` is neither a core number nor a range like `2-5`")]
    NotANumber {
        /// The offending part.
        part: String,
        /// The whole text.
        list: String,
    },
    /// A range ends before it begins.
    #[error("range `{part}` in core list `{list}` ends before it begins; write for example `0,2-5`")]
    ReversedRange {
        /// The offending part.
        part: String,
        /// The whole text.
        list: String,
    },
    /// A core is beyond what an affinity mask can hold.
    #[error("`{part}` in core list `{list}` names a core above {}", CORES_MAX - 1)]
    TooLarge {
        /// The offending part.
        part: String,
        /// The whole text.
        list: String,
    },
    /// The list has more cores than there can be, so it repeats some.
    #[error("core list `{list}` has more than {CORES_MAX} cores; list each core once")]
    TooMany {
        /// The whole text.
        list: String,
    },
    /// A core appears twice.
    #[error("core {core} is listed twice; list each core once")]
    Duplicate {
        /// The core.
        core: usize,
    },
    /// A core exists but this process may not run on it, or it does not exist.
    #[error("core {core} is not available to this process; available are {available}")]
    NotAvailable {
        /// The core.
        core: usize,
        /// The available cores as a core list.
        available: String,
    },
}

/// The cores this process may run on, ascending: the affinity mask, which a cgroup's cpuset
/// already narrows. Of the calling thread, so ask before pinning it.
pub fn available_cores() -> io::Result<Vec<usize>> {
    let cores = core_affinity::get_core_ids()
        .ok_or_else(|| io::Error::other("the kernel does not say on which cores this process may run"))?;
    Ok(cores.into_iter().map(|core| core.id).collect())
}

/// Pins the calling thread to `core`. Fails if the core is not available to the process.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    if core >= CORES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("core {core} is above {}", CORES_MAX - 1),
        ));
    }
    if core_affinity::set_for_current(CoreId { id: core }) {
        return Ok(());
    }
    let text = format!("core {core} is not available to this process");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Parses `0,2-5` into `[0, 2, 3, 4, 5]`, in the order written; at most [`CORES_MAX`] cores. A core
/// that is listed twice is left to [`check_cores`].
pub fn parse_core_list(list: &str) -> Result<Vec<usize>, CoreListError> {
    let mut cores = Vec::new();
    for part in list.split(',').map(str::trim) {
        let (first, last) = parse_part(part, list)?;
        cores.extend(first..=last);
        if cores.len() > CORES_MAX {
            return Err(CoreListError::TooMany { list: list.into() });
        }
    }
    Ok(cores)
}

/// Refuses a list with a core that appears twice or is not among `available`; the first such core.
pub fn check_cores(cores: &[usize], available: &[usize]) -> Result<(), CoreListError> {
    for (index, &core) in cores.iter().enumerate() {
        if cores[..index].contains(&core) {
            return Err(CoreListError::Duplicate { core });
        }
        if !available.contains(&core) {
            return Err(CoreListError::NotAvailable { core, available: format_core_list(available) });
        }
    }
    Ok(())
}

/// Writes cores the way [`parse_core_list`] reads them, neighbours as ranges.
pub fn format_core_list(cores: &[usize]) -> String {
    cores
        .chunk_by(|before, after| before + 1 == *after)
        .map(|run| match run {
            [core] => core.to_string(),
            _ => format!("{}-{}", run[0], run[run.len() - 1]),
        })
        .collect::<Vec<_>>()
        .join(",")
}

fn parse_part(part: &str, list: &str) -> Result<(usize, usize), CoreListError> {
    if part.is_empty() {
        return Err(CoreListError::EmptyPart { list: list.into() });
    }
    let number = |text: &str| -> Result<usize, CoreListError> {
        // `usize::from_str` takes a leading `+`, which is a typing error here.
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(CoreListError::NotANumber { part: part.into(), list: list.into() });
        }
        match text.parse() {
            Ok(core) if core < CORES_MAX => Ok(core),
            _ => Err(CoreListError::TooLarge { part: part.into(), list: list.into() }),
        }
    };
    let (first, last) = match part.split_once('-') {
        None => (number(part)?, number(part)?),
        Some((first, last)) => (number(first.trim())?, number(last.trim())?),
    };
    if last < first {
        return Err(CoreListError::ReversedRange { part: part.into(), list: list.into() });
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_in_the_order_written() {
        assert_eq!(parse_core_list("0").unwrap(), [0]);
        assert_eq!(parse_core_list("0,2-5").unwrap(), [0, 2, 3, 4, 5]);
        assert_eq!(parse_core_list(" 7 , 1 - 2").unwrap(), [7, 1, 2]);
        assert_eq!(parse_core_list("3-3").unwrap(), [3]);
    }

    #[test]
    fn errors_name_the_bad_part() {
        let part = |list: &str| parse_core_list(list).unwrap_err();
        assert_eq!(part(""), CoreListError::EmptyPart { list: "".into() });
        assert_eq!(part("0,,1"), CoreListError::EmptyPart { list: "0,,1".into() });
        for bad in ["x", "1x", "+1", "-1", "1-", "1-2-3", "0x1"] {
            let list = format!("0,{bad}");
            assert_eq!(part(&list), CoreListError::NotANumber { part: bad.into(), list: list.clone() });
        }
        assert!(matches!(part("0,5-2"), CoreListError::ReversedRange { part, .. } if part == "5-2"));
        assert!(matches!(part("1024"), CoreListError::TooLarge { part, .. } if part == "1024"));
        assert!(matches!(part("99999999999999999999999"), CoreListError::TooLarge { .. }));
        assert!(matches!(part("0-1023,0"), CoreListError::TooMany { .. }));
        assert!(part("0,x").to_string().contains("`x`"));
    }

    #[test]
    fn pinning_moves_the_thread_and_refuses_foreign_cores() {
        std::thread::spawn(|| {
            let available = available_cores().unwrap();
            let core = *available.last().unwrap();
            pin_current_thread(core).unwrap();
            assert_eq!(available_cores().unwrap(), [core]);
            assert_eq!(rustix::thread::sched_getcpu(), core);
            let absent = (0..CORES_MAX).rev().find(|core| !available.contains(core)).unwrap();
            assert!(pin_current_thread(absent).is_err());
            assert!(pin_current_thread(CORES_MAX).is_err());
            let refused = check_cores(&[core, absent], &available).unwrap_err();
            assert!(matches!(refused, CoreListError::NotAvailable { core, .. } if core == absent));
            let refused = check_cores(&[core, core], &available).unwrap_err();
            assert_eq!(refused, CoreListError::Duplicate { core });
            assert_eq!(check_cores(&available, &available), Ok(()));
        })
        .join()
        .unwrap();
    }

    proptest! {
        #[test]
        fn writing_and_reading_back_is_the_identity(
            cores in proptest::collection::btree_set(0..CORES_MAX, 1..40)
        ) {
            let cores: Vec<usize> = cores.into_iter().collect();
            prop_assert_eq!(parse_core_list(&format_core_list(&cores)).unwrap(), cores);
        }

        #[test]
        fn any_text_is_a_list_or_an_error(list in "[0-9,x -]{0,12}") {
            if let Ok(cores) = parse_core_list(&list) {
                prop_assert!((1..=CORES_MAX).contains(&cores.len()));
                prop_assert!(cores.iter().all(|&core| core < CORES_MAX));
            }
        }
    }
}
