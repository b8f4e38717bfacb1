//! A query of resident keys against an empty round trip on the same socket, taken in turns.

use std::time::{Duration, Instant};

use orbitkv::client::{Client, PrefixList, SaveKey};
use serde_json::json;

use super::Context;
use super::node::Node;
use crate::payload::{GROUP, block_hashes, registration, slot};
use crate::report::Gate;
use crate::statistics::Latencies;
use crate::{Failure, progress};

const WAIT: Duration = Duration::from_secs(10);

/// How much longer a query may take.
const TARGET: f64 = 2.0;

/// Block size: the keys are what is looked at.
const BLOCK_BYTES: u64 = 4_096;

/// Rounds before anything counts.
const WARM_UP_ROUNDS: usize = 1_000;

/// Latencies of one operation.
struct Side {
    /// From when it should have started, so that a stall is not hidden.
    intended: Latencies,
    /// From when it did.
    service: Latencies,
}

/// Measures queries.
pub fn measure(context: &Context) -> Result<Vec<Gate>, Failure> {
    let plan = &context.plan;
    progress("query: starting a node");
    let node = Node::start(context, 128 << 20, 0)?;
    let mut client = node.connect()?;
    let namespace = client.register(&registration(BLOCK_BYTES), WAIT)?;
    let blocks = block_hashes(context.seed, 0, 0..plan.query_keys as u64);
    let keys: Vec<_> =
        blocks.iter().map(|&block| SaveKey { block, group: GROUP, bytes: BLOCK_BYTES }).collect();
    let reserved = client.reserve(namespace, &keys, false, WAIT)?;
    let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
    slots.iter_mut().try_for_each(|slot| slot.copy_in(0, &[1; BLOCK_BYTES as usize]))?;
    client.commit(&mut slots, WAIT)?;

    let lists = [PrefixList { namespace, group: GROUP, blocks: &blocks }];
    rounds(context, &mut client, &lists, WARM_UP_ROUNDS)?;
    let (query, ping) = rounds(context, &mut client, &lists, plan.queries)?;
    let ratio = |of: fn(&Side) -> &Latencies| of(&query).microseconds(0.99) / of(&ping).microseconds(0.99);
    let (intended, service) = (ratio(|side| &side.intended), ratio(|side| &side.service));
    let describe =
        |side: &Side| json!({ "intended_us": side.intended.json(), "service_us": side.service.json() });
    let p99 = ping.service.microseconds(0.99);
    progress(&format!("query: p99 {:.1} µs against {p99:.1} µs", query.service.microseconds(0.99)));
    let gate = context
        .gate("query_p99")
        .at_most(TARGET)
        .against("empty round trip p99, µs", Some(p99))
        // Stalls of the machine meet both sides alike and pull the ratio to 1: the worse one counts.
        .value(intended.max(service))
        .details(json!({
            "ratio_from_intended_start": intended,
            "ratio_from_actual_start": service,
            "query": describe(&query),
            "ping": describe(&ping),
        }));
    Ok(vec![gate])
}

fn rounds(
    context: &Context,
    client: &mut Client,
    lists: &[PrefixList<'_>; 1],
    count: usize,
) -> Result<(Side, Side), Failure> {
    let side = || Side { intended: Latencies::new(), service: Latencies::new() };
    let (mut query, mut ping) = (side(), side());
    let interval = Duration::from_nanos(context.plan.query_interval_ns);
    let mut intended = Instant::now() + interval;
    for round in 0..2 * count {
        while Instant::now() < intended {
            std::hint::spin_loop();
        }
        let started = Instant::now();
        // Which of the two goes first changes from pair to pair.
        let is_query = (round % 2 == 0) == (round / 2 % 2 == 0);
        if is_query {
            let view = client.query(lists, false, WAIT)?;
            if view.boundary_blocks as usize != lists[0].blocks.len() {
                return Err(format!("only {} keys of a query are resident", view.boundary_blocks).into());
            }
        } else {
            client.ping(WAIT)?;
        }
        let ended = Instant::now();
        let side = if is_query { &mut query } else { &mut ping };
        side.intended.record(ended - intended);
        side.service.record(ended - started);
        intended += interval;
    }
    Ok((query, ping))
}
