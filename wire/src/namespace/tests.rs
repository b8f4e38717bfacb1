//! The namespace hash against a second, hand-written encoder and against constants that were computed
//! by another implementation of SHA-256; and the text form, both ways.

use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;

const GROUPS: [GroupIdentity; 2] = [
    GroupIdentity { group: GroupId(0), kind: GroupKind::Full, block_bytes: 65_536 },
    GroupIdentity {
        group: GroupId(1),
        kind: GroupKind::Sliding { window_tokens: 1_024 },
        block_bytes: 32_768,
    },
];

const BASE: NamespaceIdentity<'static> = NamespaceIdentity {
    model: "meta-llama/Llama-3.1-8B",
    weights_revision: "d04e592",
    adapter: "",
    computation: "fa3",
    dtype: "bfloat16",
    layout: "nhd",
    block_tokens: 16,
    hash_algorithm: "sha256_cbor",
    hash_bytes: 32,
    hash_seed: b"0",
    rank_invariant: false,
    tp_rank: 1,
    tp_size: 4,
    pp_rank: 0,
    pp_size: 1,
    groups: &GROUPS,
};

/// `(kind, window, sink, interval)` spelled out once more, on purpose not through `numbers()`.
fn spelled(kind: GroupKind) -> (u8, u32, u32, u32) {
    match kind {
        GroupKind::Full => (0, 0, 0, 0),
        GroupKind::Sliding { window_tokens } => (1, window_tokens, 0, 0),
        GroupKind::Checkpoint { interval_tokens } => (2, 0, 0, interval_tokens),
        GroupKind::SinkSliding { sink_tokens, window_tokens } => (3, window_tokens, sink_tokens, 0),
    }
}

/// The encoding by hand, from the module's text.
fn encoded(identity: &NamespaceIdentity<'_>) -> Vec<u8> {
    fn field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
        out.push(tag);
        out.extend((value.len() as u32).to_le_bytes());
        out.extend(value);
    }
    let mut out = Vec::new();
    out.extend([17, 0, 0, 0]);
    out.extend(b"orbitkv/namespace");
    out.extend([2, 0]);
    field(&mut out, 1, identity.model.as_bytes());
    field(&mut out, 2, identity.weights_revision.as_bytes());
    field(&mut out, 3, identity.adapter.as_bytes());
    field(&mut out, 4, identity.computation.as_bytes());
    field(&mut out, 5, identity.dtype.as_bytes());
    field(&mut out, 6, identity.layout.as_bytes());
    field(&mut out, 7, &identity.block_tokens.to_le_bytes());
    field(&mut out, 8, identity.hash_algorithm.as_bytes());
    field(&mut out, 9, &[identity.hash_bytes]);
    field(&mut out, 10, identity.hash_seed);
    if identity.rank_invariant {
        field(&mut out, 11, &[1]);
        field(&mut out, 12, &[0; 4]);
        field(&mut out, 13, &[0; 4]);
    } else {
        field(&mut out, 11, &[0]);
        field(&mut out, 12, &identity.tp_rank.to_le_bytes());
        field(&mut out, 13, &identity.tp_size.to_le_bytes());
    }
    field(&mut out, 14, &identity.pp_rank.to_le_bytes());
    field(&mut out, 15, &identity.pp_size.to_le_bytes());
    let mut groups: Vec<_> =
        identity.groups.iter().map(|group| (group.group.0, spelled(group.kind), group.block_bytes)).collect();
    groups.sort();
    let mut value = (groups.len() as u32).to_le_bytes().to_vec();
    for (id, (kind, window, sink, interval), block_bytes) in groups {
        value.extend(id.to_le_bytes());
        value.push(kind);
        for number in [window, sink, interval] {
            value.extend(number.to_le_bytes());
        }
        value.extend(block_bytes.to_le_bytes());
    }
    field(&mut out, 16, &value);
    out
}

#[test]
fn golden_vectors() {
    let hybrid = [
        GroupIdentity {
            group: GroupId(3),
            kind: GroupKind::SinkSliding { sink_tokens: 4, window_tokens: 4_096 },
            block_bytes: 8_192,
        },
        GroupIdentity {
            group: GroupId(2),
            kind: GroupKind::Checkpoint { interval_tokens: 512 },
            block_bytes: 1 << 33,
        },
    ];
    let invariant = NamespaceIdentity {
        adapter: "sql-lora",
        hash_algorithm: "xxh3_64",
        hash_bytes: 8,
        hash_seed: b"",
        rank_invariant: true,
        tp_rank: 3,
        groups: &hybrid,
        ..BASE
    };
    let empty = NamespaceIdentity { model: "", groups: &[], ..BASE };
    for (identity, constant) in [(BASE, GOLDEN_BASE), (invariant, GOLDEN_INVARIANT), (empty, GOLDEN_EMPTY)] {
        let by_hand = NamespaceDigest(Sha256::digest(encoded(&identity)).into());
        assert_eq!(identity.digest(), by_hand, "the documented encoding");
        assert_eq!(identity.digest().to_string(), constant, "the constant");
    }
}

const GOLDEN_BASE: &str = "orbitkv:v2:d378ff9ee87cf9e50f46f2214874e7a8f413aa7a37a1f5da6b1e6fa324592fcd";
const GOLDEN_INVARIANT: &str = "orbitkv:v2:4eac204713180814a6dae75c843c48fc26940981972f3c6227393a066c136402";
const GOLDEN_EMPTY: &str = "orbitkv:v2:0abe16ddd199e29e64fb3bd83f20a6bf94739068c621a6883edb46329e92f20a";

#[test]
fn every_field_counts() {
    let mut variants = vec![BASE];
    macro_rules! variant {
        ($($field:ident: $value:expr),+) => { variants.push(NamespaceIdentity { $($field: $value),+, ..BASE }) };
    }
    variant!(model: "meta-llama/Llama-3.1-8");
    variant!(weights_revision: "d04e593");
    variant!(adapter: "x");
    variant!(computation: "fa2");
    variant!(dtype: "float16");
    variant!(layout: "hnd");
    variant!(block_tokens: 32);
    variant!(hash_algorithm: "sha256");
    variant!(hash_bytes: 16);
    variant!(hash_seed: b"1");
    variant!(hash_seed: b"");
    variant!(rank_invariant: true);
    variant!(tp_rank: 2);
    variant!(tp_size: 8);
    variant!(pp_rank: 1);
    variant!(pp_size: 2);
    variant!(groups: &GROUPS[..1]);
    variant!(groups: &[]);
    // The same bytes over a field boundary, and the same numbers under other kinds and ids.
    variant!(dtype: "bfloat16n", layout: "hd");
    variant!(tp_rank: 4, tp_size: 1);
    let full = GROUPS[0];
    let edited = [
        [GroupIdentity { group: GroupId(2), ..full }],
        [GroupIdentity { block_bytes: 65_537, ..full }],
        [GroupIdentity { kind: GroupKind::Sliding { window_tokens: 8 }, ..full }],
        [GroupIdentity { kind: GroupKind::Checkpoint { interval_tokens: 8 }, ..full }],
        [GroupIdentity { kind: GroupKind::SinkSliding { sink_tokens: 8, window_tokens: 8 }, ..full }],
        [GroupIdentity { kind: GroupKind::SinkSliding { sink_tokens: 9, window_tokens: 8 }, ..full }],
        [GroupIdentity { kind: GroupKind::SinkSliding { sink_tokens: 0, window_tokens: 8 }, ..full }],
    ];
    for groups in &edited {
        variants.push(NamespaceIdentity { groups, ..BASE });
    }
    for (index, left) in variants.iter().enumerate() {
        for right in &variants[..index] {
            assert_ne!(left.digest(), right.digest(), "{left:?} and {right:?}");
        }
    }
}

#[test]
fn rank_invariance_hides_only_the_tensor_parallel_rank_and_size() {
    let invariant = NamespaceIdentity { rank_invariant: true, ..BASE };
    let elsewhere = NamespaceIdentity { tp_rank: 7, tp_size: 8, ..invariant };
    assert_eq!(invariant.digest(), elsewhere.digest());
    assert_ne!(invariant.digest(), NamespaceIdentity { pp_size: 2, ..invariant }.digest());
    let zeros = NamespaceIdentity { tp_rank: 0, tp_size: 0, ..BASE };
    assert_ne!(invariant.digest(), zeros.digest(), "the flag itself is part of the identity");
}

#[test]
fn text_is_exact() {
    let text = BASE.digest().to_string();
    assert_eq!(text.len(), TEXT_BYTES);
    assert_eq!(text.parse::<NamespaceDigest>(), Ok(BASE.digest()));
    let with = |at: usize, byte: &str| format!("{}{byte}{}", &text[..at], &text[at + 1..]);
    for (wrong, error) in [
        (String::new(), ParseNamespaceError::Prefix),
        (text.to_uppercase(), ParseNamespaceError::Prefix),
        (text.replace("v2", "v1"), ParseNamespaceError::Prefix),
        (format!(" {text}"), ParseNamespaceError::Prefix),
        (format!("{text}\n"), ParseNamespaceError::Length { digits_bytes: 65 }),
        (format!("{text}0"), ParseNamespaceError::Length { digits_bytes: 65 }),
        (text[..TEXT_BYTES - 1].to_owned(), ParseNamespaceError::Length { digits_bytes: 63 }),
        (PREFIX.to_owned(), ParseNamespaceError::Length { digits_bytes: 0 }),
        (with(11, "A"), ParseNamespaceError::Digit { at: 11 }),
        (with(74, "g"), ParseNamespaceError::Digit { at: 74 }),
        (with(40, "-"), ParseNamespaceError::Digit { at: 40 }),
        (format!("{}é{}", &text[..20], &text[22..]), ParseNamespaceError::Digit { at: 20 }),
    ] {
        assert_eq!(wrong.parse::<NamespaceDigest>(), Err(error), "{wrong}");
    }
}

#[test]
fn kinds_with_stray_numbers_are_refused() {
    let numbers = |kind, window_tokens, sink_tokens, interval_tokens| GroupKindNumbers {
        kind,
        window_tokens,
        sink_tokens,
        interval_tokens,
    };
    assert_eq!(GroupKind::try_from(numbers(4, 0, 0, 0)), Err(GroupKindError::UnknownKind(4)));
    for (given, field) in [
        (numbers(0, 1, 0, 0), "window_tokens"),
        (numbers(1, 1, 1, 0), "sink_tokens"),
        (numbers(2, 0, 1, 1), "sink_tokens"),
        (numbers(3, 1, 1, 1), "interval_tokens"),
    ] {
        assert_eq!(GroupKind::try_from(given), Err(GroupKindError::Stray { kind: given.kind, field }));
    }
}

fn kinds() -> impl Strategy<Value = GroupKind> {
    prop_oneof![
        Just(GroupKind::Full),
        (0u32..3).prop_map(|window_tokens| GroupKind::Sliding { window_tokens }),
        (0u32..3).prop_map(|interval_tokens| GroupKind::Checkpoint { interval_tokens }),
        (0u32..3, 0u32..3)
            .prop_map(|(sink_tokens, window_tokens)| GroupKind::SinkSliding { sink_tokens, window_tokens }),
    ]
}

/// An owned identity over tiny alphabets, so that two draws are often equal.
#[derive(Clone, Debug, PartialEq)]
struct Owned {
    texts: Vec<String>,
    seed: Vec<u8>,
    numbers: Vec<u32>,
    rank_invariant: bool,
    groups: Vec<GroupIdentity>,
}

fn owned() -> impl Strategy<Value = Owned> {
    let group = (0u16..2, kinds(), 0u64..2).prop_map(|(id, kind, block_bytes)| GroupIdentity {
        group: GroupId(id),
        kind,
        block_bytes,
    });
    (
        proptest::collection::vec("[ab]{0,1}", 7),
        proptest::collection::vec(0u8..2, 0..2),
        proptest::collection::vec(0u32..2, 6),
        any::<bool>(),
        proptest::collection::vec(group, 0..3),
    )
        .prop_map(|(texts, seed, numbers, rank_invariant, groups)| Owned {
            texts,
            seed,
            numbers,
            rank_invariant,
            groups,
        })
}

impl Owned {
    fn identity(&self) -> NamespaceIdentity<'_> {
        NamespaceIdentity {
            model: &self.texts[0],
            weights_revision: &self.texts[1],
            adapter: &self.texts[2],
            computation: &self.texts[3],
            dtype: &self.texts[4],
            layout: &self.texts[5],
            block_tokens: self.numbers[0],
            hash_algorithm: &self.texts[6],
            hash_bytes: self.numbers[1] as u8,
            hash_seed: &self.seed,
            rank_invariant: self.rank_invariant,
            tp_rank: self.numbers[2],
            tp_size: self.numbers[3],
            pp_rank: self.numbers[4],
            pp_size: self.numbers[5],
            groups: &self.groups,
        }
    }

    /// What two identities must share to be one namespace.
    fn normalised(&self) -> Owned {
        let mut owned = self.clone();
        if owned.rank_invariant {
            owned.numbers[2] = 0;
            owned.numbers[3] = 0;
        }
        owned.groups.sort_by_key(|group| (group.group, spelled(group.kind), group.block_bytes));
        owned
    }
}

/// Two identities that are equal but for at most one edit.
fn near() -> impl Strategy<Value = (Owned, Owned)> {
    (owned(), owned(), 0usize..19).prop_map(|(left, other, edit)| {
        let mut right = left.clone();
        match edit {
            0..7 => right.texts[edit] = other.texts[edit].clone(),
            7..13 => right.numbers[edit - 7] = other.numbers[edit - 7],
            13 => right.seed = other.seed,
            14 => right.rank_invariant = other.rank_invariant,
            15 => right.groups = other.groups,
            16 => right.groups.reverse(),
            _ => right = other,
        }
        (left, right)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn equal_digests_are_equal_identities((left, right) in near()) {
        let by_hand: [u8; 32] = Sha256::digest(encoded(&left.identity())).into();
        prop_assert_eq!(left.identity().digest(), NamespaceDigest(by_hand));
        prop_assert_eq!(
            left.identity().digest() == right.identity().digest(),
            left.normalised() == right.normalised()
        );
    }

    #[test]
    fn text_and_digest_are_one_to_one(digest in any::<[u8; 32]>()) {
        let digest = NamespaceDigest(digest);
        prop_assert_eq!(digest.to_string().parse::<NamespaceDigest>(), Ok(digest));
    }

    #[test]
    fn kinds_survive_their_numbers(kind in kinds()) {
        prop_assert_eq!(GroupKind::try_from(kind.numbers()), Ok(kind));
        prop_assert_eq!(spelled(kind), {
            let numbers = kind.numbers();
            (numbers.kind, numbers.window_tokens, numbers.sink_tokens, numbers.interval_tokens)
        });
    }
}
