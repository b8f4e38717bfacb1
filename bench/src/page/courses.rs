//! What a matrix and a soak show beside gates: their rows, visibility by the number of nodes, memory over time.

use std::fmt::Write;

use serde_json::Value;

use super::figures::{Figure, capital, plain};
use super::html::number;
use super::svg::{Ink, Plot, Scale, escape};

const MEBIBYTE: f64 = 1_048_576.0;

/// The figures of a report that has something of the kind.
pub fn of_report(prefix: &str, whose: &str, report: &Value) -> Vec<Figure> {
    let settings = &report["settings"];
    match whose {
        "scale" => visibility_by_nodes(prefix, &settings["cells"]).into_iter().collect(),
        "soak" => {
            ["live", "faults"].iter().filter_map(|cell| memory(prefix, cell, &settings["memory"])).collect()
        }
        _ => Vec::new(),
    }
}

/// The rows of a report that has some: cells of a matrix, kinds of faults; otherwise nothing.
pub fn table(whose: &str, report: &Value) -> String {
    let settings = &report["settings"];
    match whose {
        "scale" => cells(&settings["cells"]),
        "soak" => kinds(&settings["faults"]["counts"]),
        _ => String::new(),
    }
}

fn rows(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = String::from("<div class=\"wide\"><table><tr>");
    for (at, name) in heading.iter().enumerate() {
        let class = if at == 0 { "" } else { " class=\"number\"" };
        let _ = write!(text, "<th{class}>{}</th>", escape(name));
    }
    text.push_str("</tr>\n");
    for row in rows {
        text.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let class = if at == 0 { "" } else { " class=\"number\"" };
            let _ = write!(text, "<td{class}>{}</td>", escape(cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table></div>\n");
    text
}

fn cells(cells: &Value) -> String {
    let heading = [
        "cell",
        "outcome",
        "nodes",
        "residences of each",
        "changes a second",
        "at most",
        "seen after, p50 ms",
        "p99 ms",
        "cores of nodes",
        "memory of a node, MiB",
    ];
    let row = |cell: &Value| {
        let (figures, simulated) = (&cell["figures"], &cell["simulated"]);
        let scaled =
            |value: &Value, by: f64| value.as_f64().map_or(Value::Null, |value| Value::from(value / by));
        let seen = |measured: &str, modelled: &str| {
            let of = &figures["visibility"][measured];
            number(&if of.is_number() { of.clone() } else { scaled(&simulated[modelled], 1e3) })
        };
        vec![
            cell["name"].as_str().unwrap_or_default().to_owned(),
            cell["outcome"].as_str().unwrap_or_default().to_owned(),
            number(&cell["cell"]["managers"]),
            number(&cell["cell"]["residences"]),
            number(&figures["reached_per_second"]),
            number(&figures["unpaced_per_second"]),
            seen("p50_ms", "visibility_p50_us"),
            seen("p99_ms", "visibility_p99_us"),
            number(&figures["node_cores"]),
            number(&scaled(&figures["rss_bytes_mean"], MEBIBYTE)),
        ]
    };
    let mut text = rows(&heading, list(cells).iter().map(row));
    // Whatever is no plain measurement says why.
    for cell in list(cells).iter().filter(|cell| cell["outcome"] != "measured") {
        let why = cell["why"].as_str().or(cell["refusal"]["words"].as_str()).unwrap_or("it has no reason");
        let (name, outcome) = (cell["name"].as_str().unwrap_or_default(), cell["outcome"].as_str());
        let words = match outcome.unwrap_or_default() {
            "simulated" => "simulated, so that its times are modelled".to_owned(),
            outcome => outcome.to_owned(),
        };
        let _ = writeln!(text, "<p><code>{}</code> {}: {}</p>", escape(name), escape(&words), escape(why));
    }
    text
}

fn kinds(counts: &Value) -> String {
    let Some(kinds) = counts.as_object() else { return String::new() };
    let heading = ["fault", "made", "seen by nobody", "longest until all are well again, ms"];
    let row = |(kind, count): (&String, &Value)| {
        vec![
            plain(kind),
            number(&count["made"]),
            number(&count["unseen"]),
            number(&count["recovered_ms_max"]),
        ]
    };
    rows(&heading, kinds.iter().map(row))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Nodes, p50 and p99 of the cells that differ from the base by their number of nodes alone, the least first.
fn by_nodes(cells: &Value) -> Vec<(f64, f64, f64)> {
    let mut points: Vec<(f64, f64, f64)> = list(cells)
        .iter()
        .filter(|cell| {
            let name = cell["name"].as_str().unwrap_or_default();
            name == "base" || name.starts_with("managers-")
        })
        .filter_map(|cell| {
            let seen = &cell["figures"]["visibility"];
            Some((cell["cell"]["managers"].as_f64()?, seen["p50_ms"].as_f64()?, seen["p99_ms"].as_f64()?))
        })
        .collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    points
}

fn visibility_by_nodes(prefix: &str, cells: &Value) -> Option<Figure> {
    let points = by_nodes(cells);
    if points.len() < 2 {
        return None;
    }
    let title = "How soon other nodes know of a change, by the number of nodes".to_owned();
    let nodes = points.iter().map(|point| point.0);
    let times = points.iter().flat_map(|point| [point.1, point.2]);
    let mut plot = Plot::new(
        &title,
        (Scale::logarithmic_over(nodes), "nodes, all of them on this machine"),
        (Scale::linear_over(times, true), "milliseconds"),
    );
    type Of = fn(&(f64, f64, f64)) -> f64;
    let lines: [(Ink, &str, Of); 2] =
        [(Ink::One, "p50", |point| point.1), (Ink::Two, "p99", |point| point.2)];
    for (ink, name, of) in lines {
        let line: Vec<(f64, f64)> = points.iter().map(|point| (point.0, of(point))).collect();
        plot.line(&line, ink, false, name);
        for (nodes, ms) in line {
            plot.dot(nodes, ms, ink, &format!("{nodes} nodes: {name} {ms:.2} ms"));
        }
        plot.legend(ink, name);
    }
    Some(Figure {
        file: format!("{prefix}visibility-by-nodes"),
        title,
        sentence: "Each dot is a cluster of so many real nodes at the same rate of changes of all together: the time that half \
            and 99 % of all sights took at most. All nodes share the cores of one machine, so that part of the slope is its own."
            .to_owned(),
        svg: plot.svg(),
    })
}

fn memory(prefix: &str, cell: &str, memory: &Value) -> Option<Figure> {
    let nodes: Vec<(u64, Vec<(f64, f64)>)> = (list(memory).iter())
        .filter(|node| node["cell"] == cell)
        .filter_map(|node| {
            let points = list(&node["points"]).iter();
            let points = points.filter_map(|point| Some((point[0].as_f64()?, point[1].as_f64()? / MEBIBYTE)));
            Some((node["node"].as_u64()?, points.collect()))
        })
        .collect();
    let all = || nodes.iter().flat_map(|(_, points)| points.iter().copied());
    let longest = all().map(|point| point.0).fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    let title = format!("{}: memory of each node over time", capital(cell));
    let mut plot = Plot::new(
        &title,
        (Scale::Linear { min: 0.0, max: longest }, "seconds"),
        (Scale::linear_over(all().map(|point| point.1), true), "MiB resident"),
    );
    for (number, points) in &nodes {
        let name = format!("node {number}");
        plot.line(points, Ink::of(*number as usize), true, &name);
        plot.legend(Ink::of(*number as usize), &name);
    }
    Some(Figure {
        file: format!("{prefix}memory-{cell}"),
        title,
        sentence: "A line for each node: memory is bounded if lines come to lie flat. One that falls to the bottom and rises again is \
            a node that was ended and started anew."
            .to_owned(),
        svg: plot.svg(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_cells_that_differ_by_nodes_are_in_the_line() {
        let cell = |name: &str, managers: u64, p99: f64| {
            json!({
                "name": name,
                "cell": { "managers": managers },
                "figures": { "visibility": { "p50_ms": p99 / 2.0, "p99_ms": p99 } },
            })
        };
        let unseen =
            json!({ "name": "managers-1", "cell": { "managers": 1 }, "figures": { "visibility": null } });
        let cells = json!([
            cell("base", 16, 4.0),
            unseen,
            cell("managers-64", 64, 16.0),
            cell("managers-4", 4, 3.0),
            cell("bursty", 16, 9.0)
        ]);
        assert_eq!(by_nodes(&cells), [(4.0, 1.5, 3.0), (16.0, 2.0, 4.0), (64.0, 8.0, 16.0)]);
        let report = json!({ "settings": { "cells": cells } });
        let figures = of_report("x-", "scale", &report);
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].file, "x-visibility-by-nodes");
        assert!(figures[0].svg.contains("64 nodes: p99 16.00 ms"));
        assert!(of_report("x-", "scale", &json!({})).is_empty());
        assert!(of_report("x-", "churn", &report).is_empty());
    }

    #[test]
    fn every_cell_has_a_row_and_says_what_it_is() {
        let cells = json!([
            { "name": "base", "outcome": "measured", "cell": { "managers": 16, "residences": 512 },
              "figures": { "reached_per_second": 4100.4, "visibility": { "p50_ms": 2.5, "p99_ms": 4.25 }, "rss_bytes_mean": 52_428_800 } },
            { "name": "corner", "outcome": "simulated", "why": "too <many> rows", "cell": { "managers": 64 },
              "simulated": { "visibility_p50_us": 2_300, "visibility_p99_us": 4_100 } },
            { "name": "beyond", "outcome": "refused", "refusal": { "words": "no room" } },
        ]);
        let text = table("scale", &json!({ "settings": { "cells": cells } }));
        assert_eq!(text.matches("<tr>").count(), 4);
        for words in [
            "<code>corner</code> simulated, so that its times are modelled: too &lt;many&gt; rows",
            "<code>beyond</code> refused: no room",
            ">4,100<",
            ">4.250<",
            ">4.100<",
            ">50.000<",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let counts = json!({ "lease-expiry": { "made": 3, "unseen": 1, "recovered_ms_max": 4_321 } });
        let text = table("soak", &json!({ "settings": { "faults": { "counts": counts } } }));
        assert!(text.contains("<td>lease expiry</td>") && text.contains(">4,321<"), "{text}");
        assert_eq!(table("soak", &json!({ "settings": { "faults": null } })), "");
        assert_eq!(table("churn", &json!({})), "");
    }

    #[test]
    fn each_cell_of_a_soak_has_its_curve_of_memory() {
        let node = |cell: &str, node: u64| json!({ "cell": cell, "node": node, "points": [[0.0, 1_048_576], [30.0, 3_145_728]] });
        let report =
            json!({ "settings": { "memory": [node("faults", 0), node("faults", 1), node("live", 0)] } });
        let files: Vec<String> =
            of_report("", "soak", &report).into_iter().map(|figure| figure.file).collect();
        assert_eq!(files, ["memory-live", "memory-faults"]);
        let one_look =
            json!({ "settings": { "memory": [{ "cell": "live", "node": 0, "points": [[0.0, 1]] }] } });
        assert!(of_report("", "soak", &one_look).is_empty(), "a moment is no course");
    }
}
