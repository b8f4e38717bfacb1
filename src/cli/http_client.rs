//! A blocking HTTP/1.1 client, as small as the operator commands need: one request a connection, bounded
//! answers, time-outs. The commands stay free of an asynchronous runtime and of a further dependency.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::exit::Exit;
use crate::settings::Token;

/// Longest wait for a connection.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest silence of a node: its longest barrier (30 s) and some time to answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(40);
/// Largest head of an answer taken.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Largest body of an answer taken: a page of 1,000 rows is well below.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Asks one node.
#[derive(Clone, Debug)]
pub struct HttpClient {
    /// What the address was given with.
    option: &'static str,
    address: String,
    token: Option<Token>,
    patience: Duration,
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClientError {
    /// The address is none.
    #[error("{option} {address}: {why}; write it like 127.0.0.1:7070")]
    Address {
        /// What it was given with.
        option: &'static str,
        /// As given.
        address: String,
        /// What is wrong.
        why: &'static str,
    },
    /// No connection, or it broke.
    #[error("no node answers at {address}: {why}; is it running, and is {option} right?")]
    Unreachable {
        /// What the address was given with.
        option: &'static str,
        /// Where it was asked.
        address: String,
        /// The system's words.
        why: String,
    },
    /// Something answers, but not a node of this kind.
    #[error("what answers at {address} is not an OrbitKV node: {why}")]
    NotANode {
        /// Where it was asked.
        address: String,
        /// What was odd.
        why: String,
    },
    /// The node refused, and said why.
    #[error("the node refused ({status} {name}): {reason}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The error's name.
        name: String,
        /// Its reason.
        reason: String,
    },
}

impl ClientError {
    /// Exit code of a command that ends with this error.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            ClientError::Address { .. } => Exit::Usage,
            ClientError::Unreachable { .. } | ClientError::NotANode { .. } => Exit::Unreachable,
            // What the request or its token lacked; a barrier that was not met; a node that cannot answer now.
            ClientError::Refused { status: 400..=403 | 413 | 415, .. } => Exit::Usage,
            ClientError::Refused { status: 409 | 504, .. } => Exit::Unmet,
            ClientError::Refused { .. } => Exit::Unreachable,
        }
    }
}

impl HttpClient {
    /// A client of the node at `HOST:PORT`, as given with `--http`.
    ///
    /// # Errors
    /// An address without a port, or one that is `off` or port 0.
    pub fn new(address: &str) -> Result<HttpClient, ClientError> {
        HttpClient::given_with("--http", address)
    }

    /// As [`Self::new`], given with another option.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn given_with(option: &'static str, address: &str) -> Result<HttpClient, ClientError> {
        let refuse = |why| Err(ClientError::Address { option, address: address.to_owned(), why });
        let port = match address.rsplit_once(':') {
            _ if address.eq_ignore_ascii_case("off") => return refuse("the node has no HTTP API then"),
            Some((host, port)) if !host.is_empty() => port.parse::<u16>().ok(),
            _ => None,
        };
        let clean = address.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        match port {
            Some(0) => refuse("port 0 is only for a node that picks one"),
            Some(_) if clean => {
                Ok(HttpClient { option, address: address.to_owned(), token: None, patience: ANSWER_WAIT_MAX })
            }
            _ => refuse("it is not HOST:PORT"),
        }
    }

    /// Whom it asks.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The same client, sending this token with each POST.
    #[must_use]
    pub fn with_token(self, token: Option<Token>) -> HttpClient {
        HttpClient { token, ..self }
    }

    /// The same client, that waits only so long for an answer.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> HttpClient {
        HttpClient { patience, ..self }
    }

    /// `GET path` as JSON.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        let text = self.answer(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{CLOSE}\r\n", self.address))?;
        self.understand(&text)
    }

    /// `GET path`, understood as `T`, beside the JSON itself.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn get_as<T: DeserializeOwned>(&self, path: &str) -> Result<(T, Value), ClientError> {
        let value = self.get(path)?;
        let typed = T::deserialize(&value).map_err(|error| self.not_a_node(error.to_string()))?;
        Ok((typed, value))
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let body = body.to_string();
        let token = self.token.as_ref().map(Token::reveal);
        let authorization =
            token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let text = self.answer(&format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\n{CLOSE}{authorization}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        ))?;
        self.understand(&text)
    }

    fn not_a_node(&self, why: impl Into<String>) -> ClientError {
        ClientError::NotANode { address: self.address.clone(), why: why.into() }
    }

    fn understand(&self, (status, body): &(u16, Vec<u8>)) -> Result<Value, ClientError> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|_| self.not_a_node(format!("status {status} with a body that is no JSON")))?;
        if (200..300).contains(status) {
            return Ok(value);
        }
        let text =
            |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("no reason given").to_owned();
        Err(ClientError::Refused { status: *status, name: text("error"), reason: text("reason") })
    }

    fn answer(&self, request: &str) -> Result<(u16, Vec<u8>), ClientError> {
        let unreachable = |error: io::Error| {
            let why = match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".to_owned(),
                _ => error.to_string(),
            };
            ClientError::Unreachable { option: self.option, address: self.address.clone(), why }
        };
        let mut stream = connect(&self.address).map_err(unreachable)?;
        stream.set_read_timeout(Some(self.patience)).map_err(unreachable)?;
        stream.set_write_timeout(Some(self.patience)).map_err(unreachable)?;
        stream.write_all(request.as_bytes()).map_err(unreachable)?;
        let mut bytes = Vec::new();
        let bound = HEAD_BYTES_MAX + BODY_BYTES_MAX;
        // A server that refuses early may reset after its answer: what came before the reset counts.
        if let Err(error) = stream.take(bound as u64 + 1).read_to_end(&mut bytes)
            && bytes.is_empty()
        {
            return Err(unreachable(error));
        }
        if bytes.is_empty() {
            return Err(unreachable(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was closed",
            )));
        }
        split(&bytes).map_err(|why| self.not_a_node(why))
    }
}

const CLOSE: &str = "Connection: close\r\nAccept: application/json\r\n";

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, CONNECT_WAIT_MAX) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Status and whole body of an answer.
fn split(bytes: &[u8]) -> Result<(u16, Vec<u8>), String> {
    let end = bytes.windows(4).take(HEAD_BYTES_MAX).position(|window| window == b"\r\n\r\n");
    let end = end.ok_or("the answer has no end of its head")?;
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| "the head is no text")?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status =
        first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
    let status: u16 = status.ok_or("the answer is not HTTP/1.1")?;
    let length = lines.filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    });
    let length = length.ok_or("the answer has no Content-Length")?;
    if length > BODY_BYTES_MAX {
        return Err(format!("the answer has {length} bytes, more than {BODY_BYTES_MAX}"));
    }
    match bytes[end + 4..].get(..length) {
        Some(body) => Ok((status, body.to_vec())),
        None => Err(format!("the answer was cut after {} of {length} bytes", bytes.len() - end - 4)),
    }
}

/// `text` as part of a query string.
#[must_use]
pub fn query_text(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_before_they_are_asked() {
        for address in
            ["off", "7070", ":7070", "host:0", "host:port", "http://host:7070", "host:7070/x", "a b:1"]
        {
            let error = HttpClient::new(address).expect_err(address);
            assert_eq!(error.exit(), Exit::Usage);
            assert!(error.to_string().contains(&format!("--http {address}")), "{error}");
        }
        let error = HttpClient::given_with("--nodes", "garbage").expect_err("no address").to_string();
        assert_eq!(error, "--nodes garbage: it is not HOST:PORT; write it like 127.0.0.1:7070");
        assert!(HttpClient::new("[::1]:7070").is_ok() && HttpClient::new("host:7070").is_ok());
    }

    #[test]
    fn answers_are_taken_whole_or_not_at_all() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-length: 2\r\n\r\n{}trailing";
        assert_eq!(split(whole), Ok((200, b"{}".to_vec())));
        for odd in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}"[..],
            b"HTTP/1.1 200 OK\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n{}",
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 2",
            b"HTTP/1.1 2\r\n\r\n",
        ] {
            assert!(split(odd).is_err(), "{}", String::from_utf8_lossy(odd));
        }
    }

    #[test]
    fn nobody_there_is_unreachable() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let client = HttpClient::new(&free.expect("a free port").to_string()).expect("a client");
        let error = client.get("/health").expect_err("nobody");
        assert_eq!(error.exit(), Exit::Unreachable);
        assert!(error.to_string().contains("is it running"), "{error}");
    }

    #[test]
    fn query_text_is_escaped() {
        assert_eq!(query_text("orbitkv:v2:0a&b c"), "orbitkv:v2:0a%26b%20c");
    }
}
