//! Who serves which request: a lane is one engine of one node, and takes its requests in the
//! trace's order.

use std::collections::HashMap;

use super::trace::TraceRequest;

/// How requests are spread over lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Spread {
    /// A conversation stays with the engine that began it; new ones go where the least was sent
    Sticky,
    /// One after the other, whatever they share
    RoundRobin,
}

/// A request follows the lane of its deepest known block only if that covers this part of it:
/// a system prompt that everybody shares is no conversation.
const CONVERSATION_PART: usize = 4;

/// Indices of the requests of each of `lanes` lanes.
///
/// # Panics
/// If there is no lane.
#[must_use]
pub fn assign(requests: &[TraceRequest], lanes: usize, spread: Spread) -> Vec<Vec<usize>> {
    assert!(lanes > 0, "somebody has to serve");
    let mut assigned = vec![Vec::new(); lanes];
    let mut sent_blocks = vec![0usize; lanes];
    let mut lane_of_block: HashMap<u64, usize> = HashMap::new();
    for (index, request) in requests.iter().enumerate() {
        let ids = &request.hash_ids;
        let lane = match spread {
            Spread::RoundRobin => index % lanes,
            Spread::Sticky => {
                let known = ids.iter().rposition(|id| lane_of_block.contains_key(id));
                let conversation = known.filter(|&at| at > 0 && (at + 1) * CONVERSATION_PART >= ids.len());
                match conversation {
                    Some(at) => lane_of_block[&ids[at]],
                    None => (0..lanes).min_by_key(|&lane| sent_blocks[lane]).expect("at least one lane"),
                }
            }
        };
        sent_blocks[lane] += ids.len();
        assigned[lane].push(index);
        if spread == Spread::Sticky {
            ids.iter().for_each(|&id| _ = lane_of_block.entry(id).or_insert(lane));
        }
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::generate::generate;

    #[test]
    fn every_request_has_one_lane_and_conversations_stay_together() {
        let trace = generate(800, 3);
        for spread in [Spread::Sticky, Spread::RoundRobin] {
            let lanes = assign(&trace, 3, spread);
            let mut all: Vec<usize> = lanes.concat();
            assert!(lanes.iter().all(|lane| lane.is_sorted()));
            all.sort_unstable();
            assert_eq!(all, (0..800).collect::<Vec<_>>());
            let most = lanes.iter().map(Vec::len).max().unwrap();
            assert!(most < 500, "{spread:?} gives one lane {most} of 800");
        }
        // In this trace the last block of a request names its turn of the conversation.
        let lanes = assign(&trace, 3, Spread::Sticky);
        let mut moved = 0;
        for lane in &lanes {
            let seen: std::collections::HashSet<u64> =
                lane.iter().flat_map(|&index| trace[index].hash_ids.iter().copied()).collect();
            let elsewhere = lanes.iter().filter(|other| *other != lane).flatten();
            moved += elsewhere.filter(|&&index| seen.contains(trace[index].hash_ids.last().unwrap())).count();
        }
        assert!(moved < 40, "{moved} turns were served by two lanes");
    }
}
