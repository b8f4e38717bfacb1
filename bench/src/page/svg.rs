//! Drawings as text: a plot with two axes, lines, dots, bars and rules, in colours that follow the reader's light or dark.
//! Each drawing is whole in itself, so that it can stand in a page or in a file of its own.

use std::fmt::Write;

/// Size of a drawing in its own units; a page scales it.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BELOW: f64 = 52.0;
const LEGEND_LINE: f64 = 20.0;

const STYLE: &str = "\
.chart{--ink:#1d2530;--soft:#5c6775;--grid:#e2e6eb;--paper:#ffffff;--one:#2668ad;--two:#c2560f;--three:#47803a;--four:#7d4fa3;--five:#0f7f86;--six:#a8326e;--limit:#b3261e;\
font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif;font-size:13px;fill:var(--ink)}\
@media (prefers-color-scheme:dark){.chart{--ink:#e7ebf0;--soft:#a3adba;--grid:#343c47;--paper:#171b21;--one:#6fb0f2;--two:#f29a57;--three:#86c477;--four:#c19be3;--five:#4cc3c9;--six:#f08ab8;--limit:#ff8a80}}\
.chart .soft{fill:var(--soft)}.chart .grid{stroke:var(--grid);stroke-width:1}.chart .paper{fill:var(--paper)}\
.chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}.chart .thin{stroke-width:1.1;opacity:.75}\
.chart .one{stroke:var(--one)}.chart .two{stroke:var(--two)}.chart .three{stroke:var(--three)}.chart .four{stroke:var(--four)}.chart .five{stroke:var(--five)}.chart .six{stroke:var(--six)}.chart .muted{stroke:var(--soft)}\
.chart .limit{stroke:var(--limit);stroke-width:1.5;stroke-dasharray:6 4}\
.chart .fill-one{fill:var(--one)}.chart .fill-two{fill:var(--two)}.chart .fill-three{fill:var(--three)}.chart .fill-four{fill:var(--four)}.chart .fill-five{fill:var(--five)}.chart .fill-six{fill:var(--six)}.chart .fill-muted{fill:var(--soft)}\
.chart .limit-words{fill:var(--limit)}";

/// A colour of the series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// The first series, and quiet runs.
    One,
    /// The second, and runs under pressure.
    Two,
    /// The third.
    Three,
    /// The fourth.
    Four,
    /// The fifth.
    Five,
    /// The sixth.
    Six,
    /// What stands behind.
    Muted,
}

impl Ink {
    /// Series that can be told apart.
    pub const COUNT: usize = 6;

    /// The series' colours in turn.
    pub fn of(number: usize) -> Ink {
        [Ink::One, Ink::Two, Ink::Three, Ink::Four, Ink::Five, Ink::Six][number % Ink::COUNT]
    }

    fn class(self) -> &'static str {
        match self {
            Ink::One => "one",
            Ink::Two => "two",
            Ink::Three => "three",
            Ink::Four => "four",
            Ink::Five => "five",
            Ink::Six => "six",
            Ink::Muted => "muted",
        }
    }
}

/// How values lie on an axis.
#[derive(Clone, Debug)]
pub enum Scale {
    /// Evenly.
    Linear {
        /// Where it begins.
        min: f64,
        /// Where it ends.
        max: f64,
    },
    /// Each power of ten as long as any other.
    Logarithmic {
        /// Where it begins.
        min: f64,
        /// Where it ends.
        max: f64,
    },
    /// Percentiles: as long for each further nine, so that what is rare can be seen.
    Nines {
        /// The highest percentile shown, below 100.
        max: f64,
    },
    /// Rows with names, from the top.
    Rows(Vec<String>),
}

impl Scale {
    /// Evenly, from zero or the smallest value to a little over the largest.
    pub fn linear_over(values: impl Iterator<Item = f64>, from_zero: bool) -> Scale {
        let (min, max) = range(values);
        let min = if from_zero { min.min(0.0) } else { min };
        let margin = ((max - min) * 0.06).max(f64::EPSILON);
        Scale::Linear { min: if from_zero { min } else { min - margin }, max: max + margin }
    }

    /// By powers of ten, over all positive values.
    pub fn logarithmic_over(values: impl Iterator<Item = f64>) -> Scale {
        let (min, max) = range(values.filter(|value| *value > 0.0));
        Scale::Logarithmic { min: min.max(1e-3) * 0.9, max: max.max(1e-3) * 1.15 }
    }

    /// Where a value lies, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match self {
            Scale::Linear { min, max } => (value - min) / (max - min),
            Scale::Logarithmic { min, max } => (value.max(*min) / min).ln() / (max / min).ln(),
            Scale::Nines { max } => nines(value.min(*max)) / nines(*max),
            Scale::Rows(names) => 1.0 - (value + 0.5) / names.len().max(1) as f64,
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self {
            Scale::Linear { min, max } => {
                let step = round_step((max - min) / 5.0);
                let first = (min / step).ceil() as i64;
                let last = (max / step).floor() as i64;
                (first..=last)
                    .map(|number| number as f64 * step)
                    .map(|value| (value, label(value, step)))
                    .collect()
            }
            Scale::Logarithmic { min, max } => {
                let decades = (min.log10().floor() as i32)..=(max.log10().ceil() as i32);
                let parts: &[f64] = match (max / min).log10() {
                    2.5.. => &[1.0],
                    0.8.. => &[1.0, 2.0, 5.0],
                    _ => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
                };
                let tick = |decade: i32, part: f64| {
                    let power = 10f64.powi(decade);
                    let step = if part.fract() > 0.0 { power / 10.0 } else { power };
                    (part * power, label(part * power, step))
                };
                let all = decades.flat_map(|decade| parts.iter().map(move |part| tick(decade, *part)));
                all.filter(|(value, _)| (min..=max).contains(&value)).collect()
            }
            Scale::Nines { max } => {
                let told = [0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];
                let told = told.into_iter().filter(|value| value <= max && self.place(*value) < 0.92);
                told.map(|value| (value, format!("{value} %"))).chain([(*max, "max".to_owned())]).collect()
            }
            Scale::Rows(names) => {
                names.iter().enumerate().map(|(row, name)| (row as f64, name.clone())).collect()
            }
        }
    }
}

fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).log10()
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let (min, max) = finite.fold((f64::MAX, f64::MIN), |(min, max), value| (min.min(value), max.max(value)));
    match min <= max {
        true if min < max => (min, max),
        true => (min - 0.5 * min.abs().max(1e-9), max + 0.5 * max.abs().max(1e-9)),
        false => (0.0, 1.0),
    }
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn round_step(step: f64) -> f64 {
    let decade = 10f64.powf(step.log10().floor());
    let part = step / decade;
    decade
        * if part <= 1.0 {
            1.0
        } else if part <= 2.0 {
            2.0
        } else if part <= 5.0 {
            5.0
        } else {
            10.0
        }
}

/// A number with as many digits as its step has.
fn label(value: f64, step: f64) -> String {
    let digits = (-step.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    group(&format!("{value:.digits$}"))
}

/// Thousands set apart, so that large numbers can be read.
pub fn group(number: &str) -> String {
    let (sign, rest) = number.strip_prefix('-').map_or(("", number), |rest| ("−", rest));
    let (whole, part) = rest.split_once('.').map_or((rest, ""), |(whole, part)| (whole, part));
    let mut text = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if !part.is_empty() {
        text.push('.');
        text.push_str(part);
    }
    text
}

/// Text for XML and HTML.
pub fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, character| {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
        escaped
    })
}

/// A drawing in work.
pub struct Plot {
    /// What it shows, for who cannot see it.
    title: String,
    x: (Scale, String),
    y: (Scale, String),
    height: f64,
    left: f64,
    marks: String,
    legend: Vec<(Ink, String)>,
}

impl Plot {
    /// A plot with named axes.
    pub fn new(title: &str, x: (Scale, &str), y: (Scale, &str)) -> Plot {
        let (height, left) = match &y.0 {
            Scale::Rows(names) => {
                let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
                (40.0 * names.len() as f64 + TOP + BELOW, (longest as f64 * 7.2 + 24.0).max(LEFT))
            }
            _ => (330.0, LEFT),
        };
        let owned = |(scale, name): (Scale, &str)| (scale, name.to_owned());
        Plot {
            title: title.to_owned(),
            x: owned(x),
            y: owned(y),
            height,
            left,
            marks: String::new(),
            legend: Vec::new(),
        }
    }

    fn across(&self, x: f64) -> f64 {
        self.left + self.x.0.place(x) * (WIDTH - self.left - RIGHT)
    }

    fn up(&self, y: f64) -> f64 {
        self.height - BELOW - self.y.0.place(y) * (self.height - TOP - BELOW)
    }

    /// Names a colour.
    pub fn legend(&mut self, ink: Ink, name: &str) {
        if !self.legend.iter().any(|(_, known)| known == name) {
            self.legend.push((ink, name.to_owned()));
        }
    }

    /// A line through points.
    pub fn line(&mut self, points: &[(f64, f64)], ink: Ink, thin: bool, name: &str) {
        let mut path = String::new();
        for (at, &(x, y)) in points.iter().enumerate() {
            let command = if at == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", self.across(x), self.up(y));
        }
        let thin = if thin { " thin" } else { "" };
        let (class, name) = (ink.class(), escape(name));
        let _ = writeln!(
            self.marks,
            "<path class=\"line {class}{thin}\" d=\"{path}\"><title>{name}</title></path>"
        );
    }

    /// A dot.
    pub fn dot(&mut self, x: f64, y: f64, ink: Ink, name: &str) {
        let (x, y, class, name) = (self.across(x), self.up(y), ink.class(), escape(name));
        let _ = writeln!(
            self.marks,
            "<circle class=\"fill-{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{name}</title></circle>"
        );
    }

    /// A bar between two places on each axis.
    pub fn bar(&mut self, x: (f64, f64), y: (f64, f64), ink: Ink, name: &str) {
        let (left, right) = (self.across(x.0), self.across(x.1));
        let (bottom, top) = (self.up(y.0), self.up(y.1));
        let (class, name) = (ink.class(), escape(name));
        let _ = writeln!(
            self.marks,
            "<rect class=\"fill-{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{name}</title></rect>",
            (right - left).max(0.8),
            (bottom - top).max(0.0)
        );
    }

    /// A bar along a row, with a word behind it.
    pub fn row_bar(&mut self, row: usize, value: f64, ink: Ink, words: &str) {
        let (left, right, middle) = (self.left, self.across(value), self.up(row as f64));
        let class = ink.class();
        let _ = writeln!(
            self.marks,
            "<rect class=\"fill-{class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"18\"/>",
            middle - 9.0,
            (right - left).max(1.0)
        );
        let inside = right > WIDTH - 170.0;
        let (at, anchor, paper) =
            if inside { (right - 6.0, "end", " class=\"paper\"") } else { (right + 6.0, "start", "") };
        let _ = writeln!(
            self.marks,
            "<text{paper} x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            middle + 4.5,
            escape(words)
        );
    }

    /// An interval along a row, with its middle.
    pub fn interval(&mut self, row: f64, (low, middle, high): (f64, f64, f64), ink: Ink, name: &str) {
        let (low, middle, high, y) = (self.across(low), self.across(middle), self.across(high), self.up(row));
        let (class, name) = (ink.class(), escape(name));
        let _ = writeln!(
            self.marks,
            "<g class=\"line {class}\"><title>{name}</title><path d=\"M{low:.1} {y:.1}L{high:.1} {y:.1}\" stroke-width=\"6\" opacity=\".35\"/>\
             <path d=\"M{middle:.1} {:.1}L{middle:.1} {:.1}\" stroke-width=\"3\"/></g>",
            y - 9.0,
            y + 9.0
        );
    }

    /// A limit across the drawing at a value of the x axis.
    pub fn limit_across(&mut self, x: f64, words: &str) {
        let at = self.across(x);
        let (beside, anchor) = if at + words.chars().count() as f64 * 7.5 + 5.0 > WIDTH {
            (at - 5.0, "end")
        } else {
            (at + 5.0, "start")
        };
        let _ = writeln!(
            self.marks,
            "<path class=\"limit\" d=\"M{at:.1} {TOP}L{at:.1} {:.1}\"/>\
             <text class=\"limit-words\" x=\"{beside:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            self.height - BELOW,
            TOP + 9.0,
            escape(words)
        );
    }

    /// A limit along the drawing at a value of the y axis.
    pub fn limit_along(&mut self, y: f64, words: &str) {
        let at = self.up(y);
        let _ = writeln!(
            self.marks,
            "<path class=\"limit\" d=\"M{:.1} {at:.1}L{:.1} {at:.1}\"/><text class=\"limit-words\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            self.left,
            WIDTH - RIGHT,
            self.left + 6.0,
            at - 5.0,
            escape(words)
        );
    }

    /// The whole drawing.
    pub fn svg(&self) -> String {
        let legend_lines = self.legend_lines();
        let all = self.height + legend_lines.len() as f64 * LEGEND_LINE + 4.0;
        let mut text = String::new();
        let title = escape(&self.title);
        let _ = writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {WIDTH} {all}\" role=\"img\" aria-label=\"{title}\">\
             <title>{title}</title><style>{STYLE}</style><rect class=\"paper\" width=\"{WIDTH}\" height=\"{all}\"/>"
        );
        self.axes(&mut text);
        text.push_str(&self.marks);
        for (line, names) in legend_lines.iter().enumerate() {
            let y = self.height + line as f64 * LEGEND_LINE + 9.0;
            for (x, ink, name) in names {
                let _ = writeln!(
                    text,
                    "<rect class=\"fill-{}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                    ink.class(),
                    y - 10.0,
                    x + 18.0,
                    y + 0.5,
                    escape(name)
                );
            }
        }
        text.push_str("</svg>\n");
        text
    }

    fn axes(&self, text: &mut String) {
        let (bottom, right) = (self.height - BELOW, WIDTH - RIGHT);
        for (value, name) in self.x.0.ticks() {
            let x = self.across(value);
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}L{x:.1} {bottom:.1}\"/><text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                escape(&name)
            );
        }
        for (value, name) in self.y.0.ticks() {
            let y = self.up(value);
            let _ = writeln!(
                text,
                "<path class=\"grid\" d=\"M{:.1} {y:.1}L{right:.1} {y:.1}\"/><text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                self.left,
                self.left - 8.0,
                y + 4.5,
                escape(&name)
            );
        }
        let middle = (self.left + right) / 2.0;
        let _ = writeln!(
            text,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 40.0,
            escape(&self.x.1)
        );
        let upright = (TOP + bottom) / 2.0;
        let _ = writeln!(
            text,
            "<text transform=\"translate(16 {upright:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(&self.y.1)
        );
    }

    /// Names of colours, in lines that fit.
    fn legend_lines(&self) -> Vec<Vec<(f64, Ink, &str)>> {
        let mut lines: Vec<Vec<(f64, Ink, &str)>> = Vec::new();
        let mut x = f64::MAX;
        for (ink, name) in &self.legend {
            let width = name.chars().count() as f64 * 7.0 + 44.0;
            if x + width > WIDTH {
                lines.push(Vec::new());
                x = LEFT;
            }
            lines.last_mut().expect("a line was begun").push((x, *ink, name));
            x += width;
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_their_scale_says() {
        let linear = Scale::Linear { min: 10.0, max: 20.0 };
        assert_eq!([10.0, 12.5, 20.0, 30.0].map(|value| linear.place(value)), [0.0, 0.25, 1.0, 1.0]);
        let logarithmic = Scale::Logarithmic { min: 1.0, max: 1_000.0 };
        assert!((logarithmic.place(10.0) - 1.0 / 3.0).abs() < 1e-9);
        let nines = Scale::Nines { max: 99.9 };
        for (percentile, place) in
            [(0.0, 0.0), (90.0, 1.0 / 3.0), (99.0, 2.0 / 3.0), (99.9, 1.0), (100.0, 1.0)]
        {
            assert!((nines.place(percentile) - place).abs() < 1e-9, "{percentile}");
        }
        let rows = Scale::Rows(vec!["a".into(), "b".into()]);
        assert_eq!((rows.place(0.0), rows.place(1.0)), (0.75, 0.25), "from the top");
    }

    #[test]
    fn ticks_are_round_and_within() {
        let names = |scale: Scale| scale.ticks().into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(
            names(Scale::Linear { min: 0.0, max: 4_321.0 }),
            ["0", "1,000", "2,000", "3,000", "4,000"]
        );
        assert_eq!(names(Scale::Linear { min: 0.93, max: 1.08 }), ["0.95", "1.00", "1.05"]);
        assert_eq!(names(Scale::Logarithmic { min: 0.5, max: 30.0 }), ["0.5", "1", "2", "5", "10", "20"]);
        assert_eq!(names(Scale::Logarithmic { min: 0.9, max: 1.7 }), ["1", "1.2", "1.5"]);
        assert_eq!(
            names(Scale::Logarithmic { min: 4_000.0, max: 9_000.0 }),
            ["4,000", "5,000", "6,000", "8,000"]
        );
        assert_eq!(names(Scale::Nines { max: 99.5 }), ["0 %", "50 %", "75 %", "90 %", "95 %", "99 %", "max"]);
        assert_eq!(names(Scale::Logarithmic { min: 1.0, max: 1e4 }), ["1", "10", "100", "1,000", "10,000"]);
    }

    #[test]
    fn a_drawing_holds_no_markup_of_its_data() {
        let mut plot = Plot::new(
            "<b>&",
            (Scale::Nines { max: 99.9 }, "x"),
            (Scale::Linear { min: 0.0, max: 1.0 }, "\"y\""),
        );
        plot.line(&[(0.0, 0.0), (99.0, 1.0)], Ink::One, false, "<script>");
        plot.legend(Ink::One, "<i>");
        let svg = plot.svg();
        assert!(!svg.contains("<b>") && !svg.contains("<script>") && !svg.contains("<i>"));
        assert!(svg.contains("&lt;script&gt;") && svg.starts_with("<svg xmlns") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("http").count(), 1, "the name space alone: nothing is fetched");
    }

    #[test]
    fn values_that_are_all_the_same_have_a_scale() {
        for values in [vec![], vec![5.0], vec![0.0, 0.0]] {
            let Scale::Linear { min, max } = Scale::linear_over(values.into_iter(), false) else {
                unreachable!()
            };
            assert!(min < max);
        }
    }
}
