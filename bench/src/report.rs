//! What a run says: one entry a gate with the stable names of every benchmark, JSON and table.

use orbitkv::cli::table::Table;
use serde_json::{Value, json};

use crate::profile::Label;

/// Which way a figure is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sense {
    AtLeast,
    AtMost,
}

/// One gate and what was measured for it.
pub struct Gate {
    name: &'static str,
    profile: Label,
    seed: u64,
    sense: Sense,
    target: f64,
    value: Option<f64>,
    why_invalid: Option<String>,
    against: (String, Option<f64>),
    details: Value,
    holds_always: bool,
}

impl Gate {
    /// A gate that nothing is known of yet, which is invalid.
    pub fn new(name: &'static str, profile: impl Into<Label>, seed: u64) -> Gate {
        Gate {
            name,
            profile: profile.into(),
            seed,
            sense: Sense::AtLeast,
            target: 0.0,
            value: None,
            why_invalid: Some("not measured".to_owned()),
            against: (String::new(), None),
            details: Value::Null,
            holds_always: false,
        }
    }

    /// The value must be at least `target`.
    pub fn at_least(self, target: f64) -> Gate {
        Gate { sense: Sense::AtLeast, target, ..self }
    }

    /// The value must be at most `target`.
    pub fn at_most(self, target: f64) -> Gate {
        Gate { sense: Sense::AtMost, target, ..self }
    }

    /// None of what is counted may be there, in any profile: no machine is too slow for that.
    pub fn none_ever(self, count: u64) -> Gate {
        Gate { holds_always: true, ..self.at_most(0.0).value(count as f64) }
    }

    /// What it is measured against.
    pub fn against(self, name: impl Into<String>, value: Option<f64>) -> Gate {
        Gate { against: (name.into(), value), ..self }
    }

    /// The figure it is measured against.
    pub fn measured_against(self, value: f64) -> Gate {
        Gate { against: (self.against.0, Some(value)), ..self }
    }

    /// What was measured.
    pub fn value(self, value: f64) -> Gate {
        Gate { value: Some(value), why_invalid: None, ..self }
    }

    /// Why what was measured does not count.
    pub fn invalid(self, why: impl Into<String>) -> Gate {
        Gate { why_invalid: Some(why.into()), ..self }
    }

    /// Everything else.
    pub fn details(self, details: Value) -> Gate {
        Gate { details, ..self }
    }

    /// Its stable name.
    #[cfg(test)]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it counts and its value is on the right side of the target.
    pub fn is_met(&self) -> bool {
        self.why_invalid.is_none()
            && self.value.is_some_and(|value| match self.sense {
                Sense::AtLeast => value >= self.target,
                Sense::AtMost => value <= self.target,
            })
    }

    fn json(&self, machine: &str) -> Value {
        json!({
            "gate": self.name,
            "profile": self.profile.name,
            "valid": self.why_invalid.is_none(),
            "why_invalid": self.why_invalid,
            "value": self.value,
            "target": self.target,
            "sense": match self.sense { Sense::AtLeast => "at-least", Sense::AtMost => "at-most" },
            "met": self.is_met(),
            "against": { "name": self.against.0, "value": self.against.1 },
            "seed": self.seed,
            "commit": env!("ORBITKV_COMMIT"),
            "machine": machine,
            "details": self.details,
        })
    }
}

/// A whole run.
pub struct Report {
    /// Name of the benchmark.
    pub name: &'static str,
    /// Whose sizes were measured.
    pub profile: Label,
    /// Seed of payloads and keys.
    pub seed: u64,
    /// On what.
    pub machine: String,
    /// Figures beside the gates, for people; none if empty.
    pub figures: String,
    /// The gates, in the order they were measured.
    pub gates: Vec<Gate>,
    /// Cores, sizes, and what else used the machine.
    pub settings: Value,
}

impl Report {
    /// Whether every gate is met.
    pub fn is_met(&self) -> bool {
        self.gates.iter().all(Gate::is_met)
    }

    /// Whether every gate is met that counts in its profile.
    pub fn is_accepted(&self) -> bool {
        let counts = |gate: &Gate| self.profile.qualifies || gate.holds_always;
        self.gates.iter().all(|gate| gate.is_met() || !counts(gate))
    }

    fn met(&self) -> usize {
        self.gates.iter().filter(|gate| gate.is_met()).count()
    }

    /// The stable names for the run as a whole, and under `gates` for each gate.
    pub fn json(&self) -> Value {
        let invalid: Vec<String> = self
            .gates
            .iter()
            .filter_map(|gate| gate.why_invalid.as_ref().map(|why| format!("{}: {why}", gate.name)))
            .collect();
        json!({
            "gate": self.name,
            "profile": self.profile.name,
            "valid": invalid.is_empty(),
            "why_invalid": (!invalid.is_empty()).then(|| invalid.join("; ")),
            "value": self.met(),
            "target": self.gates.len(),
            "met": self.is_met(),
            "against": { "name": "gates", "value": self.gates.len() },
            "seed": self.seed,
            "commit": env!("ORBITKV_COMMIT"),
            "machine": self.machine,
            "settings": self.settings,
            "gates": self.gates.iter().map(|gate| gate.json(&self.machine)).collect::<Vec<_>>(),
        })
    }

    /// The table for people, with the verdict in its last line.
    pub fn text(&self) -> String {
        let mut table =
            Table::new(["gate", "value", "target", "verdict", "against", "its value", "min", "max"]);
        let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        for gate in &self.gates {
            let verdict = match (&gate.why_invalid, gate.is_met()) {
                (Some(_), _) => "invalid",
                (None, true) => "met",
                (None, false) => "MISSED",
            };
            let sign = if gate.sense == Sense::AtLeast { "≥" } else { "≤" };
            let ratios = &gate.details["ratios"];
            table.row([
                gate.name.to_owned(),
                figure(gate.value),
                // A ratio such as 1 / 1.05 is told in four digits behind the point.
                format!("{sign} {}", (gate.target * 1e4).round() / 1e4),
                verdict.to_owned(),
                gate.against.0.clone(),
                figure(gate.against.1),
                figure(ratios["min"].as_f64()),
                figure(ratios["max"].as_f64()),
            ]);
        }
        let mut lines =
            vec![format!("commit {}, seed {}, {}", env!("ORBITKV_COMMIT"), self.seed, self.machine)];
        lines.extend(self.settings["disk"].as_str().map(str::to_owned));
        lines.push(String::new());
        if !self.figures.is_empty() {
            lines.extend([self.figures.clone(), String::new()]);
        }
        lines.extend([table.to_string(), String::new()]);
        lines.extend(self.gates.iter().filter_map(|gate| {
            gate.why_invalid.as_ref().map(|why| format!("{} is invalid: {why}", gate.name))
        }));
        let (met, all) = (self.met(), self.gates.len());
        lines.push(match self.profile {
            Label { qualifies: true, name: "dense" } => format!("{met} of {all} gates met, labelled dense"),
            Label { qualifies: true, .. } => format!("{met} of {all} gates met"),
            Label { name, .. } => format!("{met} of {all} gates met; the {name} profile qualifies nothing"),
        });
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    fn gate() -> Gate {
        Gate::new("g", Profile::Full, 3).against("other", Some(2.0))
    }

    #[test]
    fn a_gate_is_met_on_its_side_of_the_target_and_only_if_valid() {
        assert!(!gate().at_least(0.0).is_met(), "nothing was measured");
        for (value, least, most) in [(0.9, false, true), (1.0, true, true), (1.1, true, false)] {
            assert_eq!(gate().at_least(1.0).value(value).is_met(), least);
            assert_eq!(gate().at_most(1.0).value(value).is_met(), most);
        }
        assert!(!gate().at_least(1.0).value(2.0).invalid("no fio").is_met());
        assert!(!gate().at_least(1.0).value(f64::NAN).is_met());
    }

    #[test]
    fn what_may_never_be_there_counts_in_a_profile_that_qualifies_nothing() {
        let accepted = |profile: Profile, speed: f64, faults: u64| {
            let gates = vec![gate().at_least(1.0).value(speed), gate().none_ever(faults)];
            let report = Report {
                name: "local",
                profile: profile.into(),
                seed: 3,
                machine: "m".into(),
                figures: String::new(),
                gates,
                settings: Value::Null,
            };
            report.is_accepted()
        };
        for (speed, faults, ci, full) in
            [(1.0, 0, true, true), (0.9, 0, true, false), (1.0, 1, false, false), (0.9, 1, false, false)]
        {
            let both = (accepted(Profile::Ci, speed, faults), accepted(Profile::Full, speed, faults));
            assert_eq!(both, (ci, full), "{speed} {faults}");
        }
    }

    #[test]
    fn the_stable_names_are_there_for_run_and_gate() {
        let gates = vec![gate().at_least(1.0).value(2.0), gate().at_least(1.0).invalid("no fio")];
        let report = Report {
            name: "local",
            profile: Profile::Full.into(),
            seed: 3,
            machine: "m".into(),
            figures: String::new(),
            gates,
            settings: Value::Null,
        };
        let json = report.json();
        for entry in [&json, &json["gates"][0], &json["gates"][1]] {
            for name in [
                "gate",
                "profile",
                "valid",
                "why_invalid",
                "value",
                "target",
                "met",
                "against",
                "seed",
                "commit",
                "machine",
            ] {
                assert!(entry.get(name).is_some(), "{name} is missing in {entry}");
            }
        }
        assert_eq!((&json["met"], &json["valid"], &json["value"]), (&json!(false), &json!(false), &json!(1)));
        assert_eq!(json["gates"][0]["against"], json!({ "name": "other", "value": 2.0 }));
        assert_eq!(json["gates"][1]["why_invalid"], "no fio");
        assert!(report.text().ends_with("g is invalid: no fio\n1 of 2 gates met"), "{}", report.text());
    }
}
