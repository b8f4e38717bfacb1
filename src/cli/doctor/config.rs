//! What is wrong with the settings that a node takes while it runs.

use super::{Finding, Severity};
use crate::control::metadata::MetadataPage;

/// Time without a reading of the record from which that is worth a word: three readings are missing.
const UNREAD_MS_LONG: u64 = 90_000;

/// What of a page is about the operator's policy; nothing standalone.
pub(super) fn findings(page: &MetadataPage) -> Vec<Finding> {
    let config = &page.config;
    let mut found = Vec::new();
    let mut add = |severity, name, what: String, why, remedy: &str| {
        found.push(Finding { severity, name, what, why, remedy: remedy.to_owned() });
    };
    let holds = match config.version {
        0 => "what its flags say holds".to_owned(),
        version => format!("version {version} holds, from {}", config.origin),
    };
    if !config.refused.is_empty() {
        add(
            Severity::Fault,
            "config-refused",
            format!("the record of settings in etcd is not taken: {}; {holds}", config.refused),
            "this node does not follow the operator's settings; nothing of such a record is used",
            "`orbitkv config set` makes records that are taken; remove one that was written by hand, and bring all nodes \
             to one version; with `--above` where etcd was restored from an old copy or has lost the record",
        );
    }
    if config.unread_ms >= UNREAD_MS_LONG {
        let seconds = config.unread_ms / 1_000;
        add(
            Severity::Notice,
            "config-behind",
            format!("the record of settings was not read for {seconds} s: {}; {holds}", config.unread),
            "changes of settings do not reach this node",
            "see that the members of etcd run and are reached from here; it follows by itself then",
        );
    }
    let behind = page.shards.iter().filter(|shard| shard.config_version != config.version);
    let behind: Vec<String> =
        behind.map(|shard| format!("{} ({})", shard.shard, shard.config_version)).collect();
    if !behind.is_empty() {
        add(
            Severity::Notice,
            "config-on-its-way",
            format!(
                "version {} of the settings does not hold yet on cores {}",
                config.version,
                behind.join(", ")
            ),
            "a core takes settings between two turns",
            "nothing, if it is gone at the next look; else see `stalls`",
        );
    }
    if !config.copy.is_empty() {
        add(
            Severity::Notice,
            "config-copy",
            format!("the copy of the last good settings: {}", config.copy),
            "a start while etcd is away begins with what the copy has, or with what the flags say if it cannot be used",
            "keep others out of --data-dir, and look at its file system; the copy is written as soon as that can be",
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::tests::check_sentences;
    use crate::control::report::ShardReport;

    #[test]
    fn each_trouble_with_settings_has_its_own_finding() {
        type Change = fn(&mut MetadataPage);
        let table: [(Change, &[(&str, Severity)]); 7] = [
            (|_| {}, &[]),
            (|p| p.config.refused = "line 1".to_owned(), &[("config-refused", Severity::Fault)]),
            (|p| (p.config.version, p.shards[0].config_version) = (7, 7), &[]),
            (
                |p| (p.config.version, p.shards[0].config_version) = (7, 5),
                &[("config-on-its-way", Severity::Notice)],
            ),
            (|p| (p.config.unread, p.config.unread_ms) = ("silent".to_owned(), 89_999), &[]),
            (
                |p| (p.config.unread, p.config.unread_ms) = ("silent".to_owned(), 90_000),
                &[("config-behind", Severity::Notice)],
            ),
            (|p| p.config.copy = "damaged".to_owned(), &[("config-copy", Severity::Notice)]),
        ];
        for (change, expected) in table {
            let mut page = MetadataPage { shards: vec![ShardReport::default()], ..MetadataPage::default() };
            change(&mut page);
            let found = findings(&page);
            check_sentences(&found);
            let names: Vec<_> = found.iter().map(|finding| (finding.name, finding.severity)).collect();
            assert_eq!(names, expected);
        }
    }
}
