//! From what was measured to figures with a title and one sentence that says how to read them.

use std::collections::BTreeMap;

use super::collection::Distribution;
use super::svg::{Ink, Plot, Scale, group};
use crate::isolation::exposure::declared_per_second;
use crate::isolation::foreground::Operation;
use crate::isolation::plan::RATIO_MAX;
use crate::isolation::record::{Measured, Outcome, Point, Record};
use crate::isolation::schedule::{Kind, Medium, Side};
use crate::isolation::verdict::{Comparison, Pair};
use crate::resampling::PAIRS_MAX;

/// Bars of a histogram.
const BARS: usize = 48;
/// Stretches of a run that its coverage is drawn in.
const STRETCHES: u64 = 60;

/// A drawing with what is said of it.
#[derive(Debug)]
pub struct Figure {
    /// Name of its file, without ending.
    pub file: String,
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub sentence: String,
    /// The drawing.
    pub svg: String,
}

/// A medium in plain words.
pub fn medium_words(medium: Medium) -> &'static str {
    match medium {
        Medium::Dram => "in memory (DRAM)",
        Medium::Ssd => "on SSD",
    }
}

fn kind_words(kind: Kind) -> &'static str {
    match kind {
        Kind::QuietQuiet => "two quiet runs",
        Kind::QuietPressure => "pressure against quiet",
    }
}

/// The pairs of one kind on one medium, from runs that count.
pub fn comparison(runs: &[&Record], medium: Medium, kind: Kind, operation: Operation) -> Option<Comparison> {
    let mut pairs: BTreeMap<usize, [Option<u64>; 2]> = BTreeMap::new();
    for record in runs {
        let cell = record.cell;
        if (cell.medium, cell.kind) == (medium, kind) && record.outcome == Outcome::Counts {
            let measured = record.measured.as_ref().filter(|measured| !measured.rounds.is_empty());
            let p99 = measured.map(|measured| measured.p99(operation));
            pairs.entry(cell.pair).or_default()[usize::from(cell.side == Side::Compared)] = p99;
        }
    }
    // A file may say anything: times of nothing have no ratio, and more pairs than can be drawn have no interval.
    let whole = pairs.values().filter_map(|pair| Some(Pair { base: pair[0]?, compared: pair[1]? }));
    let whole: Vec<Pair> = whole.filter(|pair| pair.base > 0 && pair.compared > 0).collect();
    if whole.len() > PAIRS_MAX { None } else { Comparison::of(&whole) }
}

/// All figures of the runs of one campaign.
pub fn isolation(prefix: &str, runs: &[&Record]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for medium in [Medium::Dram, Medium::Ssd] {
        let of: Vec<&Record> = runs.iter().copied().filter(|record| record.cell.medium == medium).collect();
        let counting: Vec<(&Record, &Measured)> = (of.iter())
            .filter(|record| record.outcome == Outcome::Counts)
            .filter_map(|record| Some((*record, record.measured.as_ref()?)))
            .collect();
        if counting.is_empty() {
            continue;
        }
        figures.extend(pairs(prefix, medium, &of));
        for operation in Operation::ALL {
            figures.push(curves_of_runs(prefix, medium, operation, &counting));
        }
        figures.extend(coverage(prefix, medium, &counting));
    }
    figures
}

/// Ratios of all pairs with their interval.
fn pairs(prefix: &str, medium: Medium, runs: &[&Record]) -> Option<Figure> {
    let mut rows = Vec::new();
    for operation in Operation::GATED {
        for kind in [Kind::QuietQuiet, Kind::QuietPressure] {
            if let Some(comparison) = comparison(runs, medium, kind, operation) {
                rows.push((format!("{}: {}", operation.name(), kind_words(kind)), kind, comparison));
            }
        }
    }
    if rows.is_empty() {
        return None;
    }
    let ratios = rows.iter().flat_map(|row| row.2.ratios.iter().copied());
    let x = Scale::logarithmic_over(ratios.chain([0.9, RATIO_MAX * 1.3]));
    let names = rows.iter().map(|row| row.0.clone()).collect();
    let title =
        format!("Isolation, blocks {}: how many times longer the slowest 1 % took", medium_words(medium));
    let mut plot = Plot::new(
        &title,
        (x, "p99 of the compared run / p99 of the quiet run it is compared with"),
        (Scale::Rows(names), ""),
    );
    plot.limit_across(RATIO_MAX, &format!("limit {RATIO_MAX}"));
    plot.limit_across(RATIO_MAX.recip(), "");
    for (row, (_, kind, comparison)) in rows.iter().enumerate() {
        let ink = if *kind == Kind::QuietQuiet { Ink::Muted } else { Ink::Two };
        let mean = comparison.mean;
        let words = format!("mean {:.3}, 90 % interval {:.3} to {:.3}", mean.mean, mean.lower, mean.upper);
        plot.interval(row as f64, (mean.lower, mean.mean, mean.upper), ink, &words);
        for (number, ratio) in comparison.ratios.iter().enumerate() {
            plot.dot(*ratio, row as f64, ink, &format!("pair {}: {ratio:.3}", number + 1));
        }
    }
    plot.legend(Ink::Muted, "pairs of two quiet runs");
    plot.legend(Ink::Two, "quiet run and run under pressure");
    let sentence = "Each dot is a pair of runs made one after the other, the upright mark is their geometric mean, and the pale bar \
        holds the mean in 90 of 100 drawings of the pairs: isolation holds if orange dots and bar end left of the limit, and \
        only if the grey ones lie between both dashed lines, because those differ by the machine's own noise alone.";
    Some(Figure {
        file: format!("{prefix}isolation-{medium}-pairs"),
        title,
        sentence: sentence.to_owned(),
        svg: plot.svg(),
    })
}

/// One line a run.
fn curves_of_runs(
    prefix: &str,
    medium: Medium,
    operation: Operation,
    runs: &[(&Record, &Measured)],
) -> Figure {
    let title =
        format!("{} with blocks {}: time by percentile", capital(operation.name()), medium_words(medium));
    let lines: Vec<(&Record, Vec<(f64, f64)>)> = (runs.iter())
        .map(|(record, _)| {
            let points = record.histograms.get(operation.name()).map_or(&[][..], Vec::as_slice);
            (*record, curve(points))
        })
        .collect();
    let values = lines.iter().flat_map(|line| line.1.iter().map(|point| point.1));
    let count = runs.iter().map(|(_, measured)| measured.rounds.len()).max().unwrap_or(0);
    let mut plot = Plot::new(
        &title,
        (nines_for(count as u64), "percentile of the rounds of a run"),
        (Scale::logarithmic_over(values), "time in µs"),
    );
    for (record, points) in &lines {
        let ink = if record.cell.is_under_pressure() { Ink::Two } else { Ink::One };
        plot.line(points, ink, true, &record.name);
    }
    plot.legend(Ink::One, "quiet run");
    plot.legend(Ink::Two, "run under pressure");
    let what = match operation {
        Operation::Save => "handing new blocks to the node, from the moment it should have begun",
        Operation::Query => "asking which of the blocks are there",
        Operation::Restore => "getting the blocks back, bytes copied out",
    };
    Figure {
        file: format!("{prefix}isolation-{medium}-{}", operation.name()),
        title,
        sentence: format!(
            "One line for each run of {} rounds: {what}; where orange lies on blue, pressure made no difference, and the further right, \
             the rarer the case (99 % means one round of a hundred took longer; max is the longest).",
            group(&count.to_string())
        ),
        svg: plot.svg(),
    }
}

/// What the foreground's node was told over time, in every run under pressure.
fn coverage(prefix: &str, medium: Medium, runs: &[(&Record, &Measured)]) -> Option<Figure> {
    let pressed: Vec<_> = runs.iter().filter(|(record, _)| record.cell.is_under_pressure()).collect();
    let longest = pressed.iter().map(|(_, measured)| seconds(measured)).fold(0.0, f64::max);
    if pressed.is_empty() {
        return None;
    }
    let lines: Vec<_> =
        pressed.iter().map(|(record, measured)| (*record, rate_over_time(measured))).collect();
    let values = lines.iter().flat_map(|line| line.1.iter().map(|point| point.1));
    let title = format!("Blocks {}: pressure that arrived, over time", medium_words(medium));
    let y = Scale::linear_over(values.chain([declared_per_second() * 1.1]), true);
    let x = Scale::Linear { min: 0.0, max: longest };
    let mut plot =
        Plot::new(&title, (x, "seconds since the first round that counts"), (y, "changes a second"));
    plot.limit_along(declared_per_second(), "declared");
    for (record, points) in &lines {
        plot.line(points, Ink::Two, true, &record.name);
    }
    plot.legend(Ink::Two, "changes applied by the node whose engine is measured, one line a run");
    Some(Figure {
        file: format!("{prefix}isolation-{medium}-coverage"),
        title,
        sentence: "Shows that the measured node really was under the declared pressure from beginning to end: lines near the \
            dashed one; a run with a hole, or with another rate, does not count."
            .to_owned(),
        svg: plot.svg(),
    })
}

fn seconds(measured: &Measured) -> f64 {
    measured.window.ended_ns.saturating_sub(measured.window.began_ns) as f64 / 1e9
}

/// Changes a second that the observer applied, in stretches of the window.
fn rate_over_time(measured: &Measured) -> Vec<(f64, f64)> {
    let window = measured.window;
    let stretch_ns = (window.ended_ns.saturating_sub(window.began_ns) / STRETCHES).max(200_000_000);
    let mut points = Vec::new();
    let inside = |at: u64| (window.began_ns..=window.ended_ns).contains(&at);
    let mut looks = measured.looks.iter().filter(|look| inside(look.observer_ns));
    let Some(mut first) = looks.next() else { return points };
    for look in looks {
        let elapsed = look.observer_ns.saturating_sub(first.observer_ns);
        if elapsed >= stretch_ns {
            let middle = first.observer_ns + elapsed / 2 - window.began_ns;
            let applied = look.observer_applied.saturating_sub(first.observer_applied);
            points.push((middle as f64 / 1e9, applied as f64 / (elapsed as f64 / 1e9)));
            first = look;
        }
    }
    points
}

/// All distributions of a report as curves, those of a group together, and each whole one as a histogram.
pub fn of_distributions(prefix: &str, whose: &str, distributions: &[Distribution]) -> Vec<Figure> {
    let mut groups: Vec<&str> = Vec::new();
    for one in distributions {
        if !groups.contains(&one.group.as_str()) {
            groups.push(&one.group);
        }
    }
    let mut figures = Vec::new();
    for group in groups {
        let of: Vec<&Distribution> = distributions.iter().filter(|one| one.group == group).collect();
        // More lines than colours would be told apart by nobody.
        for (part, lines) in of.chunks(Ink::COUNT).enumerate() {
            figures.push(curves(prefix, whose, group, part, lines));
        }
        figures.extend(of.iter().filter(|one| one.is_whole).filter_map(|one| histogram(prefix, whose, one)));
    }
    figures
}

fn curves(prefix: &str, whose: &str, group: &str, part: usize, lines: &[&Distribution]) -> Figure {
    let of = if group.is_empty() { String::new() } else { format!(", {group}") };
    let title = format!("{}{of}: time by percentile", capital(whose));
    let values = lines.iter().flat_map(|one| one.points.iter().map(|point| point.value_us));
    let finest = lines.iter().map(|one| finest(&one.points)).fold(99.0, f64::max);
    let mut plot = Plot::new(
        &title,
        (Scale::Nines { max: finest }, "percentile of all cases"),
        (Scale::logarithmic_over(values), "time in µs"),
    );
    for (number, one) in lines.iter().enumerate() {
        plot.line(&curve(&one.points), Ink::of(number), false, &plain(&one.name));
        plot.legend(Ink::of(number), &plain(&one.name));
        if !one.is_whole {
            (one.points.iter()).for_each(|point| {
                plot.dot(point.percentile, point.value_us, Ink::of(number), &plain(&one.name))
            });
        }
    }
    let dots = if lines.iter().all(|one| one.is_whole) {
        ""
    } else {
        " Dots are what was kept; the lines between them only lead the eye."
    };
    let number = if part == 0 { String::new() } else { format!("-{}", part + 1) };
    Figure {
        file: format!("{prefix}percentiles{}{number}", file_part(group)),
        title,
        sentence: format!(
            "Each line says how long the given share of all cases took at most: the further right, the rarer the case, and max \
             is the longest.{dots}"
        ),
        svg: plot.svg(),
    }
}

/// A name as part of a file's, after a dash.
fn file_part(name: &str) -> String {
    if name.is_empty() {
        String::new()
    } else {
        format!("-{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"))
    }
}

/// How often which time was seen.
fn histogram(prefix: &str, whose: &str, one: &Distribution) -> Option<Figure> {
    let bars = bars(&one.points)?;
    let title = format!("{}, {}: how often which time was seen", capital(whose), plain(&one.name));
    let x = Scale::Logarithmic { min: bars[0].0.0, max: bars[bars.len() - 1].0.1 };
    let y = Scale::linear_over(bars.iter().map(|bar| bar.1), true);
    let mut plot = Plot::new(&title, (x, "time in µs"), (y, "% of all cases"));
    for ((from, until), share) in bars {
        plot.bar((from, until), (0.0, share), Ink::One, &format!("{from:.0} to {until:.0} µs: {share:.2} %"));
    }
    let told = one.points.iter().find(|point| point.percentile >= 99.0)?.value_us;
    let p99 = one.p99_us.unwrap_or(told);
    plot.limit_across(p99, &format!("p99 {} µs", group(&format!("{p99:.0}"))));
    Some(Figure {
        file: format!("{prefix}histogram{}{}", file_part(&one.name), file_part(&one.group)),
        title,
        sentence: "Bars show the share of cases by how long they took (each further to the right is longer by the same factor); \
            one case in a hundred lies right of the dashed line. Files keep percentiles and not each case, so bars between two of them, mostly the \
            leftmost, are evened out."
            .to_owned(),
        svg: plot.svg(),
    })
}

/// A bar: from and until in µs, and the share in percent.
type Bar = ((f64, f64), f64);

/// Shares in percent between times that grow by a factor; none if all are the same.
fn bars(points: &[Point]) -> Option<Vec<Bar>> {
    let (first, last) = (points.first()?.value_us.max(1e-3), points.last()?.value_us);
    if last <= first * 1.001 {
        return None;
    }
    let edge = |number: usize| first * (last / first).powf(number as f64 / BARS as f64);
    // The share at or below a time: of the last percentile that reaches it, with a straight line in between.
    let below = |time: f64| {
        let at = points.partition_point(|point| point.value_us <= time);
        match (at.checked_sub(1).map(|before| points[before]), points.get(at)) {
            (None, _) => 0.0,
            (Some(before), None) => before.percentile,
            (Some(before), Some(after)) => {
                let part = (time - before.value_us) / (after.value_us - before.value_us);
                before.percentile + part * (after.percentile - before.percentile)
            }
        }
    };
    let mut before = 0.0;
    let bar = |number: usize| {
        let (from, until) = (edge(number), edge(number + 1));
        let share = below(if number + 1 == BARS { last } else { until });
        let own = share - before;
        before = share;
        ((from, until), own)
    };
    Some((0..BARS).map(bar).collect())
}

/// Bytes by kind as bars.
pub fn bytes(prefix: &str, whose: &str, kinds: &BTreeMap<String, u64>) -> Option<Figure> {
    let largest = kinds.values().copied().max().filter(|bytes| *bytes > 0)?;
    let mut rows: Vec<(&String, &u64)> = kinds.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(*row.1));
    let title = format!("{}: bytes sent by kind", capital(whose));
    let names = rows.iter().map(|row| row.0.clone()).collect();
    let x = Scale::Linear { min: 0.0, max: largest as f64 * 1.02 / 1e6 };
    let mut plot = Plot::new(&title, (x, "megabytes"), (Scale::Rows(names), ""));
    for (row, (_, bytes)) in rows.iter().enumerate() {
        plot.row_bar(row, **bytes as f64 / 1e6, Ink::One, &format!("{} bytes", group(&bytes.to_string())));
    }
    Some(Figure {
        file: format!("{prefix}bytes"),
        title,
        sentence: "What went over the wire, by what it was for: the longer the bar, the more.".to_owned(),
        svg: plot.svg(),
    })
}

fn curve(points: &[Point]) -> Vec<(f64, f64)> {
    points.iter().map(|point| (point.percentile, point.value_us)).collect()
}

/// Where an axis ends that has the longest case behind the last percentile.
fn beyond(last: f64) -> f64 {
    (100.0 - (100.0 - last) / 2.0).min(99.9995)
}

/// Where the axis ends for the highest percentile below 100 that was told.
fn finest(points: &[Point]) -> f64 {
    let told = points.iter().map(|point| point.percentile).filter(|percentile| *percentile < 100.0);
    beyond(told.fold(90.0, f64::max))
}

/// Percentiles that so many values can tell.
fn nines_for(count: u64) -> Scale {
    Scale::Nines { max: beyond((100.0 - 100.0 / count.max(10) as f64).max(90.0)) }
}

/// A stable name as words.
pub fn plain(name: &str) -> String {
    name.replace(['_', '-'], " ")
}

/// With a capital letter.
pub fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(percentile: f64, value_us: f64) -> Point {
        Point { percentile, value_us }
    }

    #[test]
    fn bars_have_all_cases_and_lie_where_they_were_seen() {
        // Half at 10 µs, the other half evenly up to 1,000.
        let bars = bars(&[point(0.0, 10.0), point(50.0, 10.0), point(100.0, 1_000.0)]).expect("they differ");
        assert_eq!(bars.len(), BARS);
        assert!((bars.iter().map(|bar| bar.1).sum::<f64>() - 100.0).abs() < 1e-9);
        assert!(bars[0].1 > 50.0 && bars[1].1 < 1.0, "{bars:?}");
        assert!((bars[0].0.0 - 10.0).abs() < 1e-9 && (bars[BARS - 1].0.1 - 1_000.0).abs() < 1e-6);
        assert!(super::bars(&[point(0.0, 10.0), point(100.0, 10.0)]).is_none());
        assert!(super::bars(&[]).is_none());
    }

    #[test]
    fn a_report_with_distributions_has_a_curve_and_a_histogram_for_each() {
        let of = |name: &str| Distribution {
            name: name.to_owned(),
            group: String::new(),
            is_whole: true,
            points: vec![point(0.0, 5.0), point(50.0, 10.0), point(99.0, 40.0), point(100.0, 70.0)],
            p99_us: None,
        };
        let figures = of_distributions("x-", "visibility", &[of("install"), of("save_start")]);
        let files: Vec<_> = figures.iter().map(|figure| figure.file.as_str()).collect();
        assert_eq!(files, ["x-percentiles", "x-histogram-install", "x-histogram-save-start"]);
        assert!(figures[1].svg.contains("p99 40 µs"));
        let summary = |group: &str| Distribution { group: group.to_owned(), is_whole: false, ..of("lookup") };
        let figures_of_groups = of_distributions("x-", "index", &[summary("8 owners"), summary("64 owners")]);
        let files: Vec<_> = figures_of_groups.iter().map(|figure| figure.file.as_str()).collect();
        assert_eq!(files, ["x-percentiles-8-owners", "x-percentiles-64-owners"], "a summary is no histogram");
        let many = vec![summary(""); Ink::COUNT + 1];
        assert_eq!(
            of_distributions("x-", "index", &many).len(),
            2,
            "no two lines of a drawing look the same"
        );
        assert!(figures.iter().all(|figure| figure.sentence.ends_with('.')));
    }

    #[test]
    fn bytes_are_in_order_of_their_number() {
        let kinds = BTreeMap::from([("pages".to_owned(), 2_000_000), ("changes".to_owned(), 3_000_000)]);
        let svg = bytes("", "churn", &kinds).expect("there are some").svg;
        assert!(svg.find(">changes<").expect("a row") < svg.find(">pages<").expect("a row"));
        assert!(svg.contains("3,000,000 bytes"));
        assert!(bytes("", "churn", &BTreeMap::new()).is_none());
    }
}
