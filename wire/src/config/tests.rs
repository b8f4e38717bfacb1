use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;

fn settings(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn version(number: u64, pairs: &[(&str, &str)]) -> Version {
    Version { number, settings: settings(pairs) }
}

fn full() -> ConfigRecord {
    ConfigRecord {
        number: 9,
        stable: version(5, &[("breaker", "60"), ("coalesce", "1ms")]),
        staged: Some(Staged { version: version(8, &[("coalesce", "3ms")]), share: 25 }),
        former: Some(version(0, &[])),
    }
}

const FULL: &str = "schema orbitkv/config/v1\nrecord 9\nstable 5\nbreaker 60\ncoalesce 1ms\nstaged 8\nshare 25\ncoalesce 3ms\nformer 0\n";

#[test]
fn a_record_has_the_text_that_is_documented() {
    assert_eq!(full().encode(), FULL);
    assert_eq!(ConfigRecord::decode(FULL.as_bytes()), Ok(full()));
    let plain = ConfigRecord { staged: None, former: None, ..full() };
    assert_eq!(plain.encode(), FULL[..FULL.find("staged").expect("there")]);
    assert_eq!(ConfigRecord::decode(plain.encode().as_bytes()), Ok(plain));
}

#[test]
fn whatever_is_not_exactly_a_record_is_refused_by_name() {
    for (from, to, part) in [
        ("config/v1", "config/v2", "line 1 has to be `schema orbitkv/config/v1`"),
        ("record 9", "record 09", "line 2 has to be `record` and a number"),
        ("record 9", "record +9", "line 2"),
        ("record 9", "record 18446744073709551616", "line 2"),
        ("record 9", "record  9", "line 2"),
        ("record 9\n", "", "line 2"),
        ("record 9", "record 0", "the first record is record 1"),
        ("record 9", "record 9223372036854775808", "no record has a number above 9223372036854775807"),
        ("record 9", "record 7", "no version is newer than the record"),
        ("stable 5\n", "", "line 3 has to be `stable`"),
        ("stable 5", "stable 8", "a number of its own"),
        ("stable 5\nbreaker 60\ncoalesce 1ms", "stable 0\nbreaker 60", "version 0 sets nothing"),
        ("breaker 60\n", "breaker\n", "line 4 has to be the end"),
        ("breaker 60", "Breaker 60", "line 4, setting `Breaker`: a name is 1 to 24 bytes"),
        ("breaker 60", "b\u{7}reaker 60", "line 4, setting `b\\u{7}reaker`"),
        ("breaker 60", &format!("{} 60", "b".repeat(25)), "a name is 1 to 24 bytes"),
        ("breaker 60", "breaker ", "a value is 1 to 32 visible"),
        ("breaker 60", "breaker 6 0", "a value is 1 to 32 visible"),
        ("breaker 60", &format!("breaker {}", "6".repeat(33)), "a value is 1 to 32 visible"),
        (
            "breaker 60\n",
            "breaker 60\nbreaker 60\n",
            "line 5, setting `breaker`: settings stand in the order",
        ),
        ("breaker 60\ncoalesce 1ms", "coalesce 1ms\nbreaker 60", "settings stand in the order"),
        ("share 25", "share 0", "1 to 99 percent"),
        ("share 25", "share 100", "1 to 99 percent"),
        ("share 25\n", "", "line 7 has to be `share`"),
        ("staged 8", "staged 0", "version 0 sets nothing"),
        ("former 0\n", "former 0\nbreaker 1\n", "version 0 sets nothing"),
        ("former 0\n", "former 0\nstaged 7\n", "line 10 has to be the end"),
        ("former 0\n", "former 0", "line 9"),
        ("former 0\n", "former 0\n\n", "line 10"),
    ] {
        let bad = FULL.replacen(from, to, 1);
        assert_ne!(bad, FULL, "{from}");
        let error = ConfigRecord::decode(bad.as_bytes()).expect_err(to).to_string();
        assert!(error.contains(part), "{to:?}: {error}");
    }
    let staged_zero =
        FULL.replace("former 0\n", "").replace("staged 8", "staged 0").replace("coalesce 3ms\n", "");
    let error = ConfigRecord::decode(staged_zero.as_bytes()).expect_err("no number").to_string();
    assert!(error.contains("a number from 1 on"), "{error}");
    assert_eq!(ConfigRecord::decode(b"\xff"), Err(ConfigError::NotText));
    let long = FULL.to_owned() + &"x".repeat(CONFIG_RECORD_BYTES_MAX);
    let error = ConfigRecord::decode(long.as_bytes()).expect_err("long").to_string();
    assert!(error.contains("at most 4096") && error.contains("set fewer"), "{error}");
    let many: String = (0..=CONFIG_SETTINGS_MAX).map(|number| format!("s{number:02} 1\n")).collect();
    let error = ConfigRecord::decode(FULL.replace("breaker 60\ncoalesce 1ms\n", &many).as_bytes());
    assert!(error.expect_err("too many").to_string().contains("at most 20 settings"));
}

fn cluster(name: &str) -> NodeId {
    name.parse().expect("legal")
}

#[test]
fn a_copy_shows_every_damage() {
    let ours = cluster("prod");
    let sealed = seal(&full(), ours);
    assert_eq!(unseal(sealed.as_bytes(), ours), Ok(full()));
    assert!(sealed.len() <= SEALED_BYTES_MAX && sealed.ends_with(&format!("\ncluster prod\n{FULL}")));
    for at in 0..sealed.len() {
        for bit in 0..8 {
            let mut bytes = sealed.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            assert_eq!(unseal(&bytes, ours), Err(CopyError::Damaged), "bit {bit} of byte {at}");
        }
        assert_eq!(unseal(&sealed.as_bytes()[..at], ours), Err(CopyError::Damaged), "cut at {at}");
    }
    // Whole copies of something that is no record, as a later version may write one, or of no cluster.
    let whole = |text: &str| format!("sum {}\n{text}", sum(text.as_bytes()));
    let later = whole(&format!("cluster prod\n{}", FULL.replace("/v1", "/v2")));
    let error = unseal(later.as_bytes(), ours);
    assert!(matches!(error, Err(CopyError::Record(ConfigError::Line { line: 1, .. }))));
    for nobodys in [FULL, "cluster prod", "cluster Prod\n", "cluster \n", ""] {
        assert_eq!(unseal(whole(nobodys).as_bytes(), ours), Err(CopyError::Damaged), "{nobodys}");
    }
}

#[test]
fn a_copy_is_of_one_cluster() {
    let (ours, theirs) = (cluster("test"), cluster(&"x".repeat(64)));
    let sealed = seal(&full(), theirs);
    assert_eq!(unseal(sealed.as_bytes(), theirs), Ok(full()));
    let error = unseal(sealed.as_bytes(), ours).expect_err("somebody else's");
    assert_eq!(error, CopyError::Cluster { names: Box::new([theirs, ours]) });
    assert!(error.to_string().ends_with("x, and this node is started for test"), "{error}");
}

/// The bytes that are hashed, written down by hand.
fn framed(domain: &str, field: &[u8]) -> [u8; 32] {
    let mut bytes = Vec::new();
    bytes.extend((domain.len() as u32).to_le_bytes());
    bytes.extend(domain.as_bytes());
    bytes.extend([1, 0, 1]);
    bytes.extend((field.len() as u32).to_le_bytes());
    bytes.extend(field);
    Sha256::digest(&bytes).into()
}

#[test]
fn a_place_follows_from_the_name_alone() {
    for name in ["a", "host-7", &"x".repeat(64)] {
        let expected = framed("orbitkv.config-place", name.as_bytes());
        let expected = (0..8).fold(0u64, |sum, at| sum | u64::from(expected[at]) << (8 * at));
        assert_eq!(place_hash(name.parse().expect("legal")), expected, "{name}");
    }
    let expected: String =
        framed("orbitkv.config-copy", b"text").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(sum(b"text"), expected);
}

type Pairs = Vec<(String, String)>;

/// A record as lists of words, written and read by hand: a second encoder and a second decoder.
#[derive(Clone, Debug, PartialEq)]
struct Plain {
    number: u64,
    stable: (u64, Pairs),
    staged: Option<(u64, u32, Pairs)>,
    former: Option<(u64, Pairs)>,
}

impl Plain {
    fn write(&self) -> String {
        let mut lines = vec!["schema orbitkv/config/v1".to_owned(), format!("record {}", self.number)];
        let set = |lines: &mut Vec<String>, pairs: &[(String, String)]| {
            pairs.iter().for_each(|(name, value)| lines.push([name.as_str(), value.as_str()].join(" ")));
        };
        lines.push(format!("stable {}", self.stable.0));
        set(&mut lines, &self.stable.1);
        if let Some((number, share, pairs)) = &self.staged {
            lines.extend([format!("staged {number}"), format!("share {share}")]);
            set(&mut lines, pairs);
        }
        if let Some((number, pairs)) = &self.former {
            lines.push(format!("former {number}"));
            set(&mut lines, pairs);
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn of(record: &ConfigRecord) -> Plain {
        let pairs = |texts: &Texts| texts.clone().into_iter().collect::<Vec<_>>();
        Plain {
            number: record.number,
            stable: (record.stable.number, pairs(&record.stable.settings)),
            staged: record
                .staged
                .as_ref()
                .map(|staged| (staged.version.number, staged.share, pairs(&staged.version.settings))),
            former: record.former.as_ref().map(|former| (former.number, pairs(&former.settings))),
        }
    }
}

fn any_settings() -> impl Strategy<Value = Texts> {
    let name = "[a-z0-9-]{1,24}".prop_filter("no word of the record", |name| !WORDS.contains(&name.as_str()));
    prop::collection::btree_map(name, "[!-~]{1,32}", 0..CONFIG_SETTINGS_MAX)
}

prop_compose! {
    fn any_record()(
        numbers in prop::collection::btree_set(1u64..1_000, 3),
        above in 0u64..5,
        order in any::<bool>(),
        from_flags in any::<bool>(),
        stable in any_settings(),
        staged in prop::option::of((any_settings(), 1u32..100)),
        former in prop::option::of(any_settings()),
    ) -> ConfigRecord {
        let numbers: Vec<u64> = numbers.into_iter().collect();
        let (low, high) = if order { (numbers[0], numbers[1]) } else { (numbers[1], numbers[0]) };
        let former = former.map(|settings| match from_flags {
            true => Version::default(),
            false => Version { number: low, settings },
        });
        let staged = staged.map(|(settings, share)| {
            Staged { version: Version { number: numbers[2], settings }, share }
        });
        ConfigRecord { number: numbers[2] + above, stable: Version { number: high, settings: stable }, staged, former }
    }
}

proptest! {
    /// What is written is what a second encoder writes, and reads back as what it was.
    #[test]
    fn records_round_trip(record in any_record()) {
        prop_assert_eq!(record.check(), Ok(()));
        let text = record.encode();
        prop_assert_eq!(&text, &Plain::of(&record).write());
        prop_assert_eq!(ConfigRecord::decode(text.as_bytes()), Ok(record.clone()));
        let sealed = seal(&record, cluster("prod"));
        prop_assert!(sealed.len() <= SEALED_BYTES_MAX);
        prop_assert_eq!(unseal(sealed.as_bytes(), cluster("prod")), Ok(record));
    }

    /// No bytes make the decoder panic, and what it accepts is the one encoding.
    #[test]
    fn any_bytes(
        record in any_record(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = record.encode().into_bytes();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if cut.index(4) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(read) = ConfigRecord::decode(&bytes) {
            prop_assert_eq!(read.encode().into_bytes(), bytes.clone());
            prop_assert_eq!(Plain::of(&read).write().into_bytes(), bytes);
        }
    }
}
