//! The key of a node: who it is on the wire.
//!
//! One key a node, kept in the data directory for as long as the directory lives. A peer learns its
//! fingerprint from the member record and accepts nothing else under that name, so whoever can read
//! the file can pass for the node: a file that other users can read is refused, not repaired.

use ring::digest;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustix::fs::{FileType, Mode, OFlags, fstat, fsync, open, rename};
use rustix::io::Errno;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KEY_NAME: &str = "node.key";
const NEW_KEY_NAME: &str = "node.key.new";

/// A private key of ours has 83 bytes; a file that is longer is none.
const KEY_BYTES_MAX: u64 = 1_024;

/// SHA-256 of a node's public key (its SubjectPublicKeyInfo in DER), as the member record has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a SubjectPublicKeyInfo.
    pub(super) fn of(public_key_info: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, public_key_info);
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Fingerprint({self})")
    }
}

/// Why a node has no key.
#[derive(Debug, thiserror::Error)]
pub enum NodeKeyError {
    /// Others could read the key, or replace it.
    #[error(
        "the node key {} has mode {mode:04o}, so other users can get at it; if nobody has, `chmod 600` it; else remove it: \
         the node then makes a new one and publishes it", path.display()
    )]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file belongs to somebody else.
    #[error(
        "the node key {} belongs to uid {owner} and this process runs as uid {own}; run as that user, or give the data \
         directory to this one", path.display()
    )]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Our own effective user id.
        own: u32,
    },
    /// The file holds no key that this build can use.
    #[error(
        "{} is no node key ({reason}); restore it, or remove it: the node then makes a new one and publishes it", path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A step failed for another reason.
    #[error("{step} the node key {} failed: {source}", path.display())]
    System {
        /// What was attempted.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The private key of this node, ready to sign handshakes. Clones share it.
#[derive(Clone)]
pub struct NodeKey {
    /// The public key as TLS shows it, and the key that signs.
    pub(super) certified: Arc<CertifiedKey>,
    /// Root of the secrets that outlive a process: see [`Self::secret`].
    root: hmac::Key,
    fingerprint: Fingerprint,
}

impl NodeKey {
    /// Loads the key of a data directory, or makes it (mode 0600) if there is none yet. The caller
    /// holds the directory's lock.
    pub fn load_or_create(directory: &Path) -> Result<Self, NodeKeyError> {
        let path = directory.join(KEY_NAME);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match open(&path, flags, Mode::empty()) {
            Ok(fd) => Self::load(File::from(fd), &path),
            Err(Errno::NOENT) => Self::create(directory, &path),
            Err(errno) => Err(system("opening", &path, errno)),
        }
    }

    fn load(mut file: File, path: &Path) -> Result<Self, NodeKeyError> {
        let found = fstat(&file).map_err(|errno| system("looking at", path, errno))?;
        let own = rustix::process::geteuid().as_raw();
        let mode = found.st_mode & 0o7777;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(NodeKeyError::Malformed { path: path.into(), reason: "no regular file".into() });
        }
        if found.st_uid != own {
            return Err(NodeKeyError::Owner { path: path.into(), owner: found.st_uid, own });
        }
        if mode & 0o077 != 0 {
            return Err(NodeKeyError::Permissions { path: path.into(), mode });
        }
        let mut document = Vec::new();
        Read::by_ref(&mut file)
            .take(KEY_BYTES_MAX + 1)
            .read_to_end(&mut document)
            .map_err(|source| NodeKeyError::System { step: "reading", path: path.into(), source })?;
        Self::from_pkcs8(&document).map_err(|reason| NodeKeyError::Malformed { path: path.into(), reason })
    }

    /// Written under another name and renamed, so that a key is there whole or not at all.
    fn create(directory: &Path, path: &Path) -> Result<Self, NodeKeyError> {
        let new_path = directory.join(NEW_KEY_NAME);
        let document = generate();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::unlink(&new_path) {
            // A crash left a half-written one, of whatever mode.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(system("removing a left-over of", &new_path, errno)),
        }
        let fd = open(&new_path, flags | OFlags::EXCL, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| system("creating", &new_path, errno))?;
        let mut file = File::from(fd);
        file.write_all(&document).and_then(|()| file.sync_all()).map_err(|source| NodeKeyError::System {
            step: "writing",
            path: new_path.clone(),
            source,
        })?;
        rename(&new_path, path).map_err(|errno| system("renaming", &new_path, errno))?;
        open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .and_then(fsync)
            .map_err(|errno| system("syncing the directory of", path, errno))?;
        Ok(Self::from_pkcs8(&document).expect("a key just made is one"))
    }

    /// A key that lives as long as the process: for tests and measurements.
    pub fn ephemeral() -> Self {
        Self::from_pkcs8(&generate()).expect("a key just made is one")
    }

    fn from_pkcs8(document: &[u8]) -> Result<Self, String> {
        if document.len() as u64 > KEY_BYTES_MAX {
            return Err(format!("it has more than {KEY_BYTES_MAX} bytes"));
        }
        Ed25519KeyPair::from_pkcs8(document)
            .map_err(|reason| format!("no Ed25519 key in PKCS #8: {reason}"))?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(document));
        let signing = rustls::crypto::ring::sign::any_eddsa_type(match &der {
            PrivateKeyDer::Pkcs8(pkcs8) => pkcs8,
            _ => unreachable!("made as PKCS #8 above"),
        })
        .map_err(|reason| reason.to_string())?;
        let public = signing.public_key().expect("an Ed25519 key knows its public half").to_vec();
        let fingerprint = Fingerprint::of(&public);
        let certified = CertifiedKey::new(vec![CertificateDer::from(public)], signing);
        let root = hmac::Key::new(hmac::HMAC_SHA256, document);
        Ok(Self { certified: Arc::new(certified), root, fingerprint })
    }

    /// What the member record publishes of this key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// A secret of this node for one use of one port, the same in every life of the node: what a process
    /// must recognise that its predecessor handed out. Another port has another secret, so that no core
    /// can be made to give away what belongs to its neighbour.
    pub(super) fn secret(&self, use_label: &str, port: u16) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.root);
        context.update(b"orbitkv:v2:");
        context.update(use_label.as_bytes());
        context.update(&port.to_be_bytes());
        context.sign().as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// Shows the public key of `shown` and signs with our own: what a thief of a record, who has no
    /// key, could do. For tests of whoever must refuse it.
    #[must_use]
    pub fn showing(&self, shown: &NodeKey) -> Self {
        let certified = CertifiedKey::new(shown.certified.cert.clone(), self.certified.key.clone());
        Self { certified: Arc::new(certified), root: self.root.clone(), fingerprint: shown.fingerprint }
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NodeKey").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

fn generate() -> Vec<u8> {
    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .expect("the kernel's random source must be readable")
        .as_ref()
        .to_vec()
}

fn system(step: &'static str, path: &Path, errno: Errno) -> NodeKeyError {
    NodeKeyError::System { step, path: path.into(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_key_is_made_once_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let made = NodeKey::load_or_create(directory.path()).unwrap();
        let path = directory.path().join(KEY_NAME);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let found = NodeKey::load_or_create(directory.path()).unwrap();
        assert_eq!(made.fingerprint(), found.fingerprint());
        assert_eq!(made.secret("reset", 7_400), found.secret("reset", 7_400));
        assert_ne!(made.secret("reset", 7_400), found.secret("reset", 7_401));
        assert_ne!(made.secret("reset", 7_400), found.secret("ids", 7_400));
        assert_ne!(made.fingerprint(), NodeKey::ephemeral().fingerprint());
        assert!(!format!("{made:?}").contains("root"), "nothing secret is printed");
    }

    #[test]
    fn a_key_that_others_can_reach_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        NodeKey::load_or_create(directory.path()).unwrap();
        let path = directory.path().join(KEY_NAME);
        let before = fs::read(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o610, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = NodeKey::load_or_create(directory.path()).unwrap_err();
            assert!(
                matches!(error, NodeKeyError::Permissions { mode: found, .. } if found == mode),
                "{error}"
            );
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        assert_eq!(fs::read(&path).unwrap(), before);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        NodeKey::load_or_create(directory.path()).unwrap();
    }

    #[test]
    fn what_is_no_key_is_named() {
        for content in [&b""[..], b"-----BEGIN PRIVATE KEY-----", &[0x30; 83], &[0; 4_096]] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(KEY_NAME);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = NodeKey::load_or_create(directory.path()).unwrap_err();
            assert!(matches!(error, NodeKeyError::Malformed { .. }), "{error}");
        }
        let directory = tempfile::tempdir().unwrap();
        symlink("/dev/null", directory.path().join(KEY_NAME)).unwrap();
        let error = NodeKey::load_or_create(directory.path()).unwrap_err();
        assert!(matches!(error, NodeKeyError::System { step: "opening", .. }), "{error}");
        fs::remove_file(directory.path().join(KEY_NAME)).unwrap();
        fs::create_dir(directory.path().join(KEY_NAME)).unwrap();
        let error = NodeKey::load_or_create(directory.path()).unwrap_err();
        assert!(matches!(error, NodeKeyError::Malformed { .. }), "{error}");
    }

    #[test]
    fn a_half_written_key_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(NEW_KEY_NAME), b"half").unwrap();
        NodeKey::load_or_create(directory.path()).unwrap();
        assert!(!directory.path().join(NEW_KEY_NAME).exists());
    }
}
