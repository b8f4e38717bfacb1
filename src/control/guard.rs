//! Who may ask what of the HTTP API, decided from the request's head before any body is read.
//!
//! A page in an operator's browser can send requests to loopback. It cannot choose the `Host` header
//! beyond names it controls (so an IP literal or our own name is proof against rebound names), and it
//! cannot send a JSON content type or a bearer token without our consent.

use std::net::IpAddr;

use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, Method, StatusCode, Uri};

use super::http::BODY_BYTES_MAX;
use crate::settings::Token;

/// What the guard knows of the listener.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// Whether other hosts can reach the listener.
    pub(super) beyond_loopback: bool,
    /// This machine's name, allowed as `Host` beside IP literals and `localhost`.
    pub(super) host_name: String,
    /// The token POST requests must carry, if there is one.
    pub(super) token: Option<Token>,
}

/// A refusal: status and what the client is told.
pub(super) type Refusal = (StatusCode, &'static str);

/// The host of an authority without its port; `None` if it is malformed.
fn host_of(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port_is_number = match port.strip_prefix(':') {
        Some(port) => port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    port_is_number.then_some(host)
}

impl Guard {
    /// Lets a request pass, or says why not.
    pub(super) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_host(uri, headers)?;
        match *method {
            Method::GET | Method::HEAD => Ok(()),
            _ => self.check_change(headers),
        }
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let mut named = headers.get_all(HOST).iter();
        let (header, further) = (named.next().and_then(|value| value.to_str().ok()), named.next());
        let authority = match (header, further) {
            (Some(header), None) => header,
            _ => return Err((StatusCode::BAD_REQUEST, "exactly one Host header is needed")),
        };
        let ours = |authority: &str| {
            let host = host_of(authority)?;
            let known = host.parse::<IpAddr>().is_ok()
                || host.eq_ignore_ascii_case("localhost")
                || (!self.host_name.is_empty() && host.eq_ignore_ascii_case(&self.host_name));
            known.then_some(())
        };
        let target = uri.authority().map_or(authority, |authority| authority.as_str());
        match (ours(authority), ours(target)) {
            (Some(()), Some(())) => Ok(()),
            _ => Err((
                StatusCode::FORBIDDEN,
                "the Host header must be an IP address, localhost or this machine's name",
            )),
        }
    }

    fn check_change(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match &self.token {
            Some(token) => {
                let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
                let given = given.and_then(|value| value.split_once(' '));
                match given {
                    Some((scheme, secret))
                        if scheme.eq_ignore_ascii_case("bearer") && token.matches(secret.trim()) => {}
                    _ => {
                        return Err((
                            StatusCode::UNAUTHORIZED,
                            "POST needs `Authorization: Bearer` with the token of --http-token-file",
                        ));
                    }
                }
            }
            None if self.beyond_loopback => {
                return Err((
                    StatusCode::FORBIDDEN,
                    "POST is refused beyond loopback; start the node with --http-token-file",
                ));
            }
            None => {}
        }
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = kind.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "POST needs `Content-Type: application/json`"));
        }
        // An announced length is refused at once; a body without one is cut off while it is read.
        let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        match announced.and_then(|value| value.parse::<u64>().ok()) {
            Some(bytes) if bytes > BODY_BYTES_MAX as u64 => {
                Err((StatusCode::PAYLOAD_TOO_LARGE, "the body has at most 65536 bytes"))
            }
            _ => Ok(()),
        }
    }
}
