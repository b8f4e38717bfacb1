//! The lease table alone, against a list of leases with their attachments.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::identity::{BlockHash, GroupId};
use proptest::prelude::*;

use super::*;
use crate::key::NamespaceId;

const SETTINGS: LeaseSettings = LeaseSettings {
    leases_per_connection_max: 2,
    bytes_per_connection_max: 100,
    blocks_per_lease_max: 1_000,
    hold_time: Duration::from_nanos(10),
};

fn block(number: u32, bytes: u64) -> LeasedBlock {
    let key = StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([0; 32]) };
    LeasedBlock { copy: CopyId(number), key, bytes, slot_bytes: bytes, offset: u64::from(number) }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    Hold,
    Add(u64),
    Reserve(u64),
    Unreserve,
    AddReserved,
    Attach,
    Release,
    Disconnected,
    Gone,
    Time(u64),
}

fn step() -> impl Strategy<Value = (Step, u128, u64)> {
    let step = prop_oneof![
        4 => Just(Step::Open),
        3 => Just(Step::Hold),
        6 => (1u64..60).prop_map(Step::Add),
        4 => (1u64..40).prop_map(Step::Reserve),
        2 => Just(Step::Unreserve),
        2 => Just(Step::AddReserved),
        3 => Just(Step::Attach),
        5 => Just(Step::Release),
        1 => Just(Step::Disconnected),
        1 => Just(Step::Gone),
        2 => (0u64..8).prop_map(Step::Time),
    ];
    (step, 0u128..5, 0u64..4)
}

#[derive(Clone, Debug)]
struct Plain {
    instance: u64,
    charged: u64,
    expires: Option<u64>,
    attached: Vec<u64>,
    blocks: Vec<u32>,
    bytes: u64,
    /// Which life of its token, and what is reserved in it.
    life: u64,
    reserved: u64,
}

/// A connection's instance: two connections each.
fn instance(connection: u64) -> u64 {
    connection / 2
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_table_is_a_list_of_leases(steps in prop::collection::vec(step(), 1..120)) {
        let mut table = Leases::new(SETTINGS);
        let mut plain: BTreeMap<u128, Plain> = BTreeMap::new();
        let (mut now, mut blocks, mut expired, mut lives) = (0, 0u32, 0, 0);
        let mut shares: Vec<(ReservedShare, u128, u64, u64)> = Vec::new();
        for (step, token, connection) in steps {
            let (name, id, of) = (LeaseToken(token), ConnectionId(connection), InstanceId(instance(connection)));
            let charged = |plain: &BTreeMap<u128, Plain>, connection| {
                let leases = plain.values().filter(|lease| lease.charged == connection);
                leases.fold((0, 0), |(count, bytes), lease| (count + 1, bytes + lease.bytes + lease.reserved))
            };
            let is_full = charged(&plain, connection).0 == SETTINGS.leases_per_connection_max;
            let mut ended: Vec<LeasedBlock> = Vec::new();
            let mut expected: Vec<u32> = Vec::new();
            lives += 1;
            let fresh = |expires| Plain {
                life: lives,
                reserved: 0,
                instance: instance(connection),
                charged: connection,
                expires,
                attached: vec![connection],
                blocks: Vec::new(),
                bytes: 0,
            };
            let too_many = Err(LeaseError::TooMany { limit: SETTINGS.leases_per_connection_max });
            match step {
                Step::Open => {
                    let opened = table.open(name, of, id, &mut ended);
                    match plain.get_mut(&token) {
                        Some(lease) if lease.instance != instance(connection) => {
                            prop_assert_eq!(opened, Err(LeaseError::Foreign));
                        }
                        Some(lease) if lease.expires.is_none() => {
                            lease.attached.push(connection);
                            prop_assert_eq!(opened, Ok(()));
                        }
                        Some(lease) if lease.charged != connection && is_full => {
                            prop_assert_eq!(opened, too_many);
                        }
                        None if is_full => prop_assert_eq!(opened, too_many),
                        held => {
                            expected = held.map(|lease| lease.blocks.clone()).unwrap_or_default();
                            plain.insert(token, fresh(None));
                            prop_assert_eq!(opened, Ok(()));
                        }
                    }
                }
                Step::Hold => {
                    let held = table.hold(name, of, id, Moment(now));
                    match plain.get(&token) {
                        Some(lease) if lease.expires.is_some() && lease.charged == connection => {
                            prop_assert_eq!(held, Ok(()));
                        }
                        Some(_) => prop_assert_eq!(held, Err(LeaseError::Unknown)),
                        None if is_full => prop_assert_eq!(held, too_many),
                        None => {
                            plain.insert(token, fresh(Some(now + 10)));
                            prop_assert_eq!(held, Ok(()));
                        }
                    }
                }
                Step::Add(bytes) => {
                    let bound = SETTINGS.bytes_per_connection_max;
                    let owner = plain.get(&token).map(|lease| lease.charged);
                    let fits = owner.is_some_and(|owner| charged(&plain, owner).1 + bytes <= bound);
                    prop_assert_eq!(table.fits(name, bytes), fits);
                    if fits {
                        blocks += 1;
                        table.add(name, block(blocks, bytes));
                        let lease = plain.get_mut(&token).expect("it fits");
                        lease.blocks.push(blocks);
                        lease.bytes += bytes;
                    }
                }
                Step::Reserve(bytes) => {
                    let bound = SETTINGS.bytes_per_connection_max;
                    let owner = plain.get(&token).map(|lease| lease.charged);
                    let fits = owner.is_some_and(|owner| charged(&plain, owner).1 + bytes <= bound);
                    let share = table.reserve(name, bytes);
                    prop_assert_eq!(share.is_some(), fits);
                    if let Some(share) = share {
                        let lease = plain.get_mut(&token).expect("it fits");
                        lease.reserved += bytes;
                        shares.push((share, token, lease.life, bytes));
                    }
                }
                Step::Unreserve | Step::AddReserved if shares.is_empty() => {}
                Step::Unreserve | Step::AddReserved => {
                    let (share, token, life, bytes) = shares.swap_remove(connection as usize % shares.len());
                    let lease = plain.get_mut(&token).filter(|lease| lease.life == life);
                    let goes_on = lease.is_some();
                    blocks += 1;
                    if let Some(lease) = lease {
                        lease.reserved -= bytes;
                        if matches!(step, Step::AddReserved) {
                            lease.bytes += bytes;
                            lease.blocks.push(blocks);
                        }
                    }
                    let found = match step {
                        Step::AddReserved => table.add_reserved(share, block(blocks, bytes)),
                        _ => table.unreserve(share),
                    };
                    prop_assert_eq!(found, goes_on);
                }
                Step::Attach => {
                    let attached = table.attach(name, of, id).map(|blocks| blocks.len());
                    match plain.get_mut(&token) {
                        Some(lease) if lease.instance != instance(connection) => {
                            prop_assert_eq!(attached, Err(LeaseError::Foreign));
                        }
                        Some(lease) if lease.expires.is_none() => {
                            lease.attached.push(connection);
                            prop_assert_eq!(attached, Ok(lease.blocks.len()));
                        }
                        _ => prop_assert_eq!(attached, Err(LeaseError::Unknown)),
                    }
                }
                Step::Release => {
                    let released = table.release(name, id, &mut ended);
                    let lease = plain.get_mut(&token);
                    let place = lease.as_ref().and_then(|lease| {
                        lease.attached.iter().position(|attached| *attached == connection)
                    });
                    match (lease, place) {
                        (Some(lease), Some(place)) => {
                            prop_assert_eq!(released, Ok(()));
                            lease.attached.swap_remove(place);
                            if lease.attached.is_empty() {
                                expected = plain.remove(&token).expect("just found").blocks;
                            }
                        }
                        _ => prop_assert_eq!(released, Err(LeaseError::Unknown)),
                    }
                }
                Step::Disconnected | Step::Gone | Step::Time(_) => {
                    if let Step::Time(passed) = step {
                        now += passed;
                        table.on_time(Moment(now), &mut ended);
                    } else if matches!(step, Step::Gone) {
                        table.on_gone(id, &mut ended);
                    } else {
                        table.on_disconnected(id, &mut ended);
                    }
                    plain.retain(|_, lease| {
                        let ends = match step {
                            Step::Gone => {
                                lease.attached.retain(|attached| *attached != connection);
                                lease.attached.is_empty()
                            }
                            Step::Time(_) => lease.expires.is_some_and(|expires| expires <= now),
                            _ => lease.expires.is_some() && lease.charged == connection,
                        };
                        if ends {
                            expected.extend(&lease.blocks);
                            expired += u64::from(matches!(step, Step::Time(_)));
                        }
                        !ends
                    });
                }
            }
            let mut ended: Vec<u32> = ended.iter().map(|block| block.copy.0).collect();
            ended.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(ended, expected);
            prop_assert_eq!(table.len(), plain.len());
            prop_assert_eq!(table.is_empty(), plain.is_empty());
            prop_assert_eq!(table.bytes(), plain.values().map(|lease| lease.bytes).sum::<u64>());
            prop_assert_eq!(table.blocks(), plain.values().map(|lease| lease.blocks.len() as u64).sum::<u64>());
            prop_assert_eq!(table.holds(), plain.values().filter(|lease| lease.expires.is_some()).count());
            prop_assert_eq!(table.holds_expired(), expired);
            let next = plain.values().filter_map(|lease| lease.expires).min();
            prop_assert_eq!(table.next_deadline(), next.map(Moment));
            prop_assert_eq!(table.contains(name), plain.contains_key(&token));
            let charged: std::collections::BTreeSet<u64> = plain.values().map(|lease| lease.charged).collect();
            prop_assert_eq!(table.shares.len(), charged.len(), "no share is left behind");
            let reserved: u64 = plain.values().map(|lease| lease.reserved).sum();
            prop_assert_eq!(table.reserved_bytes(), reserved);
            for number in 0..4 {
                let has = plain.values().any(|lease| lease.attached.contains(&number));
                prop_assert_eq!(table.has_share(ConnectionId(number)), has);
            }
        }
    }
}

#[test]
fn a_lease_has_no_more_blocks_than_an_attach_can_show() {
    let mut table = Leases::new(LeaseSettings { blocks_per_lease_max: 3, ..SETTINGS });
    let (token, mut ended) = (LeaseToken(1), Vec::new());
    table.open(token, InstanceId(1), ConnectionId(1), &mut ended).unwrap();
    table.add(token, block(1, 1));
    let share = table.reserve(token, 1).expect("the second block");
    table.add(token, block(3, 1));
    // Another Acquire under the same token adds to the same lease.
    table.open(token, InstanceId(1), ConnectionId(1), &mut ended).unwrap();
    assert!(!table.fits(token, 1) && table.reserve(token, 1).is_none());
    assert!(table.unreserve(share) && table.fits(token, 1), "what is given back is free again");
    let share = table.reserve(token, 1).expect("the last seat");
    assert!(table.add_reserved(share, block(2, 1)));
    assert!(!table.fits(token, 1));
}
