//! A node that has worked and now has nothing to do: the processor time it still takes, and its
//! memory against the bill it printed.

use std::thread::sleep;
use std::time::{Duration, Instant};

use orbitkv::client::{Media, Medium};
use orbitkv::quantity::MIB;
use serde_json::json;

use super::Context;
use super::node::Node;
use super::ssd::Tier;
use crate::report::Gate;
use crate::{Failure, progress};

/// Share of a core a parked node may take.
const PROCESSOR_TARGET: f64 = 0.01;

/// What of the bill it may hold.
const MEMORY_TARGET: f64 = 1.0;

const DRAM_BYTES: u64 = 256 * MIB;
const SSD_BYTES: u64 = 512 * MIB;

/// What it saves and reads before it rests.
const WORK_BYTES: u64 = 128 * MIB;

/// Between the work and the first look.
const SETTLING: Duration = Duration::from_millis(500);

/// Measures a node at rest.
pub fn measure(context: &Context) -> Result<Vec<Gate>, Failure> {
    progress("rest: starting a node");
    let node = Node::start(context, DRAM_BYTES, SSD_BYTES)?;
    let mut tier = Tier::connect(context, &node, MIB, WORK_BYTES)?;
    tier.write()?;
    tier.evict(Media::from(Medium::Dram))?;
    tier.read()?;

    // The engine stays connected, as engines do.
    sleep(SETTLING);
    let (before, started) = (node.processor_time()?, Instant::now());
    sleep(Duration::from_millis(context.plan.rest_ms));
    let (used, watched) = (node.processor_time()? - before, started.elapsed());
    let share = used.as_secs_f64() / watched.as_secs_f64();

    let memory = node.metadata()?.memory;
    let of_bill = memory.rss_peak_bytes as f64 / memory.bill_bytes as f64;
    progress(&format!("rest: {:.3} % of a core, {:.1} % of the bill", share * 100.0, of_bill * 100.0));
    Ok(vec![
        context
            .gate("rest_processor")
            .at_most(PROCESSOR_TARGET)
            .against("one core", Some(1.0))
            .value(share)
            .details(json!({ "watched_seconds": watched.as_secs_f64(), "used_seconds": used.as_secs_f64() })),
        context
            .gate("rest_memory")
            .at_most(MEMORY_TARGET)
            .against("memory bill, GB", Some(memory.bill_bytes as f64 / 1e9))
            .value(of_bill)
            .details(json!({
                "rss_bytes": memory.rss_bytes,
                "rss_peak_bytes": memory.rss_peak_bytes,
                "bill_bytes": memory.bill_bytes,
            })),
    ])
}
