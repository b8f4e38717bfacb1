//! The valet key (chapter 5, row 18): what letting a reader fetch bytes itself takes off the one who gave the
//! key, and what a key that gets lost lays open.
//!
//! The key itself is a grant (`grants.rs`): it names the exact residences of one request and lasts seconds.
//! Here is what speaks for that choice: whoever passes bytes on holds a slot for as long as the transfer
//! takes, so a slow reader fills the pool; whoever gives a key holds none. And the exposure of a key grows
//! with how much it opens, not with how many keys there are.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::bounds::{GRANT_MS_MAX, OPERATION_ORIGINS_MAX};

use crate::admission::{Permit, Pool};
use crate::time::Moment;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferPath {
    /// Through the service, in and out again.
    Proxy,
    /// Past it: the service gives a key.
    #[default]
    Valet,
}

/// Bytes that a transfer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferBytes {
    /// What is transferred.
    pub payload: u64,
    /// What asking for a key and getting it takes.
    pub key: u64,
}

impl TransferPath {
    /// Bytes of a transfer that pass the service.
    #[must_use]
    pub fn service_bytes(self, bytes: TransferBytes) -> u64 {
        match self {
            TransferPath::Proxy => 2 * bytes.payload,
            TransferPath::Valet => bytes.key,
        }
    }
}

/// What becomes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferOutcome {
    /// It begins; so many bytes pass the service.
    Accepted {
        /// Bytes.
        service_bytes: u64,
    },
    /// All slots are held.
    Refused,
}

/// The slots of a service, and the transfers that hold them.
#[derive(Debug)]
pub struct TransferDesk {
    path: TransferPath,
    bytes: TransferBytes,
    slots: Pool,
    held: BTreeMap<(Moment, u64), Permit>,
    begun: u64,
}

impl TransferDesk {
    /// A service of this path with so many slots.
    #[must_use]
    pub fn new(path: TransferPath, bytes: TransferBytes, slots: u64) -> TransferDesk {
        let slots = Pool::new("transfer slots", slots);
        TransferDesk { path, bytes, slots, held: BTreeMap::new(), begun: 0 }
    }

    /// Slots of transfers that have ended are free again.
    pub fn release(&mut self, now: Moment) {
        while self.held.first_key_value().is_some_and(|((until, _), _)| *until <= now) {
            self.held.pop_first();
        }
    }

    /// A transfer that lasts until then is asked for.
    pub fn begin(&mut self, until: Moment) -> TransferOutcome {
        if self.path == TransferPath::Proxy {
            let Some(slot) = self.slots.take(1) else { return TransferOutcome::Refused };
            self.held.insert((until, self.begun), slot);
        }
        self.begun += 1;
        TransferOutcome::Accepted { service_bytes: self.path.service_bytes(self.bytes) }
    }

    /// When the next slot is free again.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.held.first_key_value().map(|((until, _), _)| *until)
    }

    /// Slots held.
    #[must_use]
    pub fn slots_held(&self) -> u64 {
        self.slots.in_use()
    }

    /// Transfers refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.slots.refused()
    }
}

/// How much a key opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyScope {
    /// Objects that one key opens.
    pub surface: f64,
    /// Keys given a day.
    pub keys_per_day: f64,
    /// How long a key opens them.
    pub lifetime: Duration,
}

impl KeyScope {
    /// The widest that a grant of this node can be: the residences of one request, for its longest time.
    #[must_use]
    pub fn grant(keys_per_day: f64) -> KeyScope {
        KeyScope {
            surface: OPERATION_ORIGINS_MAX as f64,
            keys_per_day,
            lifetime: Duration::from_millis(u64::from(GRANT_MS_MAX)),
        }
    }

    /// Keys given a second when it is busiest, `peak_factor` times the mean.
    #[must_use]
    pub fn keys_per_s_peak(&self, peak_factor: f64) -> f64 {
        self.keys_per_day / 86_400.0 * peak_factor
    }

    /// Keys that open something at any moment of that time.
    #[must_use]
    pub fn keys_open_peak(&self, peak_factor: f64) -> f64 {
        self.keys_per_s_peak(peak_factor) * self.lifetime.as_secs_f64()
    }

    /// Object-seconds a day that lost keys lay open, if one key in 1 / `leak_probability` gets lost.
    #[must_use]
    pub fn exposure_per_day(&self, leak_probability: f64) -> f64 {
        self.keys_per_day * leak_probability * self.surface * self.lifetime.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: TransferBytes = TransferBytes { payload: 40_000, key: 512 };

    #[test]
    fn who_gives_keys_holds_no_slot_and_refuses_nobody() {
        let mut desk = TransferDesk::new(TransferPath::default(), BYTES, 1);
        for _ in 0..100 {
            assert_eq!(desk.begin(Moment(u64::MAX)), TransferOutcome::Accepted { service_bytes: 512 });
        }
        assert_eq!((desk.slots_held(), desk.refused(), desk.next_deadline()), (0, 0, None));
    }

    #[test]
    fn who_passes_bytes_on_holds_a_slot_until_the_transfer_ends() {
        let mut desk = TransferDesk::new(TransferPath::Proxy, BYTES, 2);
        assert_eq!(desk.begin(Moment(9)), TransferOutcome::Accepted { service_bytes: 80_000 });
        assert_eq!(desk.begin(Moment(5)), TransferOutcome::Accepted { service_bytes: 80_000 });
        assert_eq!(desk.begin(Moment(5)), TransferOutcome::Refused);
        assert_eq!(desk.next_deadline(), Some(Moment(5)));
        desk.release(Moment(4));
        assert_eq!(desk.slots_held(), 2);
        desk.release(Moment(5));
        assert_eq!((desk.slots_held(), desk.refused()), (1, 1));
    }

    #[test]
    fn exposure_grows_with_what_a_key_opens_and_not_with_how_many_there_are() {
        let lifetime = Duration::from_secs(300);
        let one = KeyScope { surface: 1.0, keys_per_day: 1_000.0, lifetime };
        let hundred = KeyScope { surface: 100.0, keys_per_day: 10.0, lifetime };
        let everything = KeyScope { surface: 100.0, keys_per_day: 1_000.0, lifetime };
        let exposure = |scope: KeyScope| (scope.exposure_per_day(1e-3) * 1_000.0).round();
        assert_eq!(exposure(one), exposure(hundred));
        assert_eq!(exposure(everything), 100.0 * exposure(one));
        assert_eq!(one.keys_open_peak(2.0), one.keys_per_s_peak(2.0) * 300.0);
    }

    #[test]
    fn a_grant_lays_less_open_than_a_key_to_one_object_for_five_minutes_each() {
        let (objects, leak) = (400_000.0, 1e-6);
        let single = KeyScope { surface: 1.0, keys_per_day: objects, lifetime: Duration::from_secs(300) };
        let grant = KeyScope::grant(objects / OPERATION_ORIGINS_MAX as f64);
        assert!(grant.exposure_per_day(leak) < single.exposure_per_day(leak) / 10.0);
    }
}
