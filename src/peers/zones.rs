//! Whose zone is asked first: the checks behind it, and what an operator is told when it changes.

use orbitkv_shards::planner::ZoneChange;
use orbitkv_shards::resilience::failover::Cause;
use orbitkv_shards::time::Moment;

use super::Peers;

impl Peers {
    /// Checks the zones if it is time. While this node may not listen to others it has no say about them. `boot` is of
    /// `CLOCK_BOOTTIME`.
    pub(super) fn check_zones(&mut self, now: Moment, boot: Moment) {
        let may_hear = self.life.is_member(boot) && !self.is_suspended;
        let (neighbours, subscriber) = (&self.neighbours, &self.subscriber);
        let answers =
            |zone: &str| may_hear && neighbours.in_zone(zone).any(|node| subscriber.hears(node, now));
        if let Some(change) = self.zones.check(answers, now) {
            self.on_zone_change(&change);
        }
    }

    /// The operator goes back to this node's own zone.
    pub fn fail_back(&mut self, now: Moment) {
        if let Some(change) = self.zones.fail_back(now) {
            self.on_zone_change(&change);
        }
    }

    fn on_zone_change(&mut self, ZoneChange { cause, from, to }: &ZoneChange) {
        let core = self.shard.0;
        match cause {
            Cause::Failover => tracing::warn!(
                core,
                %from,
                %to,
                checks = self.failover_checks,
                "the preferred zone has missed its checks: another one's nodes are asked first from now on, until the \
                 operator goes back (POST /zones/failback)"
            ),
            Cause::Failback => {
                tracing::info!(core, %from, %to, "the operator went back to this node's own zone");
            }
        }
        self.neighbours.prefer(self.zones.preferred());
    }
}
