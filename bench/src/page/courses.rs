//! Figures of how something goes: visibility by the number of nodes, memory over time.

use serde_json::Value;

use super::figures::{Figure, capital};
use super::svg::{Ink, Plot, Scale};

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
    let lines: [(Ink, &str, Of); 2] = [(Ink::One, "p50", |point| point.1), (Ink::Two, "p99", |point| point.2)];
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
        let unseen = json!({ "name": "managers-1", "cell": { "managers": 1 }, "figures": { "visibility": null } });
        let cells =
            json!([cell("base", 16, 4.0), unseen, cell("managers-64", 64, 16.0), cell("managers-4", 4, 3.0), cell("bursty", 16, 9.0)]);
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
    fn each_cell_of_a_soak_has_its_curve_of_memory() {
        let node = |cell: &str, node: u64| {
            json!({ "cell": cell, "node": node, "points": [[0.0, 1_048_576], [30.0, 3_145_728]] })
        };
        let report =
            json!({ "settings": { "memory": [node("faults", 0), node("faults", 1), node("live", 0)] } });
        let files: Vec<String> =
            of_report("", "soak", &report).into_iter().map(|figure| figure.file).collect();
        assert_eq!(files, ["memory-live", "memory-faults"]);
        let one_look = json!({ "settings": { "memory": [{ "cell": "live", "node": 0, "points": [[0.0, 1]] }] } });
        assert!(of_report("", "soak", &one_look).is_empty(), "a moment is no course");
    }
}
