//! What runs, or pairs of them, say together: the mean of their ratios or differences, and how far it may be off.
//!
//! A pair is the unit that is drawn, never a request: requests of one run share what the machine did meanwhile, and
//! a thousand of them are no thousand observations. With few pairs every possible drawing is counted, so there
//! is no chance in it.

/// Pairs of which every drawing can be counted: 7⁷ are 823,543.
pub const PAIRS_MAX: usize = 7;

/// A mean with its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// Of ratios the geometric mean, of differences the arithmetic one.
    pub mean: f64,
    /// The value that the asked share of all drawings do not exceed.
    pub upper: f64,
    /// The value that the same share of all drawings reach.
    pub lower: f64,
}

/// The mean of all pairs, each of its bounds with that confidence.
///
/// # Panics
/// If there is none, if there are more than [`PAIRS_MAX`], or if a ratio is not positive.
pub fn mean_of(ratios: &[f64], confidence: f64) -> Mean {
    assert!(ratios.iter().all(|ratio| *ratio > 0.0 && ratio.is_finite()), "a ratio of times: {ratios:?}");
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let Mean { mean, upper, lower } = mean_difference(&logarithms, confidence);
    Mean { mean: mean.exp(), upper: upper.exp(), lower: lower.exp() }
}

/// The arithmetic mean of the differences of all pairs, each of its bounds with that confidence.
///
/// # Panics
/// If there is none, or if there are more than [`PAIRS_MAX`].
pub fn mean_difference(differences: &[f64], confidence: f64) -> Mean {
    let pairs = differences.len();
    assert!((1..=PAIRS_MAX).contains(&pairs), "{pairs} pairs: between 1 and {PAIRS_MAX} can be drawn from");
    let drawings = pairs.pow(pairs as u32);
    let mut sums: Vec<f64> = (0..drawings).map(|number| drawn(number, differences)).collect();
    sums.sort_by(f64::total_cmp);
    let mean = |sum: f64| sum / pairs as f64;
    let place = (confidence * drawings as f64).ceil() as usize - 1;
    Mean {
        mean: mean(differences.iter().sum()),
        upper: mean(sums[place]),
        lower: mean(sums[drawings - 1 - place]),
    }
}

/// The sum of one drawing with replacement: its number, written in base `pairs`, says who is drawn.
fn drawn(mut number: usize, values: &[f64]) -> f64 {
    let pairs = values.len();
    let mut sum = 0.0;
    for _ in 0..pairs {
        sum += values[number % pairs];
        number /= pairs;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 1e-12, "{value} is not {expected}");
    }

    #[test]
    fn one_pair_is_its_own_bound() {
        let mean = mean_of(&[1.25], 0.95);
        [mean.mean, mean.upper, mean.lower].into_iter().for_each(|value| near(value, 1.25));
    }

    #[test]
    fn two_pairs_have_four_drawings() {
        // 1 1, 1 4, 4 1, 4 4: means 1, 2, 2, 4; 95 % of four is all of them.
        let mean = mean_of(&[1.0, 4.0], 0.95);
        near(mean.mean, 2.0);
        near(mean.upper, 4.0);
        near(mean.lower, 1.0);
    }

    #[test]
    fn five_pairs_are_bounded_by_the_binomial_distribution() {
        // One of five is 32, the others 1: a drawing has it k times with 5-over-k × 4^(5-k) of 3,125 chances:
        // 1,024, 1,280, 640, 160, 20, 1. Up to k = 2 there are 2,944 (94.2 %), up to k = 3 3,104 (99.3 %).
        let mean = mean_of(&[1.0, 1.0, 32.0, 1.0, 1.0], 0.95);
        near(mean.mean, 2.0);
        near(mean.upper, 8.0);
        near(mean.lower, 1.0);
        // The other way round the lower bound is what the upper one was.
        let mean = mean_of(&[1.0 / 32.0, 1.0, 1.0, 1.0, 1.0], 0.95);
        near(mean.upper, 1.0);
        near(mean.lower, 1.0 / 8.0);
    }

    #[test]
    fn differences_have_the_arithmetic_mean_and_may_be_negative() {
        // -1 -1, -1 3, 3 -1, 3 3: means -1, 1, 1, 3.
        let mean = mean_difference(&[-1.0, 3.0], 0.95);
        near(mean.mean, 1.0);
        near(mean.upper, 3.0);
        near(mean.lower, -1.0);
        near(mean_difference(&[-1.0, 3.0], 0.75).upper, 1.0);
    }

    #[test]
    fn the_order_of_pairs_does_not_matter() {
        let (one, other) =
            (mean_of(&[0.97, 1.01, 1.04, 1.00, 1.03], 0.95), mean_of(&[1.04, 1.03, 0.97, 1.00, 1.01], 0.95));
        near(one.mean, other.mean);
        near(one.upper, other.upper);
        assert!(one.lower < one.mean && one.mean < one.upper && one.upper < 1.04);
    }

    #[test]
    fn both_bounds_at_975_permille_leave_the_middle_95_percent() {
        let ratios = [0.5, 0.6, 0.7, 0.8, 0.9];
        let Mean { mean, upper, lower } = mean_of(&ratios, 0.975);
        let wider = mean_of(&ratios, 0.95);
        assert!(0.5 < lower && lower < wider.lower && wider.lower < mean, "{lower} {mean}");
        assert!(mean < wider.upper && wider.upper < upper && upper < 0.9, "{mean} {upper}");
    }
}
