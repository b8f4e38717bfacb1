//! How many descriptors this process may open. The soft limit of most systems is meant for programs that
//! poll with `select`; a daemon may raise it to the hard one, and only that one is the operator's word.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises `RLIMIT_NOFILE` of this process to its hard limit and returns what it may open now; `None` is
/// unlimited.
pub fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Refused if the machine has lowered its own bound (`fs.nr_open`) since: then the soft limit stays.
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let raised = raise_limit();
        let after = getrlimit(Resource::Nofile);
        assert_eq!((after.current, after.maximum), (before.maximum, before.maximum));
        assert_eq!(raised, before.maximum);
    }
}
