//! What a node subscribes to: all namespaces, an exact list, or explicitly none.
//!
//! # The scope digest, byte for byte
//!
//! SHA-256 over the following, all integers little-endian:
//!
//! | part | bytes |
//! | --- | --- |
//! | domain | `u32` length, then the ASCII bytes of [`DOMAIN`] |
//! | version | `u16` [`ENCODING_VERSION`] |
//! | 2 fields | each: `u8` tag, `u32` length of the value in bytes, the value |
//!
//! | tag | field | value |
//! | --- | --- | --- |
//! | 1 | kind | `u8`, 0 all, 1 exact list |
//! | 2 | list | all: empty; exact list: `u32` count, then 32 bytes a namespace, ascending |
//!
//! An empty list is a list: it means *none* and never *all*.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::bounds::SCOPE_NAMESPACES_MAX;
use crate::framed_hash::{FramedHash, length};
use crate::identity::{NamespaceDigest, hexadecimal};

/// What separates this hash from every other use of SHA-256 in the protocol.
pub const DOMAIN: &str = "orbitkv/scope";

/// Version of the hashed encoding.
pub const ENCODING_VERSION: u16 = 1;

/// Fields of the hashed encoding.
const FIELDS: u8 = 2;

/// The namespaces a node subscribes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every namespace, also those nobody has named yet.
    All,
    /// Exactly these; none if the list is empty.
    Namespaces(NamespaceList),
}

/// At most [`SCOPE_NAMESPACES_MAX`] different namespaces, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceList(Vec<NamespaceDigest>);

/// SHA-256 of a scope: two nodes mean the same namespaces exactly if it is equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeDigest(pub [u8; 32]);

/// Why namespaces make no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ScopeError {
    /// There are too many of them. A scope is refused, never cut.
    #[error("a scope names at most {SCOPE_NAMESPACES_MAX} namespaces: subscribe to all or to fewer")]
    TooMany,
    /// A list that should ascend strictly does not.
    #[error("the namespaces of a scope are not in ascending order without repetition")]
    Unsorted,
}

impl Scope {
    /// The scope of exactly these namespaces, given in any order; repetitions count once.
    ///
    /// # Errors
    /// [`ScopeError::TooMany`] beyond [`SCOPE_NAMESPACES_MAX`] different ones.
    pub fn namespaces(namespaces: impl IntoIterator<Item = NamespaceDigest>) -> Result<Scope, ScopeError> {
        let mut sorted = BTreeSet::new();
        for namespace in namespaces {
            sorted.insert(namespace);
            if sorted.len() > SCOPE_NAMESPACES_MAX {
                return Err(ScopeError::TooMany);
            }
        }
        Ok(Scope::Namespaces(NamespaceList(sorted.into_iter().collect())))
    }

    /// The scope of no namespace at all.
    #[must_use]
    pub fn none() -> Scope {
        Scope::Namespaces(NamespaceList::default())
    }

    /// Whether this namespace is subscribed to.
    #[must_use]
    pub fn contains(&self, namespace: &NamespaceDigest) -> bool {
        match self {
            Scope::All => true,
            Scope::Namespaces(list) => list.0.binary_search(namespace).is_ok(),
        }
    }

    /// The digest, over the encoding that this module's text lays down.
    #[must_use]
    pub fn digest(&self) -> ScopeDigest {
        let (kind, list) = match self {
            Scope::All => (0, Vec::new()),
            Scope::Namespaces(NamespaceList(namespaces)) => {
                let mut list = length(namespaces.len()).to_vec();
                namespaces.iter().for_each(|namespace| list.extend_from_slice(&namespace.0));
                (1, list)
            }
        };
        let mut fields = FramedHash::new(DOMAIN, ENCODING_VERSION);
        fields.put(&[kind]);
        fields.put(&list);
        ScopeDigest(fields.finish(FIELDS))
    }
}

impl NamespaceList {
    /// A list that is sorted already, as frames carry it.
    ///
    /// # Errors
    /// [`ScopeError`] if it is too long, or does not ascend strictly.
    pub fn from_sorted(namespaces: Vec<NamespaceDigest>) -> Result<NamespaceList, ScopeError> {
        if namespaces.len() > SCOPE_NAMESPACES_MAX {
            return Err(ScopeError::TooMany);
        }
        if !namespaces.is_sorted_by(|left, right| left < right) {
            return Err(ScopeError::Unsorted);
        }
        Ok(NamespaceList(namespaces))
    }

    /// The namespaces, ascending.
    #[must_use]
    pub fn as_slice(&self) -> &[NamespaceDigest] {
        &self.0
    }
}

impl fmt::Display for ScopeDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text is no digest of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a scope digest is 64 lowercase hexadecimal digits")]
pub struct ScopeDigestError;

impl FromStr for ScopeDigest {
    type Err = ScopeDigestError;

    fn from_str(text: &str) -> Result<ScopeDigest, ScopeDigestError> {
        hexadecimal(text).map(ScopeDigest).ok_or(ScopeDigestError)
    }
}

impl fmt::Debug for ScopeDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopeDigest({self})")
    }
}

#[cfg(test)]
mod tests;
