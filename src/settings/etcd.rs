//! How etcd is reached: by which endpoints, with which certificates, as whom.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::SettingsError;
use super::refusal::refused;

/// Most endpoints of etcd: five voting members, and as many again while they are moved.
const ENDPOINTS_MAX: usize = 10;
/// Longest certificate, key or user file that is read.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// How etcd is reached, checked but for what is in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSettings {
    /// URLs, at least one, all with `https` or all with `http`.
    pub endpoints: Vec<String>,
    /// Certificate of the authority that etcd's certificate is checked against.
    pub authority: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// File with `user:password`.
    pub user_file: Option<PathBuf>,
}

/// Files that `--etcd-ca` and its neighbours name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdFiles {
    /// `--etcd-ca`.
    pub authority: Option<PathBuf>,
    /// `--etcd-cert`.
    pub certificate: Option<PathBuf>,
    /// `--etcd-key`.
    pub key: Option<PathBuf>,
    /// `--etcd-user-file`.
    pub user: Option<PathBuf>,
}

impl EtcdSettings {
    /// Decides; `etcd` is the value of `--etcd`.
    ///
    /// # Errors
    /// Endpoints that are none, and files that do not go with each other or with the endpoints.
    pub fn resolve(etcd: &str, files: EtcdFiles) -> Result<EtcdSettings, SettingsError> {
        let endpoints = endpoints(etcd)?;
        let secure = endpoints[0].starts_with("https://");
        let EtcdFiles { authority, certificate, key, user } = files;
        let named = [("--etcd-ca", &authority), ("--etcd-cert", &certificate), ("--etcd-key", &key)];
        if let Some((setting, Some(file))) = named.into_iter().find(|(_, file)| file.is_some() && !secure) {
            let bound = "certificates need https, and --etcd names http";
            return Err(refused(setting, file.display(), bound, "write the endpoints with https://"));
        }
        if secure && authority.is_none() {
            let bound = "etcd's certificate is checked against the authority you name";
            return Err(refused("--etcd", etcd, bound, "add --etcd-ca FILE"));
        }
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(one), None) => {
                let bound = "a certificate needs its key";
                return Err(refused("--etcd-cert", one.display(), bound, "add --etcd-key"));
            }
            (None, Some(one)) => {
                let bound = "a key needs its certificate";
                return Err(refused("--etcd-key", one.display(), bound, "add --etcd-cert"));
            }
        };
        Ok(EtcdSettings { endpoints, authority, identity, user_file: user })
    }

    /// User and password of the user file, if one is named.
    ///
    /// # Errors
    /// As [`read_file`], or if it does not hold `user:password`.
    pub fn user(&self) -> Result<Option<(String, String)>, SettingsError> {
        let Some(file) = &self.user_file else { return Ok(None) };
        let text = read_file("--etcd-user-file", file, true)?;
        match text.trim_end_matches(['\r', '\n']).split_once(':') {
            Some((user, password))
                if !user.is_empty() && !password.is_empty() && !password.contains('\n') =>
            {
                Ok(Some((user.to_owned(), password.to_owned())))
            }
            _ => Err(refused("--etcd-user-file", file.display(), "must hold user:password", "write it so")),
        }
    }
}

fn endpoints(text: &str) -> Result<Vec<String>, SettingsError> {
    let remedy = "write it like http://10.0.0.1:2379,http://10.0.0.2:2379";
    let urls: Vec<String> = text.split(',').map(|url| url.trim().trim_end_matches('/').to_owned()).collect();
    let scheme = |scheme: &str| {
        urls.iter()
            .all(|url| url.strip_prefix(scheme).is_some_and(|host| !host.is_empty() && !host.contains('/')))
    };
    if !scheme("http://") && !scheme("https://") {
        return Err(refused("--etcd", text, "must be URLs, all with http:// or all with https://", remedy));
    }
    if urls.len() > ENDPOINTS_MAX {
        let bound = format!("at most {ENDPOINTS_MAX} endpoints, these are {}", urls.len());
        return Err(refused("--etcd", text, bound, "name fewer: three do"));
    }
    Ok(urls)
}

/// Reads a file of one of these settings.
///
/// # Errors
/// A file that cannot be read or, if `secret`, that others may read.
pub fn read_file(setting: &'static str, file: &Path, secret: bool) -> Result<String, SettingsError> {
    let refuse =
        |bound: String, remedy: &str| Err(refused(setting, file.display(), bound, remedy.to_owned()));
    let opened = File::open(file).and_then(|opened| opened.metadata().map(|metadata| (opened, metadata)));
    let (opened, metadata) = match opened {
        Ok(opened) => opened,
        Err(error) => return refuse(format!("cannot be read ({error})"), "name a readable file"),
    };
    if !metadata.is_file() || (secret && metadata.mode() & 0o077 != 0) {
        let mode = metadata.mode() & 0o7777;
        return refuse(format!("must be a file with mode 0600 (it is {mode:04o})"), "run chmod 600 on it");
    }
    let mut text = String::new();
    match opened.take(FILE_BYTES_MAX).read_to_string(&mut text) {
        Ok(1..) => Ok(text),
        Ok(0) => refuse("is empty".to_owned(), "write it first"),
        Err(error) => refuse(format!("cannot be read ({error})"), "it has to be text"),
    }
}
