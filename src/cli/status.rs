//! `orbitkv status`: one screen about a node.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;

use super::table::Table;
use super::{NodeAddress, fail_client, say};
use crate::control::metadata::{MetadataPage, Phase};
use crate::control::policy::view::ConfigView;
use crate::control::report::{FetchingReport, LendingReport, PacketsReport, SsdReport, SsdState};
use crate::control::sources;
use crate::exit::Exit;
use crate::quantity::ByteSize;

/// Arguments of `orbitkv status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    node: NodeAddress,
}

fn rounded(bytes: u64) -> String {
    ByteSize(bytes).rounded()
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Serving => "serving",
        Phase::Draining => "draining",
    }
}

fn ssd(report: &SsdReport) -> String {
    match &report.state {
        SsdState::Off => "off".to_owned(),
        SsdState::On => match report.breaker.state.as_str() {
            "" | "closed" => "on".to_owned(),
            _ => "left alone".to_owned(),
        },
        SsdState::Degraded { fault, .. } => format!("degraded: {}", fault.in_words()),
    }
}

/// The node's place in its cluster, in words.
fn place(page: &MetadataPage) -> String {
    let membership = &page.membership;
    match (page.standalone, page.epoch, membership.detail.as_str()) {
        (true, ..) => "standalone".to_owned(),
        (false, Some(epoch), "") => format!("{} with epoch {epoch}", membership.validity),
        (false, _, "") => membership.validity.clone(),
        (false, _, detail) => format!("{}: {detail}", membership.validity),
    }
}

/// What may be sent to peers, and what waits to be.
fn egress(page: &MetadataPage) -> String {
    let peers = page.shards.iter().filter_map(|report| report.peers.as_ref());
    let sum = |of: fn(&LendingReport) -> u64| peers.clone().map(|peers| of(&peers.lending)).sum::<u64>();
    match sum(|lending| lending.egress_rate) {
        0 => "as fast as the line takes it".to_owned(),
        rate => format!(
            "{} a second, {} wait, {} blocks refused",
            rounded(rate),
            rounded(sum(|lending| lending.egress_waiting_bytes)),
            sum(LendingReport::egress_refused)
        ),
    }
}

/// What may be asked of peers, and what waits to be.
fn receive(page: &MetadataPage) -> String {
    let peers = page.shards.iter().filter_map(|report| report.peers.as_ref());
    let sum = |of: fn(&FetchingReport) -> u64| peers.clone().map(|peers| of(&peers.fetching)).sum::<u64>();
    let rate = match sum(|fetching| fetching.receive_rate) {
        0 => "as fast as peers answer".to_owned(),
        rate => format!("{} a second", rounded(rate)),
    };
    format!(
        "{rate}, {} of {} on their way, {} wait",
        rounded(sum(|fetching| fetching.outstanding_bytes)),
        rounded(sum(|fetching| fetching.window_bytes)),
        rounded(sum(|fetching| fetching.queued_bytes))
    )
}

/// How many packets went to peers, and how many of them were lost on the way.
fn packets(page: &MetadataPage) -> String {
    let peers = page.shards.iter().filter_map(|report| report.peers.as_ref());
    let sum = |of: fn(&PacketsReport) -> u64| peers.clone().map(|peers| of(&peers.packets)).sum::<u64>();
    let (sent, lost) = (sum(|packets| packets.sent), sum(|packets| packets.lost));
    let percent = lost as f64 * 100.0 / sent.max(1) as f64;
    format!("{sent} sent to peers, {lost} of them lost ({percent:.1} %)")
}

/// Which settings hold, and why not others.
fn settings(config: &ConfigView) -> String {
    let mut text = match config.version {
        0 => "as the flags say".to_owned(),
        version => format!("version {version} of record {}, from {}", config.record, config.origin),
    };
    if let Some(staged) = &config.staged {
        let here = if staged.is_here { "here, too" } else { "not here" };
        let _ = write!(text, "; version {} is staged for {} %, {here}", staged.version, staged.share);
    }
    for (word, why) in [("refused", &config.refused), ("not read", &config.unread)] {
        if !why.is_empty() {
            let _ = write!(text, "; {word}: {why}");
        }
    }
    text
}

fn members(page: &MetadataPage) -> String {
    let mut table = Table::new(["member", "epoch", "address", "shards", "zone", "calls"]);
    for member in &page.membership.members {
        table.row([
            member.node_id.clone(),
            member.epoch.to_string(),
            member.address.clone(),
            member.shards.to_string(),
            member.zone.clone(),
            match sources::worst(&page.shards, &member.node_id) {
                "" => "-".to_owned(),
                mode => mode.to_owned(),
            },
        ]);
    }
    format!("\n{table}")
}

/// The screen: the node, then its shards.
#[must_use]
pub fn screen(page: &MetadataPage) -> String {
    let sum = |of: fn(&crate::control::report::ShardReport) -> u64| page.shards.iter().map(of).sum::<u64>();
    let (dram, disk) = (sum(|r| r.service.hits.dram), sum(|r| r.service.hits.ssd));
    let memory = page.memory;
    let lines = [
        ("node", format!("{} {}, {}", page.identity.node_id, phase(page.phase), place(page))),
        ("version", page.identity.version.clone()),
        ("incarnation", page.incarnation.clone()),
        ("engines", page.identity.engine_socket.clone()),
        ("cores", page.identity.placement.clone()),
        (
            "arena",
            format!("{} in {} pages", rounded(sum(|r| r.arena.capacity_bytes)), page.identity.arena_pages),
        ),
        ("memory", format!("{} of {} billed", rounded(memory.rss_bytes), rounded(memory.bill_bytes))),
        (
            "coverage",
            match page.standalone {
                true => page.coverage.clone(),
                false => format!(
                    "{}, streams left out: {}, oldest view {} ms, {} rows in {} of {}",
                    page.coverage,
                    page.left_out,
                    page.oldest_age_ms,
                    page.index.rows,
                    rounded(page.index.accounted_bytes),
                    rounded(page.index.budget_bytes)
                ),
            },
        ),
        (
            "acquired",
            format!(
                "{dram} blocks from dram, {disk} from ssd, {} from peers, {} missed",
                sum(|r| r.service.peer_hits.dram + r.service.peer_hits.ssd),
                sum(|r| r.service.misses)
            ),
        ),
        (
            "saved",
            format!(
                "{} blocks, {}",
                sum(|r| r.service.saves_committed),
                rounded(sum(|r| r.service.saved_bytes))
            ),
        ),
    ];
    let of_cluster = (!page.standalone).then(|| {
        [
            ("receive", receive(page)),
            ("egress", egress(page)),
            ("packets", packets(page)),
            ("settings", settings(&page.config)),
        ]
    });
    let lines = lines.into_iter().chain(of_cluster.into_iter().flatten());
    let mut text: String = lines.map(|(name, value)| format!("{name:<12} {value}\n")).collect();
    let mut table = Table::new([
        "shard",
        "sequence",
        "dram blocks",
        "dram",
        "of",
        "ssd blocks",
        "ssd",
        "ssd state",
        "engines",
        "leases",
        "stalls",
    ]);
    for report in &page.shards {
        table.row([
            report.shard.to_string(),
            report.journal.head_sequence.to_string(),
            report.residents.dram.to_string(),
            rounded(report.resident_bytes.dram),
            rounded(report.arena.capacity_bytes),
            report.residents.ssd.to_string(),
            rounded(report.resident_bytes.ssd),
            ssd(&report.ssd),
            report.engine.connections.to_string(),
            report.engine.leases.to_string(),
            report.turns.stalls.to_string(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.to_string());
    if !page.standalone {
        text.push_str(&members(page));
    }
    text
}

/// Runs the command.
#[must_use]
pub fn run(args: &StatusArgs) -> ExitCode {
    match args.node.client().and_then(|client| client.get_as::<MetadataPage>("/cache/metadata")) {
        Ok((_, value)) if args.node.json => say(&value.to_string()),
        Ok((page, _)) => say(&screen(&page)),
        Err(error) => return fail_client(&error),
    }
    Exit::Done.into()
}
