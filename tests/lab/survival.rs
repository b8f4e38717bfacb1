//! Lessons 9 to 20: how a service survives what fails, and what surviving costs.

use crate::vectors;

vectors::vectors! {
    failover: "09-failover",
    failover_budget: "09-failover-budget",
    health: "10-health",
    health_budget: "10-health-budget",
    data_loss: "11-data-loss",
    recovery_budget: "11-rto-budget",
    zones: "12-zones",
    zone_capacity: "12-zone-capacity",
    stamps: "13-stamps",
    stamp_load: "13-stamp-load",
    drill_plan: "14-drill-plan",
    drill_work: "14-drill-work",
    idempotency: "15-idempotency",
    idempotency_cost: "15-idempotency-cost",
    compensation: "16-compensation",
    compensation_cost: "16-compensation-cost",
    claim_check: "17-claim-check",
    claim_check_cost: "17-claim-check-cost",
    valet_path: "18-valet-path",
    valet_scope: "18-valet-scope",
    configuration: "19-config",
    strangler: "20-strangler",
}
