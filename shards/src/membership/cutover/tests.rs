//! Migrations against a plain model of etcd, interrupted after each step.

use std::collections::BTreeMap;

use super::*;

const OLD_FORMAT: &str =
    "protocol orbitkv/inventory-stream/v3\ncarrier tcp/1\ncluster 11111111-1111-4111-8111-111111111111\n";
const DRAFT: ClusterUuid = ClusterUuid([7; 16]);

/// Names with values, revisions and leases; a transaction happens whole or not at all.
#[derive(Clone, Default)]
struct Etcd {
    revision: u64,
    keys: BTreeMap<String, (Vec<u8>, u64, Option<LeaseId>)>,
}

impl Etcd {
    fn holding(keys: &[(&str, &str)]) -> Etcd {
        let mut etcd = Etcd::default();
        keys.iter().for_each(|(name, value)| etcd.put(name, value));
        etcd
    }

    fn put(&mut self, name: &str, value: &str) {
        self.revision += 1;
        self.keys.insert(name.to_owned(), (value.into(), self.revision, None));
    }

    fn stand(&self) -> Stand {
        let key = |(name, (value, revision, lease)): (&String, &(Vec<u8>, u64, Option<LeaseId>))| {
            StandingKey { name: name.clone(), value: value.clone(), revision: *revision, lease: *lease }
        };
        Stand { revision: self.revision, keys: self.keys.iter().map(key).collect() }
    }

    fn exchange(&mut self, exchange: &Exchange) -> bool {
        assert!(exchange.writes.len() <= EXCHANGE_WRITES_MAX);
        let revision_of = |name: &str| self.keys.get(name).map_or(0, |key| key.1);
        let format = self.keys.get(FORMAT);
        let holds = format.is_some_and(|key| (key.0.clone(), key.1) == exchange.format)
            && exchange.unchanged.iter().all(|(name, revision)| revision_of(name) == *revision)
            && exchange.nothing_after.is_none_or(|last| self.keys.values().all(|key| key.1 <= last))
            && !self.keys.keys().any(|name| name.starts_with(MEMBERS));
        if holds {
            self.revision += 1;
            for (name, value) in &exchange.writes {
                match value {
                    Some(value) => {
                        self.keys.insert(name.clone(), (value.clone(), self.revision, None));
                    }
                    None => _ = self.keys.remove(name),
                }
            }
        }
        holds
    }

    fn values(&self) -> BTreeMap<String, String> {
        let text = |value: &Vec<u8>| String::from_utf8(value.clone()).expect("text");
        self.keys.iter().map(|(name, key)| (name.clone(), text(&key.0))).collect()
    }
}

/// Goes at most so many steps that way; whether it is done.
fn walk(etcd: &mut Etcd, archive: &Archive, direction: Direction, steps: usize) -> Result<bool, Obstacle> {
    for _ in 0..steps {
        match archive.next(direction, &etcd.stand())? {
            Next::Done => return Ok(true),
            Next::Exchange(exchange) => assert!(etcd.exchange(&exchange), "nobody else writes: {exchange:?}"),
        }
    }
    Ok(false)
}

/// A cluster of the other format with more keys than one transaction takes.
fn cluster() -> (Etcd, BTreeMap<String, String>) {
    let mut etcd = Etcd::holding(&[
        (FORMAT, OLD_FORMAT),
        ("epochs/a", "5"),
        ("epochs/b", "2"),
        ("epoch_floor", "3"),
        ("config/policy", "x"),
    ]);
    (0..150).for_each(|number| etcd.put(&format!("placements/{number:03}"), &format!("at {number}")));
    let before = etcd.values();
    (etcd, before)
}

fn archive(etcd: &Etcd) -> Archive {
    Archive::of("test", &etcd.stand(), [9; 16], DRAFT).expect("it can be moved")
}

/// What the keys are afterwards, written down by hand.
fn expected() -> BTreeMap<String, String> {
    let format = "protocol orbitkv/inventory-stream/v4\ncarrier quic-rkyv/1\n\
                  cluster 11111111-1111-4111-8111-111111111111\n";
    [("config/policy", "x"), ("epoch_floor", "3"), ("epochs/a", "5"), ("epochs/b", "2"), (FORMAT, format)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

const FAR: usize = 100;

#[test]
fn wherever_it_is_interrupted_it_goes_on_or_back() {
    let (start, before) = cluster();
    let archive = archive(&start);
    let mut steps = 0;
    loop {
        let mut etcd = start.clone();
        let is_done = walk(&mut etcd, &archive, Direction::Onward, steps).expect("nothing is in the way");
        assert!(is_done || steps < 10, "three batches, the mark and the format");
        let mut onward = etcd.clone();
        assert_eq!(walk(&mut onward, &archive, Direction::Onward, FAR), Ok(true));
        assert_eq!(onward.values(), expected(), "after {steps} steps");
        for back_steps in 0..8 {
            let mut back = etcd.clone();
            walk(&mut back, &archive, Direction::Back, back_steps).expect("nothing is in the way");
            // Whoever changes their mind half-way back gets there too, unless they are back already.
            if back.values() != before {
                let mut again = back.clone();
                assert_eq!(walk(&mut again, &archive, Direction::Onward, FAR), Ok(true));
                assert_eq!(again.values(), expected(), "after {steps} steps and {back_steps} back");
            }
            assert_eq!(walk(&mut back, &archive, Direction::Back, FAR), Ok(true));
            assert_eq!(back.values(), before, "after {steps} steps and {back_steps} back");
        }
        if is_done {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 5, "the mark, three batches, the format: {steps}");
}

#[test]
fn the_format_is_a_mark_from_the_first_change_to_the_last() {
    let (mut etcd, before) = cluster();
    let archive = archive(&etcd);
    for direction in [Direction::Onward, Direction::Back] {
        while let Next::Exchange(exchange) = archive.next(direction, &etcd.stand()).expect("free") {
            assert!(etcd.exchange(&exchange));
            let format = &etcd.values()[FORMAT];
            let whole = if direction == Direction::Onward { expected() } else { before.clone() };
            let is_marked = *format == "migration 09090909-0909-0909-0909-090909090909\n";
            assert!(is_marked || etcd.values() == whole, "{format}");
        }
    }
}

#[test]
fn no_epoch_is_lowered_on_the_way_back() {
    let (mut etcd, _) = cluster();
    let archive = archive(&etcd);
    walk(&mut etcd, &archive, Direction::Onward, FAR).expect("free");
    // Lives of our format: `a` grew, `c` is new, `b` was cleaned up, which raised the floor.
    etcd.put("epochs/a", "9");
    etcd.put("epochs/c", "4");
    etcd.keys.remove("epochs/b");
    etcd.put("epoch_floor", "8");
    assert_eq!(walk(&mut etcd, &archive, Direction::Back, FAR), Ok(true));
    let values = etcd.values();
    let epochs = ["epochs/a", "epochs/c", "epoch_floor"].map(|name| values[name].as_str());
    assert_eq!((epochs, values.get("epochs/b")), (["9", "4", "8"], None));
    assert_eq!((values[FORMAT].as_str(), values["placements/149"].as_str()), (OLD_FORMAT, "at 149"));
}

#[test]
fn an_epoch_that_somebody_lowered_or_removed_is_raised_again() {
    let (mut etcd, _) = cluster();
    let archive = archive(&etcd);
    walk(&mut etcd, &archive, Direction::Onward, FAR).expect("free");
    etcd.put("epochs/a", "1");
    etcd.keys.remove("epochs/b");
    etcd.keys.remove("epoch_floor");
    assert_eq!(walk(&mut etcd, &archive, Direction::Back, FAR), Ok(true));
    let values = etcd.values();
    assert_eq!(["epochs/a", "epochs/b", "epoch_floor"].map(|name| values[name].as_str()), ["5", "2", "3"]);
}

#[test]
fn nothing_is_moved_under_somebody_who_lives() {
    let (etcd, _) = cluster();
    let archive = archive(&etcd);
    let with = |etcd: &Etcd, name: &str, lease| {
        let mut etcd = etcd.clone();
        etcd.put(name, "whatever");
        etcd.keys.get_mut(name).expect("just put").2 = lease;
        etcd
    };
    let registered = with(&etcd, "members/b", Some(LeaseId(1)));
    let refused = Archive::of("test", &registered.stand(), [9; 16], DRAFT);
    assert_eq!(refused, Err(Obstacle::Members(vec!["b".to_owned()])));
    // A record without a lease, of a name that is none, is somebody all the same.
    let odd = with(&etcd, "members/No Name", None);
    assert!(matches!(Archive::of("test", &odd.stand(), [9; 16], DRAFT), Err(Obstacle::Members(_))));
    let alive = with(&etcd, "sessions/1", Some(LeaseId(1)));
    let refused = Archive::of("test", &alive.stand(), [9; 16], DRAFT);
    assert_eq!(refused, Err(Obstacle::Alive("sessions/1".to_owned())));
    // Between reading and writing, at each step of either way.
    for direction in [Direction::Onward, Direction::Back] {
        let mut etcd = etcd.clone();
        if direction == Direction::Back {
            walk(&mut etcd, &archive, Direction::Onward, FAR).expect("free");
        }
        while let Next::Exchange(exchange) = archive.next(direction, &etcd.stand()).expect("free") {
            let mut meanwhile = with(&etcd, "members/b", Some(LeaseId(1)));
            assert!(!meanwhile.exchange(&exchange), "{exchange:?}");
            assert!(matches!(archive.next(direction, &meanwhile.stand()), Err(Obstacle::Members(_))));
            assert!(etcd.exchange(&exchange));
        }
    }
}

#[test]
fn what_somebody_changed_since_is_not_overwritten() {
    let (etcd, _) = cluster();
    let archive = archive(&etcd);
    for (name, value) in
        [("placements/000", "elsewhere"), ("placements/000", "at 0"), ("epochs/a", "6"), ("x", "y")]
    {
        let mut etcd = etcd.clone();
        let Ok(Next::Exchange(first)) = archive.next(Direction::Onward, &etcd.stand()) else {
            panic!("a step")
        };
        etcd.put(name, value);
        assert!(!etcd.exchange(&first), "{name} was changed after it was read");
        let refused = archive.next(Direction::Onward, &etcd.stand());
        assert_eq!(refused, Err(Obstacle::Changed(name.to_owned())));
    }
    let mut missing = etcd.clone();
    missing.keys.remove("placements/007");
    let refused = archive.next(Direction::Onward, &missing.stand());
    assert_eq!(refused, Err(Obstacle::Changed("placements/007".to_owned())));
    // Half-way, and on the way back.
    let mut etcd = etcd;
    walk(&mut etcd, &archive, Direction::Onward, 2).expect("free");
    let mut half = etcd.clone();
    half.put("placements/149", "elsewhere");
    let changed = Obstacle::Changed("placements/149".to_owned());
    assert_eq!(walk(&mut half, &archive, Direction::Onward, FAR), Err(changed));
    walk(&mut etcd, &archive, Direction::Onward, FAR).expect("free");
    etcd.put("placements/000", "of somebody else");
    let changed = Obstacle::Changed("placements/000".to_owned());
    assert_eq!(walk(&mut etcd, &archive, Direction::Back, FAR), Err(changed));
}

#[test]
fn a_key_that_changes_between_reading_and_a_batch_stops_the_batch() {
    let (mut etcd, _) = cluster();
    let archive = archive(&etcd);
    walk(&mut etcd, &archive, Direction::Onward, 1).expect("free");
    let batch = |etcd: &Etcd, direction| match archive.next(direction, &etcd.stand()) {
        Ok(Next::Exchange(exchange)) if exchange.writes.len() == EXCHANGE_WRITES_MAX => exchange,
        other => panic!("{other:?}"),
    };
    let onward = batch(&etcd, Direction::Onward);
    let mut meanwhile = etcd.clone();
    meanwhile.put("placements/063", "elsewhere");
    assert!(!meanwhile.exchange(&onward));
    assert!(etcd.exchange(&onward));
    let back = batch(&etcd, Direction::Back);
    let mut meanwhile = etcd.clone();
    meanwhile.put("placements/000", "elsewhere");
    assert!(!meanwhile.exchange(&back), "what was absent is there");
    assert!(etcd.exchange(&back));
}

#[test]
fn every_key_is_listed_with_what_becomes_of_it() {
    let (etcd, before) = cluster();
    let archive = archive(&etcd);
    let changes = archive.changes(Direction::Onward, &etcd.stand()).expect("free");
    let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(names, before.keys().map(String::as_str).collect::<Vec<_>>());
    let fate = |name: &str| changes.iter().find(|change| change.name == name).map(|change| &change.fate);
    assert_eq!(fate(FORMAT), Some(&Fate::Replaced(expected()[FORMAT].clone().into_bytes())));
    assert_eq!(fate("placements/000"), Some(&Fate::Removed));
    assert!(matches!(fate("epochs/a"), Some(Fate::Stays(_))));
    let removed = changes.iter().filter(|change| change.fate == Fate::Removed).count();
    assert_eq!(removed, 150);
}

#[test]
fn what_cannot_be_moved_is_said() {
    let of = |keys: &[(&str, &str)]| Archive::of("test", &Etcd::holding(keys).stand(), [9; 16], DRAFT);
    assert_eq!(of(&[]), Err(Obstacle::NoFormat));
    let ours = expected()[FORMAT].clone();
    assert_eq!(of(&[(FORMAT, &ours)]), Err(Obstacle::Current));
    assert_eq!(of(&[(FORMAT, "old"), ("epochs/a", "V")]), Err(Obstacle::Epoch("epochs/a".to_owned())));
    let marked = "migration 08080808-0808-0808-0808-080808080808\n";
    assert!(matches!(of(&[(FORMAT, marked)]), Err(Obstacle::UnderWay(_))));
    // Without an identity in the old format the draft is taken.
    let archive = of(&[(FORMAT, "old")]).expect("free");
    assert_eq!(Format::decode(&archive.format), Ok(Format { cluster: DRAFT }));
    for (format, is_under_way) in [("another", false), (marked, true)] {
        let stand = Etcd::holding(&[(FORMAT, format)]).stand();
        for direction in [Direction::Onward, Direction::Back] {
            let refused = archive.next(direction, &stand).expect_err("not of this archive");
            assert_eq!(matches!(refused, Obstacle::UnderWay(_)), is_under_way, "{refused}");
        }
    }
}
