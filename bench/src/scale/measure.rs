//! One cell on real processes: changes at the rate that is asked for, for how soon they are seen and what that takes; then
//! changes as fast as the machine makes them; and at the end every key.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::signals::StopSignals;

use super::plan::{Cell, Plan};
use super::record::{Figures, Visibility};
use crate::Failure;
use crate::profile::FormalProfile;
use crate::streams::background::{Background, Made, Rhythm};
use crate::streams::convergence;
use crate::streams::distribution::Distribution;
use crate::streams::owners::{Owners, SAMPLES, Sessions, StartOrder, await_applied};
use crate::streams::samples::Samples;
use crate::streams::{RunArgs, pause};

/// How often engines at work are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// What a cell came to, and what of it says nothing.
pub struct Measured {
    /// The figures.
    pub figures: Figures,
    /// Why visibility is not known.
    pub invalid: Option<String>,
}

/// Measures a cell.
///
/// # Errors
/// If the nodes do not start, fail, or do not come to have what they are to have, or a signal comes.
pub fn measure(cell: &Cell, plan: &Plan, seed: u64, signals: &StopSignals) -> Result<Measured, Failure> {
    let start = StartOrder { samples: SAMPLES, namespaces: cell.namespaces, ..StartOrder::default() };
    let mut owners = Owners::start_as(&run_args(cell, seed), &start, signals)?;
    await_applied(&owners, signals)?;
    let revision = owners.coordinator().revision()?;
    let mut samples = Samples::of(owners.identities());
    samples.read_all(owners.http())?;
    let (sessions_before, bytes_before, used_before) =
        (owners.sessions()?, bytes(&owners.pages()?), owners.used()?);

    let rhythm = cell.rhythm(plan.changes_per_second);
    let bursts = (plan.paced_seconds * 1_000_000_000).div_ceil(rhythm.period_ns) + 1;
    let began = Instant::now();
    let made = paced(&mut owners, rhythm, seed, bursts, signals)?;
    let (used, elapsed) = (owners.used()?.since(&used_before), began.elapsed().as_secs_f64());
    await_applied(&owners, signals)?;
    samples.read_all(owners.http())?;
    let pages = owners.pages()?;
    let (sessions, bytes_by_kind) = (owners.sessions()?, since(&bytes_before, bytes(&pages)));
    let up = Sessions::stayed_up(&sessions_before, &sessions, owners.sessions_expected());
    let seen = up.and_then(|()| visibility(&samples, &made));

    let unpaced_per_second = unpaced(&mut owners, cell, plan, seed, signals)?;
    let convergence = convergence::check(&mut owners, signals)?;
    owners.require_alive()?;
    let etcd_writes = owners.coordinator().revision()? - revision;

    let peers = || pages.iter().flat_map(|page| &page.shards).filter_map(|shard| shard.peers.as_ref());
    let rss = || pages.iter().map(|page| page.memory.rss_bytes);
    let late = made.bursts.iter().map(|burst| burst.began_ns.saturating_sub(burst.intended_ns));
    let last = owners.pages()?;
    let figures = Figures {
        offered_per_second: rhythm.mix.changes() as f64 * owners.len() as f64 * 1e9 / rhythm.period_ns as f64,
        reached_per_second: reached_per_second(&made, rhythm, owners.len()),
        unpaced_per_second,
        visibility: seen.as_ref().ok().copied().flatten(),
        late_ms_max: late.max().unwrap_or(0) as f64 / 1e6,
        node_cores: used.nodes / elapsed,
        bench_cores: used.bench / elapsed,
        rss_bytes_mean: rss().sum::<u64>() / pages.len() as u64,
        rss_bytes_peak: last.iter().map(|page| page.memory.rss_peak_bytes).max().unwrap_or(0),
        bill_bytes: pages.iter().map(|page| page.memory.bill_bytes).max().unwrap_or(0),
        bytes_by_kind,
        queue_bytes_peak: peers().map(|peers| peers.queue_bytes_peak).max().unwrap_or(0),
        sessions: [sessions_before.live, owners.sessions_expected(), sessions.lost - sessions_before.lost],
        convergence,
        etcd_writes,
    };
    Ok(Measured { figures, invalid: seen.err() })
}

/// What a cluster of a cell is started with.
pub fn run_args(cell: &Cell, seed: u64) -> RunArgs {
    RunArgs {
        managers: cell.managers,
        profile: FormalProfile::Ci,
        seed,
        coalesce: None,
        residences: cell.residences,
        out: None,
        json: false,
    }
}

/// Lets all engines make their bursts at the rhythm.
fn paced(
    owners: &mut Owners,
    rhythm: Rhythm,
    seed: u64,
    bursts: u64,
    signals: &StopSignals,
) -> Result<Made, Failure> {
    let mut background = Background::begin(owners.lend(), rhythm, seed, Some(bursts));
    while !background.is_over() {
        pause(LOOK, signals)?;
    }
    let mut made = background.join()?;
    owners.take_back(std::mem::take(&mut made.owners));
    Ok(made)
}

/// Changes a second that are made and seen everywhere if nobody waits.
fn unpaced(
    owners: &mut Owners,
    cell: &Cell,
    plan: &Plan,
    seed: u64,
    signals: &StopSignals,
) -> Result<f64, Failure> {
    let rhythm = Rhythm { mix: cell.mix(), period_ns: 0 };
    let began = Instant::now();
    let background = Background::begin(owners.lend(), rhythm, seed, None);
    pause(Duration::from_secs(plan.unpaced_seconds), signals)?;
    let made = background.end()?;
    owners.take_back(made.owners);
    await_applied(owners, signals)?;
    Ok(made.changes as f64 / began.elapsed().as_secs_f64())
}

/// From the first burst on until the last one's period is over.
fn reached_per_second(made: &Made, rhythm: Rhythm, owners: usize) -> f64 {
    let began = made.bursts.iter().map(|burst| burst.began_ns).min();
    let ended = made.bursts.iter().map(|burst| burst.began_ns).max();
    let (Some(began), Some(ended)) = (began, ended) else { return 0.0 };
    // Bursts of each owner follow each other by a period, so that many lie in as many periods.
    let seconds = (ended - began) as f64 / 1e9 + rhythm.period_ns as f64 / owners as f64 / 1e9;
    made.changes as f64 / seconds
}

/// How soon each publication was seen; nothing if there is nobody to see it.
fn visibility(samples: &Samples, made: &Made) -> Result<Option<Visibility>, String> {
    let began = made.bursts.iter().map(|burst| burst.began_ns).min().unwrap_or(0);
    let ended = made.bursts.iter().map(|burst| burst.ended_ns).max().unwrap_or(0);
    let mut publication = Distribution::of("publication_install");
    for sight in samples.of_publications(began..ended).map_err(|invalid| invalid.to_string())? {
        publication.record(sight.installed_ns - sight.published_ns);
    }
    let of = |quantile| publication.milliseconds(quantile);
    let seen = Visibility { p50_ms: of(0.5), p99_ms: of(0.99), max_ms: of(1.0), count: publication.len() };
    Ok((seen.count > 0).then_some(seen))
}

/// Bytes of inventory frames that nodes have sent from their start on.
fn bytes(pages: &[MetadataPage]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for peers in pages.iter().flat_map(|page| &page.shards).filter_map(|shard| shard.peers.as_ref()) {
        let (all, deltas) = (peers.frames_sent.bytes, peers.deltas_sent.bytes);
        let (pages, replay) = (peers.pages_sent.bytes, peers.replay_bytes_sent);
        for (kind, bytes) in [
            ("changes (deltas)", deltas.saturating_sub(replay)),
            ("replays of a journal", replay),
            ("snapshot pages", pages),
            ("other inventory frames", all.saturating_sub(deltas + pages)),
        ] {
            *sums.entry(kind.to_owned()).or_default() += bytes;
        }
    }
    sums
}

fn since(before: &BTreeMap<String, u64>, mut after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    for (kind, bytes) in &mut after {
        *bytes -= before.get(kind).copied().unwrap_or(0);
    }
    after
}

#[cfg(test)]
mod tests {
    use orbitkv::control::report::{PeerFrames, PeersReport, ShardReport};

    use super::*;
    use crate::streams::owner::{Burst, Mix};

    #[test]
    fn the_rate_is_of_bursts_and_the_rests_behind_them() {
        // Two owners, a burst of 10 each second, half a second after each other: 20 a second.
        let rhythm = Rhythm { mix: Mix { own: 10, ..Mix::default() }, period_ns: 1_000_000_000 };
        let burst = |began_ns| Burst { owner: 0, intended_ns: 0, began_ns, ended_ns: began_ns, terminal: 0 };
        let began = [0, 500_000_000, 1_000_000_000, 1_500_000_000];
        let made = Made { owners: Vec::new(), bursts: began.map(burst).to_vec(), changes: 40 };
        assert!((reached_per_second(&made, rhythm, 2) - 20.0).abs() < 1e-9);
        let none = Made { owners: Vec::new(), bursts: Vec::new(), changes: 0 };
        assert_eq!(reached_per_second(&none, rhythm, 2), 0.0);
    }

    #[test]
    fn bytes_are_of_one_kind_each_and_only_those_since_then() {
        let frames = |bytes| PeerFrames { frames: 1, bytes };
        let page = |all, deltas, pages, replay_bytes_sent| {
            let (frames_sent, deltas_sent, pages_sent) = (frames(all), frames(deltas), frames(pages));
            let peers = Some(PeersReport {
                frames_sent,
                deltas_sent,
                pages_sent,
                replay_bytes_sent,
                ..Default::default()
            });
            MetadataPage { shards: vec![ShardReport { peers, ..Default::default() }], ..Default::default() }
        };
        let before = bytes(&[page(100, 50, 30, 10), page(0, 0, 0, 0)]);
        assert_eq!(before.values().sum::<u64>(), 100);
        assert_eq!(before["changes (deltas)"], 40);
        let after = since(&before, bytes(&[page(150, 90, 30, 15), page(7, 0, 0, 0)]));
        let kinds = ["changes (deltas)", "replays of a journal", "snapshot pages", "other inventory frames"];
        assert_eq!(kinds.map(|kind| after[kind]), [35, 5, 0, 17]);
    }
}
