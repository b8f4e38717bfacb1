//! `orbitkv namespaces --derive`: the namespace that an engine with these properties registers, so that
//! nobody types 64 hex digits. The bounds are those of the Register frame: what could never be
//! registered is not derived.

use std::str::FromStr;

use clap::Args;
use orbitkv_wire::bounds::{BLOCK_HASH_BYTES, GROUPS_MAX};
use orbitkv_wire::identity::{GroupId, NamespaceDigest};
use orbitkv_wire::namespace::{GroupIdentity, GroupKind, NamespaceIdentity};
use orbitkv_wire::text::Text;

use crate::quantity::ByteSize;

/// The properties that make bytes interchangeable, as flags.
#[derive(Clone, Debug, Default, Args)]
#[group(requires = "derive")]
pub struct DeriveArgs {
    /// Model, as the engine names it
    #[arg(long, value_name = "NAME", help_heading = "Derive")]
    model: Option<String>,
    /// Revision of the weights
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, help_heading = "Derive")]
    weights_revision: String,
    /// Adapter (LoRA); left out for none
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true, help_heading = "Derive")]
    adapter: String,
    /// What else changes the computed values, such as the attention backend
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, help_heading = "Derive")]
    computation: String,
    /// Element type of the cache, e.g. bfloat16
    #[arg(long, value_name = "TYPE", help_heading = "Derive")]
    dtype: Option<String>,
    /// Memory layout of a block, as the engine names it
    #[arg(long, value_name = "TEXT", help_heading = "Derive")]
    layout: Option<String>,
    /// Tokens of a block
    #[arg(long, value_name = "N", help_heading = "Derive")]
    block_tokens: Option<u32>,
    /// Algorithm of the block hash, as the engine names it
    #[arg(long, value_name = "NAME", help_heading = "Derive")]
    hash_algorithm: Option<String>,
    /// Bytes of the block hash, 1 to 32
    #[arg(long, value_name = "N", default_value_t = 32, help_heading = "Derive")]
    hash_bytes: u8,
    /// Seed of the block hash; left out for none
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, help_heading = "Derive")]
    hash_seed: String,
    /// The bytes do not depend on the tensor-parallel rank
    #[arg(long, conflicts_with_all = ["tp_rank", "tp_size"], help_heading = "Derive")]
    rank_invariant: bool,
    /// Tensor-parallel rank
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Derive")]
    tp_rank: u32,
    /// Tensor-parallel world size
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Derive")]
    tp_size: u32,
    /// Pipeline-parallel rank
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Derive")]
    pp_rank: u32,
    /// Pipeline-parallel world size
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Derive")]
    pp_size: u32,
    /// Layer group as ID:KIND:BLOCK-BYTES (repeatable). KIND is full, sliding=TOKENS,
    /// checkpoint=TOKENS or sink=TOKENS+TOKENS (sink, then window), e.g. 0:full:2mib
    #[arg(long, value_name = "GROUP", help_heading = "Derive")]
    group: Vec<GroupFlag>,
}

/// A layer group as written on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFlag(GroupIdentity);

fn kind_of(text: &str) -> Option<GroupKind> {
    let tokens = |text: &str| text.parse::<u32>().ok().filter(|tokens| *tokens > 0);
    let kind = match text.split_once('=') {
        None if text == "full" => GroupKind::Full,
        Some(("sliding", window)) => GroupKind::Sliding { window_tokens: tokens(window)? },
        Some(("checkpoint", interval)) => GroupKind::Checkpoint { interval_tokens: tokens(interval)? },
        Some(("sink", both)) => {
            let (sink, window) = both.split_once('+')?;
            GroupKind::SinkSliding { sink_tokens: tokens(sink)?, window_tokens: tokens(window)? }
        }
        _ => return None,
    };
    Some(kind)
}

impl FromStr for GroupFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<GroupFlag, String> {
        let refuse = || {
            format!("`{text}` is not ID:KIND:BLOCK-BYTES; write it like 0:full:2mib or 1:sliding=4096:64kib")
        };
        let mut parts = text.splitn(3, ':');
        let (id, kind, bytes) = match (parts.next(), parts.next(), parts.next()) {
            (Some(id), Some(kind), Some(bytes)) => (id, kind, bytes),
            _ => return Err(refuse()),
        };
        let group = GroupId(id.parse().map_err(|_| refuse())?);
        let bytes = bytes.parse::<ByteSize>().map_err(|error| error.to_string())?;
        match (kind_of(kind), bytes.0) {
            (Some(kind), 1..) => Ok(GroupFlag(GroupIdentity { group, kind, block_bytes: bytes.0 })),
            _ => Err(refuse()),
        }
    }
}

/// A text of at most `N` bytes.
fn within<'a, const N: usize>(flag: &str, text: &'a str) -> Result<&'a str, String> {
    Text::<N>::new(text).map(|_| text).map_err(|error| format!("--{flag}: {error}; shorten it"))
}

fn needed<'a, T: ?Sized>(flag: &str, value: Option<&'a T>) -> Result<&'a T, String> {
    value.ok_or_else(|| format!("--derive needs --{flag}: it is part of what makes bytes interchangeable"))
}

fn rank(name: &str, rank: u32, size: u32) -> Result<(), String> {
    match rank < size {
        true => Ok(()),
        false => Err(format!("--{name}-rank {rank}: must be below --{name}-size {size}; ranks start at 0")),
    }
}

impl DeriveArgs {
    /// The namespace of these properties.
    ///
    /// # Errors
    /// What is missing or out of bounds, by flag.
    pub fn digest(&self) -> Result<NamespaceDigest, String> {
        rank("tp", self.tp_rank, self.tp_size)?;
        rank("pp", self.pp_rank, self.pp_size)?;
        let block_tokens = *needed("block-tokens", self.block_tokens.as_ref())?;
        if block_tokens == 0 {
            return Err("--block-tokens 0: must be at least 1; give the engine's block size".to_owned());
        }
        if !(1..=BLOCK_HASH_BYTES).contains(&usize::from(self.hash_bytes)) {
            return Err(format!("--hash-bytes {}: must be 1 to {BLOCK_HASH_BYTES}", self.hash_bytes));
        }
        let groups: Vec<GroupIdentity> = self.group.iter().map(|flag| flag.0).collect();
        if groups.is_empty() || groups.len() > GROUPS_MAX {
            return Err(format!(
                "--derive needs 1 to {GROUPS_MAX} groups; write one like --group 0:full:2mib"
            ));
        }
        if let Some(twice) = groups.iter().enumerate().find_map(|(index, group)| {
            groups[..index].iter().any(|other| other.group == group.group).then_some(group.group.0)
        }) {
            return Err(format!("--group {twice}: is given twice; give each group once"));
        }
        let identity = NamespaceIdentity {
            model: within::<256>("model", needed("model", self.model.as_deref())?)?,
            weights_revision: within::<128>("weights-revision", &self.weights_revision)?,
            adapter: within::<256>("adapter", &self.adapter)?,
            computation: within::<128>("computation", &self.computation)?,
            dtype: within::<32>("dtype", needed("dtype", self.dtype.as_deref())?)?,
            layout: within::<128>("layout", needed("layout", self.layout.as_deref())?)?,
            block_tokens,
            hash_algorithm: within::<32>(
                "hash-algorithm",
                needed("hash-algorithm", self.hash_algorithm.as_deref())?,
            )?,
            hash_bytes: self.hash_bytes,
            hash_seed: within::<64>("hash-seed", &self.hash_seed)?.as_bytes(),
            rank_invariant: self.rank_invariant,
            tp_rank: self.tp_rank,
            tp_size: self.tp_size,
            pp_rank: self.pp_rank,
            pp_size: self.pp_size,
            groups: &groups,
        };
        Ok(identity.digest())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command};

    const WHOLE: [&str; 7] = [
        "--model=m",
        "--dtype=bfloat16",
        "--layout=kv",
        "--block-tokens=16",
        "--hash-algorithm=sha256",
        "--group=0:full:2mib",
        "--group=1:sliding=4096:64kib",
    ];

    fn derive(flags: &[&str]) -> Result<String, String> {
        let line = [&["orbitkv", "namespaces", "--derive"], flags].concat();
        match Cli::try_parse_from(line).map_err(|error| error.to_string())?.command {
            Command::Namespaces(args) => args.derive_from.digest().map(|digest| digest.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn with(flags: &[&str]) -> Result<String, String> {
        derive(&[&WHOLE, flags].concat())
    }

    #[test]
    fn every_property_makes_another_namespace() {
        let plain = with(&[]).expect("a namespace");
        assert!(plain.starts_with("orbitkv:v2:") && plain.len() == 75);
        assert_eq!(with(&[]), Ok(plain.clone()));
        let mut seen = vec![plain];
        for flags in [
            &["--weights-revision=r"][..],
            &["--adapter=a"],
            &["--computation=c"],
            &["--hash-bytes=16"],
            &["--hash-seed=s"],
            &["--rank-invariant"],
            &["--tp-size=2"],
            &["--tp-size=2", "--tp-rank=1"],
            &["--pp-size=2"],
            &["--group=2:checkpoint=1024:4096"],
            &["--group=2:sink=4+1024:4096"],
        ] {
            let namespace = with(flags).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
            assert!(!seen.contains(&namespace), "{flags:?} changes nothing");
            seen.push(namespace);
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (index, flag) in WHOLE.iter().enumerate().take(5) {
            let rest = [&WHOLE[..index], &WHOLE[index + 1..]].concat();
            let name = flag.split('=').next().expect("a flag");
            let error = derive(&rest).expect_err(name);
            assert!(error.contains(name), "{error}");
        }
        assert!(derive(&WHOLE[..5]).expect_err("no group").contains("--group 0:full:2mib"));
        let long = format!("--weights-revision={}", "x".repeat(129));
        for (flags, says) in [
            (&["--tp-rank=1"][..], "--tp-rank 1"),
            (&["--hash-bytes=33"], "--hash-bytes 33"),
            (&["--group=0:full:1"], "given twice"),
            (&["--group=3:sliding:1"], "`3:sliding:1`"),
            (&["--group=3:sliding=0:1"], "3:sliding=0:1"),
            (&["--group=3:full:0"], "`3:full:0`"),
            (&["--group=70000:full:1"], "70000"),
            (&["--rank-invariant", "--tp-size=2"], "cannot be used with"),
            (&[long.as_str()], "--weights-revision: 129 bytes"),
        ] {
            let error = with(flags).expect_err(says);
            assert!(error.contains(says), "{error} lacks {says}");
        }
        let without =
            Cli::try_parse_from(["orbitkv", "namespaces", "--model=m"]).expect_err("refused").to_string();
        assert!(without.contains("--derive"), "{without}");
    }
}
