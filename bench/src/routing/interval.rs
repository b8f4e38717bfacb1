//! What runs say together: the geometric mean of their ratios, and how far it would lie elsewhere with other runs.

/// Most runs of which every resample is looked at.
const EXACT_MAX: usize = 6;

/// Geometric mean.
///
/// # Panics
/// If there are none.
pub fn geometric_mean(ratios: &[f64]) -> f64 {
    assert!(!ratios.is_empty(), "something was measured");
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

/// Bounds of the middle 95 % of what resampled runs would have had as their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// 2.5 % lie below.
    pub low: f64,
    /// 2.5 % lie above.
    pub high: f64,
}

impl Interval {
    /// Of the geometric mean, by the bootstrap. Runs are few, so all of their resamples are looked at and none is drawn.
    ///
    /// # Panics
    /// If there are none, or more than can be looked at.
    pub fn of(ratios: &[f64]) -> Interval {
        let count = ratios.len();
        assert!(
            (1..=EXACT_MAX).contains(&count),
            "{count} runs, and at most {EXACT_MAX} can be resampled exactly"
        );
        let resamples = count.pow(count as u32);
        let mean = |number: usize| {
            let draw = |at: usize| ratios[number / count.pow(at as u32) % count];
            geometric_mean(&(0..count).map(draw).collect::<Vec<_>>())
        };
        let mut means: Vec<f64> = (0..resamples).map(mean).collect();
        means.sort_by(f64::total_cmp);
        let at = |share: f64| means[((resamples - 1) as f64 * share).round() as usize];
        Interval { low: at(0.025), high: at(0.975) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_runs_have_no_width_and_unequal_ones_lie_within_theirs() {
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-12);
        let equal = Interval::of(&[0.7; 5]);
        assert!((equal.low - 0.7).abs() < 1e-12 && (equal.high - 0.7).abs() < 1e-12);
        let ratios = [0.5, 0.6, 0.7, 0.8, 0.9];
        let Interval { low, high } = Interval::of(&ratios);
        let mean = geometric_mean(&ratios);
        assert!(0.5 < low && low < mean && mean < high && high < 0.9, "{low} {mean} {high}");
        // Of two runs the four resamples are 1, 2, 2 and 4 as products.
        assert_eq!(Interval::of(&[1.0, 4.0]), Interval { low: 1.0, high: 4.0 });
    }
}
