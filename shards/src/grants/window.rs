//! Which numbers of an origin have been used: the last [`OPERATION_WINDOW`] one by one, all older ones as a
//! whole. Operations travel on streams of their own, so they arrive in nearly but not quite the order they
//! were numbered in.

use orbitkv_wire::bounds::OPERATION_WINDOW;

const WORD_BITS: u64 = u64::BITS as u64;
const WORDS: usize = (OPERATION_WINDOW / WORD_BITS) as usize;

const _: () = assert!(OPERATION_WINDOW.is_multiple_of(WORD_BITS));

/// The numbers of one origin that have been used.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// The highest number used; 0 if none.
    highest: u64,
    /// Bit `number % OPERATION_WINDOW` of every number in `(highest − OPERATION_WINDOW, highest]`.
    used: [u64; WORDS],
}

impl Window {
    pub(super) fn new() -> Window {
        Window { highest: 0, used: [0; WORDS] }
    }

    /// Uses a number. False if it has been used, or is so old that nobody knows.
    pub(super) fn use_up(&mut self, number: u64) -> bool {
        if number == 0 || self.highest.saturating_sub(number) >= OPERATION_WINDOW {
            return false;
        }
        let passed = number.saturating_sub(self.highest);
        if passed >= OPERATION_WINDOW {
            self.used = [0; WORDS];
        } else {
            // Numbers that come into the window take the bits of those that leave it.
            (self.highest..number).for_each(|before| *self.word(before + 1) &= !bit(before + 1));
        }
        self.highest = self.highest.max(number);
        let is_new = *self.word(number) & bit(number) == 0;
        *self.word(number) |= bit(number);
        is_new
    }

    fn word(&mut self, number: u64) -> &mut u64 {
        &mut self.used[(number % OPERATION_WINDOW / WORD_BITS) as usize]
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % WORD_BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::dice::Dice;

    /// Against a set of all numbers ever used.
    #[test]
    fn a_window_knows_what_a_set_knows() {
        let mut dice = Dice(7);
        for spread in [3, 60, 1_000, 1_024, 1_025, 5_000, 1 << 30] {
            let (mut window, mut used, mut highest) = (Window::new(), BTreeSet::new(), 0u64);
            for _ in 0..20_000 {
                let number = (highest + dice.roll(spread)).saturating_sub(dice.roll(spread));
                let known = number > 0 && highest.saturating_sub(number) < OPERATION_WINDOW;
                assert_eq!(window.use_up(number), known && used.insert(number), "{number} at {highest}");
                highest = highest.max(number);
            }
        }
    }

    #[test]
    fn the_last_number_there_is_can_be_used_once() {
        let mut window = Window::new();
        assert!(window.use_up(u64::MAX) && !window.use_up(u64::MAX) && !window.use_up(1));
        assert!(window.use_up(u64::MAX - OPERATION_WINDOW + 1));
        assert!(!window.use_up(u64::MAX - OPERATION_WINDOW));
    }
}
