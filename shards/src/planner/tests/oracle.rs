//! Small batches against all that could be done with them, each priced by a simulation of the queues.

use proptest::prelude::*;

use super::rig::*;
use crate::planner::*;

/// A route of the case: what it costs and what it has to do already.
#[derive(Clone, Debug)]
struct Way {
    route: Route,
    base_ns: u64,
    byte_ns: u64,
    ahead: u64,
}

#[derive(Clone, Debug)]
struct Case {
    ways: Vec<Way>,
    /// Of each block, which ways it has, in order.
    blocks: Vec<Vec<usize>>,
}

/// When the batch is there, in nanoseconds: each source works one block after the other.
fn makespan(case: &Case, assignment: &[usize]) -> u64 {
    let mut latest = 0;
    for (at, &way) in assignment.iter().enumerate() {
        let Way { route, base_ns, byte_ns, ahead } = case.ways[way];
        let is_same = |other: usize| match (case.ways[other].route, route) {
            (Route::Peer { source: one, .. }, Route::Peer { source: other, .. }) => one == other,
            (one, other) => one == other,
        };
        let before: u64 = assignment[..at]
            .iter()
            .filter(|&&other| is_same(other))
            .map(|&other| case.ways[other].byte_ns * BYTES)
            .sum();
        latest = latest.max(base_ns + byte_ns * ahead + before + byte_ns * BYTES);
    }
    latest
}

/// Every assignment of the blocks.
fn all(case: &Case) -> Vec<Vec<usize>> {
    case.blocks.iter().fold(vec![Vec::new()], |found, ways| {
        let longer = |front: Vec<usize>| ways.iter().map(move |&way| [&front[..], &[way]].concat());
        found.into_iter().flat_map(longer).collect()
    })
}

/// The plans that the room claims to compare, made here once more.
fn claimed(case: &Case) -> Vec<Vec<usize>> {
    let fixed: Vec<usize> = case.blocks.iter().map(|ways| ways[0]).collect();
    let single = |way: usize| -> Vec<usize> {
        case.blocks.iter().map(|ways| if ways.contains(&way) { way } else { ways[0] }).collect()
    };
    let mut greedy = Vec::new();
    for ways in &case.blocks {
        // What is there last of what one source has to bring is there when the block itself is.
        let ends = |way: usize| {
            let Way { route, base_ns, byte_ns, ahead } = case.ways[way];
            let queue = |route| match route {
                Route::Peer { source, .. } => source,
                _ => unreachable!("only peers here"),
            };
            let before: u64 = greedy
                .iter()
                .filter(|&&other: &&usize| queue(case.ways[other].route) == queue(route))
                .map(|&other| case.ways[other].byte_ns * BYTES)
                .sum();
            base_ns + byte_ns * ahead + before + byte_ns * BYTES
        };
        greedy.push(*ways.iter().min_by_key(|&&way| ends(way)).unwrap());
    }
    let singles = (0..case.ways.len()).map(single);
    [fixed, greedy].into_iter().chain(singles).collect()
}

/// Rounding of the fit: far less than any difference of two plans that matters.
fn is_about(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= 50
}

fn routes() -> impl Strategy<Value = Vec<Route>> {
    let all = vec![dram(0), ssd(0), dram(1), ssd(1), dram(2), ssd(2)];
    proptest::sample::subsequence(all, 1..=4).prop_shuffle()
}

fn cases(routes: impl Strategy<Value = Vec<Route>>) -> impl Strategy<Value = Case> {
    let ways = routes.prop_flat_map(|routes| {
        let count = routes.len();
        // A source has one queue, whatever the medium.
        let aheads = proptest::collection::vec(0u64..20, 3);
        let costs = proptest::collection::vec((0u64..3_000_000, 1u64..2_000), count);
        (Just(routes), costs, aheads).prop_map(|(routes, costs, aheads)| {
            let way = |(route, (base_ns, byte_ns))| {
                let number = (0..3).find(|&number| route == dram(number) || route == ssd(number)).unwrap();
                Way { route, base_ns, byte_ns, ahead: aheads[usize::from(number)] * BYTES }
            };
            routes.into_iter().zip(costs).map(way).collect::<Vec<Way>>()
        })
    });
    ways.prop_flat_map(|ways| {
        let all: Vec<usize> = (0..ways.len()).collect();
        let block = proptest::sample::subsequence(all, 1..=ways.len()).prop_shuffle();
        (Just(ways), proptest::collection::vec(block, 1..=5))
    })
    .prop_map(|(ways, blocks)| Case { ways, blocks })
}

fn rig(case: &Case, settings: PlannerSettings) -> Rig {
    let mut rig = Rig::new(settings);
    for Way { route, base_ns, byte_ns, ahead } in &case.ways {
        rig.teach_finely(*route, *base_ns, *byte_ns, 64);
        rig.loads.insert(*route, Load { ahead_bytes: *ahead, rests: false });
    }
    rig
}

fn blocks(case: &Case) -> Vec<Vec<Choice>> {
    let of = |ways: &Vec<usize>| ways.iter().map(|&way| choice(case.ways[way].route)).collect();
    case.blocks.iter().map(of).collect()
}

/// Which ways the room sends the blocks.
fn chosen(case: &Case, rig: &mut Rig) -> Vec<usize> {
    let picks = rig.plan(&blocks(case));
    picks.iter().zip(&case.blocks).map(|(pick, ways)| ways[pick.unwrap_or(0)]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn the_best_of_the_claimed_plans_is_chosen_and_none_beats_brute_force(case in cases(routes())) {
        let mut rig = rig(&case, eager());
        let took = makespan(&case, &chosen(&case, &mut rig));
        let best = claimed(&case).iter().map(|plan| makespan(&case, plan)).min().unwrap();
        prop_assert!(took <= best || is_about(took, best), "{took} where {best} is claimed");
        let optimum = all(&case).iter().map(|plan| makespan(&case, plan)).min().unwrap();
        prop_assert!(took >= optimum);
        // What is predicted is what the queues do.
        let trace = rig.latest();
        if let Some(plan) = trace.predicted(trace.planned) {
            prop_assert!(is_about(plan.predicted.as_nanos() as u64, took), "{plan:?} and {took}");
            prop_assert!(plan.margin.as_nanos() < 50, "exact evidence has no error: {plan:?}");
        }
        prop_assert!(trace.alternatives.len() <= 8);
    }

    #[test]
    fn equal_blocks_that_all_sources_have_are_shared_out_as_well_as_can_be(
        case in cases(proptest::sample::subsequence(vec![dram(0), dram(1), ssd(2)], 2..=3))
    ) {
        let all_ways: Vec<usize> = (0..case.ways.len()).collect();
        let case = Case { blocks: vec![all_ways; case.blocks.len()], ..case };
        let took = makespan(&case, &chosen(&case, &mut rig(&case, eager())));
        let optimum = all(&case).iter().map(|plan| makespan(&case, plan)).min().unwrap();
        prop_assert!(took <= optimum || is_about(took, optimum), "{took} where {optimum} can be had");
    }

    #[test]
    fn the_same_inputs_give_the_same_plans(case in cases(routes())) {
        let run = || {
            let mut rig = rig(&case, eager());
            let picks = (0..3).map(|_| rig.plan(&blocks(&case))).collect::<Vec<_>>();
            (picks, rig.room.traces().cloned().collect::<Vec<_>>(), *rig.room.figures())
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn what_is_not_eligible_is_never_chosen(
        case in cases(routes()),
        faults in proptest::collection::vec(0u8..6, 30),
    ) {
        let mut rig = rig(&case, eager());
        let excluded = source(1, 1);
        rig.room.on_excluded(excluded.node, excluded.incarnation);
        rig.loads.entry(dram(2)).or_default().rests = true;
        let mut faults = faults.into_iter().cycle();
        let mut given = blocks(&case);
        for choice in given.iter_mut().flatten() {
            match faults.next().unwrap() {
                0 => choice.bytes += 1,
                // Nobody has declared what it costs.
                1 => choice.route = Route::Recompute,
                2 => choice.route = Route::Peer { source: source(0, 2), medium: orbitkv_wire::identity::Medium::Dram },
                _ => {}
            }
        }
        let is_eligible = |choice: &Choice| {
            let may_ask = match choice.route {
                Route::Peer { source, .. } => source != excluded && source.epoch == 1 && choice.route != dram(2),
                _ => false,
            };
            may_ask && choice.bytes == BYTES
        };
        let picks = rig.plan(&given);
        for (pick, choices) in picks.iter().zip(&given) {
            if let Some(pick) = *pick {
                prop_assert!(is_eligible(&choices[pick]), "{:?}", choices[pick]);
            }
        }
        let eligible = given.iter().filter(|choices| choices.iter().any(is_eligible)).count();
        let trace = rig.latest();
        prop_assert_eq!(trace.eligible as usize, eligible);
        prop_assert_eq!(trace.routes.iter().map(|sent| sent.blocks).sum::<u32>() as usize, eligible);
        for sent in &trace.routes {
            prop_assert!(is_eligible(&choice(sent.route)), "{:?}", sent);
        }
    }
}
