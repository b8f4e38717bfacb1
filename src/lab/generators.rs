//! The two random number generators of the models, and what is drawn from them. A model's table is
//! reproduced only by the same generator, stepped the same number of times in the same order; that is
//! why these are not the generators that the node uses.

use super::refusal::Refusal;

/// Modulus of [`Kind::ParkMiller`]: 2^31 − 1.
const PARK_MILLER_MODULUS: u64 = 2_147_483_647;
const PARK_MILLER_FACTOR: u64 = 48_271;
const MIXED_FACTOR: u32 = 1_103_515_245;
const MIXED_INCREMENT: u32 = 12_345;
/// Range of a state of [`Kind::Mixed`].
const MIXED_RANGE: f64 = 4_294_967_296.0;

/// Which generator a model draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Multiplicative, modulo 2^31 − 1 ("P").
    ParkMiller,
    /// Mixed congruential over 32 bits ("L").
    Mixed,
}

/// A stream of numbers, and how many were drawn.
#[derive(Clone, Debug)]
pub struct Generator {
    kind: Kind,
    state: u64,
    draws: u64,
}

impl Kind {
    /// Name, meaning of the state, step and value, as vector files spell them.
    #[must_use]
    pub const fn words(self) -> [(&'static str, &'static str); 4] {
        match self {
            Kind::ParkMiller => [
                ("kind", "park-miller"),
                ("state", "seed mod 2147483647"),
                ("step", "x = x*48271 mod 2147483647"),
                ("value", "x/2147483647 as f64"),
            ],
            Kind::Mixed => [
                ("kind", "lcg32"),
                ("state", "seed as u32"),
                ("step", "x = x*1103515245 + 12345 mod 2^32"),
                ("value", "x/4294967296 as f64"),
            ],
        }
    }

    /// Refuses a seed that the generator cannot start from.
    ///
    /// # Errors
    /// A multiple of the modulus, from which every draw would be 0; a seed that is wider than the state.
    pub fn check(self, seed: u64) -> Result<(), Refusal> {
        let limit = match self {
            Kind::ParkMiller if seed.is_multiple_of(PARK_MILLER_MODULUS) => {
                "every draw would be 0 from a multiple of 2147483647"
            }
            Kind::Mixed if seed > u64::from(u32::MAX) => "the state has 32 bits: at most 4294967295",
            _ => return Ok(()),
        };
        Err(Refusal::new(format!("--seed {seed}"), limit, "choose another seed"))
    }
}

impl Generator {
    /// A generator before its first step.
    #[must_use]
    pub fn new(kind: Kind, seed: u64) -> Generator {
        let state = match kind {
            Kind::ParkMiller => seed % PARK_MILLER_MODULUS,
            Kind::Mixed => seed & u64::from(u32::MAX),
        };
        Generator { kind, state, draws: 0 }
    }

    /// The next number, at least 0 and below 1.
    pub fn draw(&mut self) -> f64 {
        self.draws += 1;
        match self.kind {
            Kind::ParkMiller => {
                self.state = self.state * PARK_MILLER_FACTOR % PARK_MILLER_MODULUS;
                self.state as f64 / PARK_MILLER_MODULUS as f64
            }
            Kind::Mixed => {
                let narrow = (self.state as u32).wrapping_mul(MIXED_FACTOR).wrapping_add(MIXED_INCREMENT);
                self.state = u64::from(narrow);
                self.state as f64 / MIXED_RANGE
            }
        }
    }

    /// Whether something of this probability happens. Takes a draw whatever the probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.draw() < probability
    }

    /// How many arrivals there are, given exp(−mean): Knuth's product. Takes one draw more than the answer.
    pub fn poisson(&mut self, exp_neg_mean: f64) -> u64 {
        let (mut product, mut count) = (1.0, 0);
        loop {
            count += 1;
            product *= self.draw();
            if product <= exp_neg_mean {
                return count - 1;
            }
        }
    }

    /// Fisher–Yates from the last place down: one draw fewer than there are items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let partner = (self.draw() * (last + 1) as f64) as usize;
            items.swap(last, partner);
        }
    }

    /// How many numbers were drawn.
    #[must_use]
    pub const fn draws(&self) -> u64 {
        self.draws
    }

    /// The state after the last step.
    #[must_use]
    pub const fn state(&self) -> u64 {
        self.state
    }
}

/// Arrivals at a fractional rate: what is left over is carried to the next round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accumulator(f64);

impl Accumulator {
    /// Adds a round's rate and takes the whole units off one by one; that order of the additions decides
    /// in which round a unit arrives.
    pub fn arrivals(&mut self, rate: f64) -> u64 {
        self.0 += rate;
        let mut whole = 0;
        while self.0 >= 1.0 {
            self.0 -= 1.0;
            whole += 1;
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(kind: Kind, seed: u64) -> Vec<u64> {
        let mut generator = Generator::new(kind, seed);
        (0..5)
            .map(|_| {
                generator.draw();
                generator.state()
            })
            .collect()
    }

    #[test]
    fn first_states() {
        for (seed, expected) in [
            (20260730, [900638445, 1059428727, 1655995006, 751142345, 278239547]),
            (20260731, [900686716, 1242034521, 799906245, 518379335, 209424941]),
            (20260801, [904065686, 1139538219, 1003235091, 1404837811, 1834853462]),
            (20260802, [904113957, 1322144013, 147146330, 1172074801, 1766038856]),
        ] {
            assert_eq!(states(Kind::ParkMiller, seed), expected, "seed {seed}");
            assert_eq!(
                states(Kind::ParkMiller, seed + PARK_MILLER_MODULUS),
                expected,
                "seed {seed} and a turn"
            );
        }
        let mixed = [939862827, 3147606920, 3509102881, 2724086086, 472469255];
        assert_eq!(states(Kind::Mixed, 20260730), mixed);
    }

    #[test]
    fn draws_are_counted() {
        let mut generator = Generator::new(Kind::ParkMiller, 20260801);
        assert!(generator.happens(1.0), "and takes a draw");
        let arrivals = generator.poisson((-4.0f64).exp());
        generator.shuffle(&mut [1, 2, 3, 4]);
        generator.shuffle(&mut [1]);
        assert_eq!(generator.draws(), 1 + arrivals + 1 + 3);
        assert!(!Generator::new(Kind::ParkMiller, 1).happens(0.0));
    }

    #[test]
    fn seeds_that_lead_nowhere_are_refused() {
        assert!(
            Kind::ParkMiller.check(0).is_err() && Kind::ParkMiller.check(2 * PARK_MILLER_MODULUS).is_err()
        );
        assert!(Kind::ParkMiller.check(1).is_ok() && Kind::Mixed.check(0).is_ok());
        assert!(Kind::Mixed.check(1 << 32).expect_err("wide").to_string().contains("4294967295"));
    }

    #[test]
    fn fractions_are_carried() {
        let mut accumulator = Accumulator::default();
        assert_eq!((0..4).map(|_| accumulator.arrivals(0.75)).collect::<Vec<_>>(), [0, 1, 1, 1]);
    }
}
