//! When a peer, a zone or the SSD is left, and how much is asked of peers again: the settings behind the guards of the
//! fetcher, of the order of sources and of the device.

use std::time::Duration;

use orbitkv_shards::fetcher::{FetcherSettings, GuardSettings};
use orbitkv_shards::flow::PIECE_WAIT;
use orbitkv_shards::resilience::breaker::WINDOW_CALLS_MAX;
use orbitkv_shards::resilience::failover;
use orbitkv_shards::shard::DeviceGuardSettings;

use super::refusal::refused;
use super::{NodeArgs, SettingsError};
use crate::quantity::Span;

/// What a call to a peer may take without a word from it: some hundred round trips, and less than an engine waits.
const CALL_BUDGET: Duration = Duration::from_secs(1);
const _: () = assert!(
    4 * PIECE_WAIT.as_nanos() <= CALL_BUDGET.as_nanos(),
    "who waits for its turn is not taken for dead"
);
/// Less is what a busy core takes to look.
const CALL_BUDGET_MIN: Duration = Duration::from_millis(10);
/// Shortest pause: probes would be as many as calls.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause: a peer that is back is not missed for longer.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Less is what a read takes on a device that has something to do.
const READ_BUDGET_MIN: Duration = Duration::from_millis(10);
/// More is longer than any engine waits.
const READ_BUDGET_MAX: Duration = Duration::from_secs(60);

/// What eight calls carry: more is no burst, and each core keeps a word for each.
const RETRY_BURST_MAX: u32 = 1_024;

/// Ten minutes of checks: a zone that is silent for longer is an operator's business by then.
const FAILOVER_CHECKS_MAX: u32 = 300;
const _: () = assert!(failover::THRESHOLD <= FAILOVER_CHECKS_MAX, "the default is allowed");

/// How peers that fail are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerGuard {
    /// Longest silence of a peer in a call, after which it is given up and has failed.
    pub call_budget: Duration,
    /// When a peer is left alone, and how much is asked for again.
    pub guard: GuardSettings,
}

fn percent(setting: &'static str, given: Option<u32>, default: u32) -> Result<u32, SettingsError> {
    match given.unwrap_or(default) {
        percent @ 0..=100 => Ok(percent),
        percent => {
            Err(refused(setting, percent, "must be 0 to 100 percent", format!("use {setting} {default}")))
        }
    }
}

fn span(
    setting: &'static str,
    given: Option<Span>,
    default: Duration,
    bounds: [Duration; 2],
) -> Result<Duration, SettingsError> {
    let span = given.map_or(default, |span| span.0);
    if (bounds[0]..=bounds[1]).contains(&span) {
        return Ok(span);
    }
    let bound = format!("must be {} to {}", Span(bounds[0]), Span(bounds[1]));
    Err(refused(setting, Span(span), bound, format!("use {setting} {}", Span(default))))
}

/// Decides when the SSD is left alone.
pub(super) fn device(args: &NodeArgs) -> Result<DeviceGuardSettings, SettingsError> {
    let defaults = DeviceGuardSettings::default();
    let DeviceGuardSettings { failed_percent, open_for, read_budget, .. } = defaults;
    let (pauses, budgets) = ([PAUSE_MIN, PAUSE_MAX], [READ_BUDGET_MIN, READ_BUDGET_MAX]);
    Ok(DeviceGuardSettings {
        failed_percent: percent("--ssd-breaker", args.ssd_breaker, failed_percent)?,
        open_for: span("--ssd-breaker-pause", args.ssd_breaker_pause, open_for, pauses)?,
        read_budget: span("--ssd-read-budget", args.ssd_read_budget, read_budget, budgets)?,
        ..defaults
    })
}

/// Decides after how many missed checks another zone is asked first.
pub(super) fn failover_checks(args: &NodeArgs) -> Result<u32, SettingsError> {
    match args.failover_checks.unwrap_or(failover::THRESHOLD) {
        checks @ 1..=FAILOVER_CHECKS_MAX => Ok(checks),
        checks => {
            let bound = format!("must be 1 to {FAILOVER_CHECKS_MAX} checks, of which there is one each 2 s");
            let remedy = format!("use --failover-checks {}", failover::THRESHOLD);
            Err(refused("--failover-checks", checks, bound, remedy))
        }
    }
}

/// Decides how peers that fail are treated.
pub(super) fn guard(args: &NodeArgs) -> Result<PeerGuard, SettingsError> {
    let defaults = GuardSettings::default();
    let window_calls = args.breaker_calls.unwrap_or(defaults.window_calls);
    if !(1..=WINDOW_CALLS_MAX).contains(&window_calls) {
        let bound = format!("must be 1 to {WINDOW_CALLS_MAX} calls");
        return Err(refused("--breaker-calls", window_calls, bound, "use --breaker-calls 20"));
    }
    let extra_burst = args.retry_burst.unwrap_or(defaults.extra_burst);
    if extra_burst > RETRY_BURST_MAX {
        let bound = format!("must be 0 to {RETRY_BURST_MAX} blocks");
        return Err(refused("--retry-burst", extra_burst, bound, "use --retry-burst 64"));
    }
    // No grant lasts longer than the longest call.
    let longest = FetcherSettings::default().stall_wait;
    Ok(PeerGuard {
        call_budget: span("--call-budget", args.call_budget, CALL_BUDGET, [CALL_BUDGET_MIN, longest])?,
        guard: GuardSettings {
            failed_percent: percent("--breaker", args.breaker, defaults.failed_percent)?,
            window_calls,
            open_for: span("--breaker-pause", args.breaker_pause, defaults.open_for, [PAUSE_MIN, PAUSE_MAX])?,
            extra_permille: 10
                * percent("--retry-percent", args.retry_percent, defaults.extra_permille / 10)?,
            extra_burst,
        },
    })
}
