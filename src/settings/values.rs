//! Values of settings that are neither sizes nor durations: core lists, the HTTP address, the node id.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use orbitkv_native::affinity::{self, CoreListError};
use orbitkv_wire::bounds::NODE_ID_BYTES_MAX;
use orbitkv_wire::identity::NodeId;
use serde::de::{self, Deserialize, Deserializer};

/// Cores as an operator lists them, in that order: `0,2-5`. Duplicates are kept, to be refused with
/// the setting's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreList(pub Vec<usize>);

/// Where the HTTP API listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpBind {
    /// Nowhere; the node is then seen only through its engine socket.
    Off,
    /// On this address; port 0 picks a free one.
    At(SocketAddr),
}

impl FromStr for CoreList {
    type Err = CoreListError;

    fn from_str(text: &str) -> Result<CoreList, CoreListError> {
        affinity::parse_core_list(text).map(CoreList)
    }
}

/// Ascending runs are written as ranges, so that a listing of many cores stays readable.
impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&affinity::format_core_list(&self.0))
    }
}

impl FromStr for HttpBind {
    type Err = String;

    fn from_str(text: &str) -> Result<HttpBind, String> {
        if text.eq_ignore_ascii_case("off") {
            return Ok(HttpBind::Off);
        }
        let numeric = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        let refuse = |_| format!("`{text}` is not an address; write it like 127.0.0.1:7070, [::1]:0 or off");
        numeric.parse().map(HttpBind::At).map_err(refuse)
    }
}

impl fmt::Display for HttpBind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpBind::Off => f.write_str("off"),
            HttpBind::At(address) => address.fmt(f),
        }
    }
}

/// Whether `text` may name a node: 1 to 64 bytes of `[a-z0-9-]`.
#[must_use]
pub fn is_node_id(text: &str) -> bool {
    NodeId::new(text).is_ok()
}

/// A host name as a node id: lower case, what is illegal becomes `-`; `local` if nothing is left.
#[must_use]
pub fn node_id_of_host(host: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = host.trim().chars().map(legal).take(NODE_ID_BYTES_MAX).collect();
    match name.trim_matches('-') {
        "" => "local".to_owned(),
        name => name.to_owned(),
    }
}

/// Reads a value from a file with the parser of its flag.
pub(super) fn text<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    let text = match Written::deserialize(input)? {
        Written::Number(number) => number.to_string(),
        Written::Text(text) => text,
    };
    text.parse().map(Some).map_err(de::Error::custom)
}

/// Reads one value or a list of them: a repeatable flag given once needs no brackets in the file.
pub(super) fn one_or_many<'de, D, T>(input: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Written<T> {
        One(T),
        Many(Vec<T>),
    }
    Ok(match Written::deserialize(input)? {
        Written::One(value) => vec![value],
        Written::Many(values) => values,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists_read_and_show() {
        for (text, cores, shown) in [
            ("0", vec![0], "0"),
            ("0,2-5", vec![0, 2, 3, 4, 5], "0,2-5"),
            ("3, 1", vec![3, 1], "3,1"),
            ("1,1", vec![1, 1], "1,1"),
        ] {
            let list: CoreList = text.parse().expect(text);
            assert_eq!((&list.0, list.to_string().as_str()), (&cores, shown));
        }
        for text in ["", "a", "5-2", "1-", "0-999999999"] {
            let error = text.parse::<CoreList>().expect_err(text).to_string();
            assert!(error.contains(&format!("core list `{text}`")), "{error}");
        }
    }

    #[test]
    fn http_addresses_read() {
        assert_eq!("off".parse(), Ok(HttpBind::Off));
        assert_eq!("localhost:0".parse(), Ok(HttpBind::At(([127, 0, 0, 1], 0).into())));
        assert!("7070".parse::<HttpBind>().is_err() && "example.com:80".parse::<HttpBind>().is_err());
    }

    #[test]
    fn host_names_become_node_ids() {
        let long = "x".repeat(200);
        for (host, id) in [("GPU_07.rack", "gpu-07-rack"), ("", "local"), ("...", "local"), ("ünïx", "n-x")]
        {
            assert_eq!(node_id_of_host(host), id);
        }
        for host in ["GPU_07.rack", "", "-a-", &long] {
            assert!(is_node_id(&node_id_of_host(host)), "{host}");
        }
        assert!(!is_node_id("") && !is_node_id("Upper") && !is_node_id(&"x".repeat(65)));
    }
}
