//! Whether memory is bounded: the most that a process ever had, and whether it still grows after half of the time. Pure.

/// Memory of a process at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Which process: those of another number have nothing to do with it.
    pub life: u32,
    /// When, in seconds.
    pub at_s: f64,
    /// Resident bytes.
    pub bytes: f64,
}

/// Bytes a second by which processes grow, by least squares: one slope, and a level of its own for each process, so that a
/// restart is no shrinking. None if no process was looked at twice.
pub fn slope(points: &[Point]) -> Option<f64> {
    let mut lives: Vec<u32> = points.iter().map(|point| point.life).collect();
    lives.sort_unstable();
    lives.dedup();
    let (mut products, mut squares) = (0.0, 0.0);
    for life in lives {
        let of: Vec<&Point> = points.iter().filter(|point| point.life == life).collect();
        let count = of.len() as f64;
        let at = of.iter().map(|point| point.at_s).sum::<f64>() / count;
        let bytes = of.iter().map(|point| point.bytes).sum::<f64>() / count;
        for point in of {
            products += (point.at_s - at) * (point.bytes - bytes);
            squares += (point.at_s - at).powi(2);
        }
    }
    (squares > 0.0).then(|| products / squares)
}

/// The points of the second half of all time, without the first `settle_s` seconds of each process.
pub fn second_half(points: &[Point], settle_s: f64) -> Vec<Point> {
    let last = points.iter().map(|point| point.at_s).fold(0.0, f64::max);
    let began = |life: u32| {
        let of = points.iter().filter(|point| point.life == life);
        of.map(|point| point.at_s).fold(f64::MAX, f64::min)
    };
    let counts = |point: &&Point| point.at_s >= last / 2.0 && point.at_s >= began(point.life) + settle_s;
    points.iter().filter(counts).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(life: u32, of: &[(f64, f64)]) -> Vec<Point> {
        of.iter().map(|&(at_s, bytes)| Point { life, at_s, bytes }).collect()
    }

    #[test]
    fn the_slope_is_that_of_least_squares() {
        // Times 0 1 2 3 around 1.5, bytes 1 3 2 6 around 3: (3 + 0 - 0.5 + 4.5) / 5 = 1.4.
        let of = points(0, &[(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 6.0)]);
        assert!((slope(&of).expect("four points") - 1.4).abs() < 1e-12);
        assert_eq!(slope(&points(0, &[(5.0, 9.0)])), None);
        assert_eq!(slope(&[]), None);
    }

    #[test]
    fn a_restart_is_neither_growth_nor_shrinking() {
        let level = [points(0, &[(0.0, 900.0), (10.0, 900.0)]), points(1, &[(20.0, 100.0), (30.0, 100.0)])];
        assert_eq!(slope(&level.concat()), Some(0.0));
        // Each grows by 2 a second, though the second begins far below the first.
        let grows = [points(0, &[(0.0, 900.0), (10.0, 920.0)]), points(1, &[(20.0, 100.0), (30.0, 120.0)])];
        assert!((slope(&grows.concat()).expect("two lives") - 2.0).abs() < 1e-12);
        // A life with one look says nothing.
        let one_look = [grows.concat(), points(2, &[(40.0, 1e9)])];
        assert!((slope(&one_look.concat()).expect("two lives") - 2.0).abs() < 1e-12);
    }

    #[test]
    fn only_the_second_half_counts_and_no_beginning() {
        let first: Vec<(f64, f64)> = (0..=10).map(|at| (f64::from(at) * 10.0, 1.0)).collect();
        let of = points(0, &first);
        let times = |points: &[Point]| points.iter().map(|point| point.at_s).collect::<Vec<_>>();
        assert_eq!(times(&second_half(&of, 20.0)), [50.0, 60.0, 70.0, 80.0, 90.0, 100.0]);
        let restarted = [points(0, &first[..7]), points(1, &first[7..])].concat();
        // The second process begins at 70 and counts from 90 on.
        assert_eq!(times(&second_half(&restarted, 20.0)), [50.0, 60.0, 90.0, 100.0]);
    }
}
