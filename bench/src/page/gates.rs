//! Gates as a page tells them: judged again from their own numbers, in a table, and drawn by how far each is from its limit.

use std::fmt::Write;

use serde_json::Value;

use super::figures::{Figure, capital};
use super::html::{number, text_of};
use super::svg::{Ink, Plot, Scale, escape};
use super::words;

/// Beyond this many times better or worse than its limit a gate is drawn at the edge.
const MARGIN_MAX: f64 = 20.0;

/// What is said where gates come from such a profile.
pub const CI: &str = "<p class=\"doubt\">Gates of the ci profile are among these. It only shows that everything works and qualifies nothing, \
    whether they are met or not.</p>\n";

/// How a gate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its value is on the right side of its limit.
    Met,
    /// It is not.
    Missed,
    /// What was measured proves nothing, with why.
    NotJudged(String),
}

impl Verdict {
    /// The verdict of an entry of a report's `gates`. What a file says of itself must be what its numbers say.
    pub fn of(gate: &Value) -> Verdict {
        let not_judged = |why: &str| Verdict::NotJudged(why.to_owned());
        if gate["valid"] != true {
            return not_judged(
                gate["why_invalid"].as_str().unwrap_or("the file does not say that it is valid"),
            );
        }
        let Some(value) = gate["value"].as_f64() else { return not_judged("the file has no value") };
        let Some(target) = gate["target"].as_f64() else { return not_judged("the file has no limit") };
        let seen = match gate["sense"].as_str() {
            Some("at-least") => value >= target,
            Some("at-most") => value <= target,
            _ => return not_judged("the file does not say on which side of its limit the value has to be"),
        };
        match gate["met"].as_bool() {
            Some(told) if told != seen => not_judged("the file says one thing and its numbers another"),
            Some(true) => Verdict::Met,
            Some(false) => Verdict::Missed,
            None => not_judged("the file does not say whether it is met"),
        }
    }

    /// In a word.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::NotJudged(_) => "not judged",
        }
    }

    /// The class of its colour.
    pub fn class(&self) -> &'static str {
        match self {
            Verdict::Met => "good",
            Verdict::Missed => "bad",
            Verdict::NotJudged(_) => "doubt",
        }
    }
}

/// All gates of a report.
pub fn of_report(report: &Value) -> impl Iterator<Item = &Value> {
    report["gates"].as_array().into_iter().flatten()
}

/// A limit with its sign, as people write it.
fn limit(gate: &Value) -> String {
    let sign = match gate["sense"].as_str() {
        Some("at-least") => "≥ ",
        Some("at-most") => "≤ ",
        _ => "",
    };
    format!("{sign}{}", number(&gate["target"]))
}

/// The table of all gates.
pub fn table(text: &mut String, reports: &[(String, Value)]) {
    text.push_str("<h2 id=\"gates\">Gates met and missed</h2>\n<p>A gate is a limit that was fixed before anything ran. \
        One that is <em>not judged</em> was measured in a way that proves nothing, and says why; it never counts as met.</p>\n");
    if reports.iter().all(|(_, report)| of_report(report).next().is_none()) {
        text.push_str("<p>There is no report with gates here.</p>\n");
        return;
    }
    text.push_str(
        "<div class=\"wide\"><table class=\"gates\"><tr><th>what</th><th>verdict</th><th class=\"number\">value</th><th class=\"number\">limit</th>\
         <th>compared with</th><th>profile</th></tr>\n",
    );
    for (file, report) in reports {
        for gate in of_report(report) {
            row(text, gate, file);
        }
    }
    text.push_str("</table></div>\n");
}

/// Whether a gate comes from a profile that qualifies nothing.
pub fn has_ci(reports: &[(String, Value)]) -> bool {
    reports.iter().flat_map(|(_, report)| of_report(report)).any(|gate| gate["profile"] == "ci")
}

fn row(text: &mut String, gate: &Value, file: &str) {
    let name = gate["gate"].as_str().unwrap_or_default();
    let (verdict, (title, unit)) = (Verdict::of(gate), words::gate(name));
    let why = match &verdict {
        Verdict::NotJudged(why) => format!("<br><span class=\"soft\">{}</span>", escape(why)),
        _ => String::new(),
    };
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    let with_unit = |figure: String| if figure == "-" { figure } else { format!("{figure}{unit}") };
    let against = &gate["against"];
    let against = match against["value"].is_number() {
        true => format!("{}: {}", text_of(&against["name"]), number(&against["value"])),
        false => text_of(&against["name"]),
    };
    let _ = writeln!(
        text,
        "<tr><td>{}<br><code>{}</code> <span class=\"soft\">in {}</span></td><td><span class=\"{}\">{}</span>{why}</td>\
         <td class=\"number\" data-label=\"value\">{}</td><td class=\"number\" data-label=\"limit\">{}</td>\
         <td data-label=\"compared with\">{against}</td><td data-label=\"profile\">{}</td></tr>",
        escape(&title),
        escape(name),
        escape(file),
        verdict.class(),
        verdict.word(),
        with_unit(number(&gate["value"])),
        with_unit(limit(gate)),
        text_of(&gate["profile"]),
    );
}

/// How many times better than its limit a value is.
fn margin(gate: &Value, value: f64) -> Option<f64> {
    let target = gate["target"].as_f64().filter(|target| *target > 0.0)?;
    let margin = match gate["sense"].as_str()? {
        "at-least" => value / target,
        "at-most" if value > 0.0 => target / value,
        "at-most" => MARGIN_MAX,
        _ => return None,
    };
    margin.is_finite().then(|| margin.clamp(1.0 / MARGIN_MAX, MARGIN_MAX))
}

/// Of a gate whose value is the lower bound of an interval, the upper one.
fn other_end(gate: &Value) -> Option<f64> {
    margin(gate, gate["details"]["interval_95"][1].as_f64()?)
}

/// All gates of a report on one axis, with the repetitions that each was taken from.
pub fn margins(prefix: &str, whose: &str, report: &Value) -> Option<Figure> {
    let judged = of_report(report).filter(|gate| !matches!(Verdict::of(gate), Verdict::NotJudged(_)));
    let rows: Vec<(&Value, f64)> =
        judged.filter_map(|gate| Some((gate, margin(gate, gate["value"].as_f64()?)?))).collect();
    if rows.is_empty() {
        return None;
    }
    let repetitions = |gate: &Value| -> Vec<f64> {
        let raw = gate["details"]["ratios"]["raw"].as_array().into_iter().flatten();
        raw.filter_map(|value| margin(gate, value.as_f64()?)).collect()
    };
    let all = rows.iter().flat_map(|(gate, value)| repetitions(gate).into_iter().chain([*value]));
    let x = Scale::logarithmic_over(all.chain([0.8, 1.25]));
    let name = |gate: &Value| gate["gate"].as_str().unwrap_or_default().replace('_', " ");
    let names = rows.iter().map(|(gate, _)| name(gate)).collect();
    let title = format!("{}: each gate and its limit", capital(whose));
    let mut plot = Plot::new(&title, (x, "times better than the limit"), (Scale::Rows(names), ""));
    plot.limit_across(1.0, "limit");
    for (at, (gate, value)) in rows.iter().enumerate() {
        let is_met = Verdict::of(gate) == Verdict::Met;
        let ink = if is_met { Ink::Three } else { Ink::Two };
        let told = format!("{}, limit {}", number(&gate["value"]), limit(gate));
        repetitions(gate).into_iter().for_each(|one| plot.dot(one, at as f64, Ink::Muted, &name(gate)));
        let other_end = other_end(gate).unwrap_or(*value).max(*value);
        plot.interval(at as f64, (*value, *value, other_end), ink, &told);
    }
    plot.legend(Ink::Three, "met");
    plot.legend(Ink::Two, "missed");
    plot.legend(Ink::Muted, "each repetition, where the file has them");
    Some(Figure {
        file: format!("{prefix}gates"),
        title,
        sentence: "One row for each gate that could be judged: upright marks right of the dashed line are gates that are met, those left of it \
            are missed, and 2 means twice as good as was asked for. Where a mark stands for the lower end of an interval, a pale bar goes on to \
            its upper end."
            .to_owned(),
        svg: plot.svg(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn gate(value: f64, sense: &str, met: bool) -> Value {
        json!({ "gate": "g", "valid": true, "met": met, "value": value, "target": 2.0, "sense": sense })
    }

    #[test]
    fn a_verdict_is_what_numbers_say() {
        for (value, sense, met) in [
            (2.0, "at-least", true),
            (1.9, "at-least", false),
            (2.0, "at-most", true),
            (2.1, "at-most", false),
        ] {
            let expected = if met { Verdict::Met } else { Verdict::Missed };
            assert_eq!(Verdict::of(&gate(value, sense, met)), expected);
            let contradicted = Verdict::of(&gate(value, sense, !met));
            assert!(matches!(contradicted, Verdict::NotJudged(why) if why.contains("its numbers another")));
        }
        let mut invalid = gate(2.0, "at-least", true);
        invalid["valid"] = json!(false);
        invalid["why_invalid"] = json!("no fio");
        assert_eq!(Verdict::of(&invalid), Verdict::NotJudged("no fio".to_owned()));
        for lacking in ["valid", "value", "met", "target", "sense"] {
            for (value, met) in [(2.0, true), (1.9, false)] {
                let mut gate = gate(value, "at-least", met);
                gate.as_object_mut().expect("an object").remove(lacking);
                assert!(matches!(Verdict::of(&gate), Verdict::NotJudged(_)), "{lacking} {met}");
            }
        }
        assert!(matches!(Verdict::of(&gate(2.0, "sideways", true)), Verdict::NotJudged(_)));
    }

    #[test]
    fn an_interval_is_drawn_to_its_upper_end() {
        let mut wide = gate(2.0, "at-least", true);
        assert_eq!(other_end(&wide), None);
        wide["details"] = json!({ "interval_95": [2.0, 6.0] });
        assert_eq!(other_end(&wide), Some(3.0));
        let drawn = |gate: &Value| margins("", "x", &json!({ "gates": [gate] })).expect("a figure").svg;
        assert_ne!(drawn(&wide), drawn(&gate(2.0, "at-least", true)));
    }

    #[test]
    fn margins_of_both_senses_are_better_to_the_right() {
        let of = |value, sense| margin(&gate(value, sense, true), value);
        assert_eq!([of(4.0, "at-least"), of(1.0, "at-least")], [Some(2.0), Some(0.5)]);
        assert_eq!([of(4.0, "at-most"), of(1.0, "at-most")], [Some(0.5), Some(2.0)]);
        assert_eq!([of(0.0, "at-most"), of(1e9, "at-least")], [Some(MARGIN_MAX); 2]);
        assert_eq!(of(1.0, "sideways"), None);
        let zero =
            json!({ "gate": "z", "valid": true, "met": true, "value": 0, "target": 0, "sense": "at-most" });
        assert!(margins("", "x", &json!({ "gates": [zero] })).is_none(), "nothing is a multiple of nothing");
    }
}
