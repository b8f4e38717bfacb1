//! The record of settings and the nodes of a cluster, as tables and as JSON.

use std::collections::BTreeSet;

use orbitkv_shards::membership::cluster_of;
use orbitkv_shards::membership::coordinator::Snapshot;
use orbitkv_shards::resilience::configuration::Rollout;
use orbitkv_wire::config::{ConfigRecord, PLACES, Staged, Version, place_hash};
use orbitkv_wire::identity::NodeId;
use orbitkv_wire::membership::{Key, MemberRecord};
use serde_json::{Value, json};

use crate::cli::cluster_keys::Refusal;
use crate::cli::http_client::HttpClient;
use crate::cli::table::{Table, UNKNOWN};
use crate::control::metadata::MetadataPage;
use crate::settings::rollouts;

/// A node, and which version is for it.
pub(super) struct Row {
    name: String,
    /// Its place among a hundred.
    place: u32,
    /// The version that is for it.
    wanted: u64,
    /// The version that it runs, if it was asked.
    runs: Option<u64>,
    /// What there is to say.
    state: String,
}

/// What a node's page says of itself, or why there is none.
pub(super) type Sight = Result<MetadataPage, Refusal>;

/// Asks a node for its page.
pub(super) fn look(client: &HttpClient) -> Sight {
    let page = client.get_as::<MetadataPage>("/cache/metadata").map(|(page, _)| page);
    page.map_err(|error| Refusal(error.exit(), format!("--nodes {}: {error}", client.address())))
}

/// Who is a member.
fn members(snapshot: &Snapshot) -> Vec<NodeId> {
    snapshot
        .members()
        .filter_map(|entry| MemberRecord::decode(&entry.value).ok())
        .map(|member| member.node)
        .collect()
}

/// A row for each member, and for each other node that was asked.
pub(super) fn nodes(record: Option<&ConfigRecord>, snapshot: &Snapshot, sights: &[Sight]) -> Vec<Row> {
    let format = snapshot.get(Key::Format).and_then(|format| cluster_of(format, None).ok());
    let cluster = format.map(|cluster| cluster.to_string());
    let mut pages: Vec<&MetadataPage> = sights.iter().filter_map(|sight| sight.as_ref().ok()).collect();
    // A node of another cluster may have the name of one of ours.
    pages.sort_by_key(|page| page.cluster != cluster);
    let asked = pages.iter().filter_map(|page| page.identity.node_id.parse().ok());
    let names: BTreeSet<NodeId> = members(snapshot).into_iter().chain(asked).collect();
    let published = record.and_then(|record| rollouts(record).ok());
    let row = |node: NodeId| {
        let place = Rollout::place(place_hash(node), PLACES);
        let wanted = published.as_ref().map_or(0, |published| published.target(place).0);
        let page = pages.iter().find(|page| page.identity.node_id == node.as_str());
        let state = match page {
            None if sights.is_empty() => String::new(),
            None => "not asked".to_owned(),
            Some(page) => state(page, cluster.as_deref(), wanted),
        };
        Row { name: node.to_string(), place, wanted, runs: page.map(|page| page.config.version), state }
    };
    names.into_iter().map(row).collect()
}

fn state(page: &MetadataPage, cluster: Option<&str>, wanted: u64) -> String {
    let config = &page.config;
    if page.standalone {
        return "standalone: follows no record".to_owned();
    }
    // While it has joined none, it says none.
    if let Some(other) = page.cluster.as_deref().filter(|theirs| Some(*theirs) != cluster) {
        return format!("of another cluster, {other}: follows the record there");
    }
    if !config.refused.is_empty() {
        return format!("refused: {}", config.refused);
    }
    let is_everywhere = page.shards.iter().all(|shard| shard.config_version == config.version);
    match (config.version == wanted, is_everywhere) {
        (true, true) => format!("in force, from {}", config.origin),
        (true, false) => "on its way to the cores".to_owned(),
        (false, _) if !config.unread.is_empty() => format!("behind: {}", config.unread),
        (false, _) => "behind".to_owned(),
    }
}

/// For people.
pub(super) fn screen(record: Option<&ConfigRecord>, nodes: &[Row]) -> String {
    let Some(record) = record else {
        return format!("no record: every node does what its flags say\n\n{}", node_table(nodes));
    };
    let mut versions = vec![("stable".to_owned(), &record.stable)];
    let stable = record.stable.number;
    let whom = match &record.staged {
        None => format!("version {stable} for all nodes"),
        Some(Staged { version, share }) => {
            versions.push(("staged".to_owned(), version));
            let here = nodes.iter().filter(|node| node.wanted == version.number).count();
            let (number, all) = (version.number, nodes.len());
            format!(
                "version {number} for places below {share} of {PLACES}, {here} of these {all} nodes; version {stable} for all others"
            )
        }
    };
    let title = format!("record {}: {whom}", record.number);
    if let Some(former) = &record.former {
        versions.push(("former".to_owned(), former));
    }
    let names: BTreeSet<&String> = versions.iter().flat_map(|(_, version)| version.settings.keys()).collect();
    let heading = versions.iter().map(|(word, version)| format!("{word} {}", version.number));
    let mut table = Table::with_heading(["setting".to_owned()].into_iter().chain(heading).collect());
    let value = |version: &Version, name: &String| {
        version.settings.get(name).cloned().unwrap_or_else(|| UNKNOWN.to_owned())
    };
    for name in names {
        let values = versions.iter().map(|(_, version)| value(version, name));
        table.row([name.clone()].into_iter().chain(values));
    }
    format!("{title}\n\n{table}\n\n{}", node_table(nodes))
}

fn node_table(nodes: &[Row]) -> String {
    if nodes.is_empty() {
        return "no node is a member".to_owned();
    }
    let mut table = Table::new(["node", "place", "version", "runs", "state"]);
    for Row { name, place, wanted, runs, state } in nodes {
        let runs = runs.map_or_else(|| UNKNOWN.to_owned(), |version| version.to_string());
        table.row([name.clone(), place.to_string(), wanted.to_string(), runs, state.clone()]);
    }
    table.to_string()
}

/// For programs.
pub(super) fn document(record: Option<&ConfigRecord>, nodes: &[Row]) -> Value {
    let version = |version: &Version| json!({"version": version.number, "settings": version.settings});
    let staged = record.and_then(|record| record.staged.as_ref());
    let nodes: Vec<Value> = nodes
        .iter()
        .map(|Row { name, place, wanted, runs, state }| {
            json!({"node_id": name, "place": place, "version": wanted, "runs": runs, "state": state})
        })
        .collect();
    json!({
        "record": record.map_or(0, |record| record.number),
        "stable": record.map(|record| version(&record.stable)),
        "staged": staged.map(|staged| version(&staged.version)),
        "share": staged.map(|staged| staged.share),
        "former": record.and_then(|record| record.former.as_ref()).map(version),
        "nodes": nodes,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_node_that_refuses_ends_the_command_as_elsewhere() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let node = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            let _ = stream.read(&mut [0; 1024]).expect("a question");
            let body = r#"{"error":"refused","reason":"whom do you mean"}"#;
            write!(stream, "HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                .expect("told");
        });
        let client = HttpClient::given_with("--nodes", &address).expect("an address");
        let Refusal(exit, why) = look(&client).expect_err("refused");
        assert_eq!(
            (exit, why),
            (Exit::Usage, format!("--nodes {address}: the node refused (403 refused): whom do you mean"))
        );
        node.join().expect("no panics");
    }

    #[test]
    fn a_node_that_follows_another_record_says_so() {
        let page = |cluster: Option<&str>, standalone: bool| MetadataPage {
            cluster: cluster.map(str::to_owned),
            standalone,
            ..MetadataPage::default()
        };
        for (page, said) in [
            (page(None, true), "standalone: follows no record"),
            (page(Some("theirs"), false), "of another cluster, theirs: follows the record there"),
            (page(Some("ours"), false), "behind"),
            (page(None, false), "behind"),
        ] {
            assert_eq!(state(&page, Some("ours"), 7), said);
        }
    }
}
