//! Rates, windows and order against plain models of what they promise.

mod credits;
mod egress;
mod pacing;
mod pressure;

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
