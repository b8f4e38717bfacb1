//! How far a benchmark is: its parts one after the other, and the time that is left if those to come take as long as
//! those that were made.

use std::time::{Duration, Instant};

use crate::progress;

/// From here on time is told in minutes.
const IN_MINUTES: Duration = Duration::from_secs(120);

/// The parts of a benchmark, and since when they are made.
pub struct Pace {
    began: Instant,
    parts: usize,
    /// Parts that are behind.
    behind: usize,
    /// Of those, parts that were made since it began.
    made: usize,
}

impl Pace {
    /// So many parts, none of them made.
    pub fn over(parts: usize) -> Pace {
        Pace { began: Instant::now(), parts, behind: 0, made: 0 }
    }

    /// Says which part begins.
    pub fn tell(&self, part: &str) {
        progress(&format!("{part}: {} of {}{}", self.behind + 1, self.parts, self.left()));
    }

    /// A part was made.
    pub fn done(&mut self) {
        self.behind += 1;
        self.made += 1;
    }

    /// A part was there.
    pub fn skip(&mut self) {
        self.behind += 1;
    }

    /// The time that is left, with a comma before it; nothing before a part was made.
    pub fn left(&self) -> String {
        words(self.began.elapsed(), self.made, self.parts.saturating_sub(self.behind))
    }
}

fn words(took: Duration, made: usize, to_come: usize) -> String {
    let Some(share) = took.checked_div(made as u32) else { return String::new() };
    match share * to_come as u32 {
        left if left < IN_MINUTES => format!(", {} s left", left.as_secs()),
        left => format!(", about {} minutes left", left.as_secs().div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_that_of_the_parts_to_come() {
        let seconds = Duration::from_secs;
        assert_eq!(words(seconds(9), 0, 4), "");
        assert_eq!(words(seconds(10), 1, 4), ", 40 s left");
        assert_eq!(words(seconds(40), 4, 1), ", 10 s left");
        assert_eq!(words(seconds(90), 3, 4), ", about 2 minutes left");
        assert_eq!(words(seconds(91), 1, 3), ", about 5 minutes left");
        assert_eq!(words(seconds(90), 3, 0), ", 0 s left");
    }

    #[test]
    fn what_was_there_is_behind_and_took_no_time() {
        let mut pace = Pace::over(3);
        pace.skip();
        assert_eq!((pace.behind, pace.left().as_str()), (1, ""));
        pace.done();
        assert_eq!((pace.behind, pace.left().as_str()), (2, ", 0 s left"));
    }
}
