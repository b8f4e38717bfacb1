//! Rates, windows and order against plain models of what they promise.

mod credits;
mod egress;
mod pacing;
mod pressure;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % sides
    }

    /// Of any size with fewer than so many bits.
    fn size(&mut self, bits: u64) -> u64 {
        let bits = self.roll(bits);
        self.roll(1 << bits)
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

/// What went when. Between any two of them no more may have gone than the rate gives for that time, and one burst.
#[derive(Default)]
struct Sendings(Vec<(u64, u64)>);

impl Sendings {
    fn note(&mut self, at: u64, bytes: u64) {
        self.0.push((at, bytes));
    }

    /// Every span that begins and ends with a sending: no other span has more.
    fn assert_kept(&self, rate: u64, burst: u64) {
        for (first, (begun, _)) in self.0.iter().enumerate() {
            let mut sum = 0u128;
            for (at, bytes) in &self.0[first..] {
                sum += u128::from(*bytes);
                let earned = u128::from(at - begun) * u128::from(rate) / 1_000_000_000;
                let most = u128::from(burst) + earned;
                assert!(sum <= most, "{sum} bytes in {} ns, and {most} may go", at - begun);
            }
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes).sum()
    }
}
