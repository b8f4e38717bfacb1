//! The bearer token of the HTTP API: read once at start, from a file nobody else may read.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::SettingsError;
use super::refusal::refused;

/// Shortest token taken, in characters: below this it can be guessed over a network.
pub const TOKEN_CHARACTERS_MIN: usize = 16;
/// Longest token taken: it has to fit a request header.
pub const TOKEN_CHARACTERS_MAX: usize = 1_024;

/// A secret that POST requests carry. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Reads the token of `--http-token-file`.
    ///
    /// # Errors
    /// A file that cannot be read, that others may read (mode beyond 0600), or whose content is no token:
    /// 16 to 1,024 visible ASCII characters; blanks around it are dropped.
    pub fn read(file: &Path) -> Result<Token, SettingsError> {
        let refuse = |bound: String, remedy: &str| {
            Err(refused("--http-token-file", file.display(), bound, remedy.to_owned()))
        };
        let opened = File::open(file).and_then(|opened| opened.metadata().map(|metadata| (opened, metadata)));
        let (opened, metadata) = match opened {
            Ok(opened) => opened,
            Err(error) => return refuse(format!("cannot be read ({error})"), "name a readable file"),
        };
        if !metadata.is_file() || metadata.mode() & 0o077 != 0 {
            let mode = metadata.mode() & 0o7777;
            return refuse(
                format!("must be a file with mode 0600 (it is {mode:04o})"),
                "run chmod 600 on it",
            );
        }
        let mut text = String::new();
        if let Err(error) = opened.take(2 * TOKEN_CHARACTERS_MAX as u64).read_to_string(&mut text) {
            return refuse(format!("cannot be read ({error})"), "write a token in ASCII");
        }
        let token = text.trim();
        if !(TOKEN_CHARACTERS_MIN..=TOKEN_CHARACTERS_MAX).contains(&token.len())
            || !token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            let bound = format!(
                "must hold {TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX} visible ASCII characters, it holds {}",
                token.chars().count()
            );
            return refuse(bound, "write one with `head -c 24 /dev/urandom | base64`");
        }
        Ok(Token(token.to_owned()))
    }

    /// The secret itself, to be sent.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether `given` is this token; takes as long for a wrong one as for the right one.
    #[must_use]
    pub fn matches(&self, given: &str) -> bool {
        let differing =
            self.0.bytes().zip(given.bytes()).fold(0, |seen, (left, right)| seen | (left ^ right));
        self.0.len() == given.len() && differing == 0
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_private_files_with_a_token_are_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        let write = |text: &str, mode| {
            fs::write(&file, text).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("mode set");
            Token::read(&file)
        };
        let token = write("0123456789abcdef\n", 0o600).expect("a token");
        assert!(token.matches("0123456789abcdef"));
        assert!(
            !token.matches("0123456789abcdeX") && !token.matches("") && !token.matches("0123456789abcdef0")
        );
        assert_eq!(format!("{token:?}"), "Token(…)");
        for (text, mode, says) in [
            ("0123456789abcdef", 0o640, "0640"),
            ("short", 0o600, "it holds 5"),
            ("0123456789 abcdef", 0o600, "visible"),
        ] {
            let error = write(text, mode).expect_err("refused").to_string();
            assert!(error.contains("--http-token-file") && error.contains(says), "{error}");
        }
        assert!(
            Token::read(directory.path()).is_err() && Token::read(&directory.path().join("none")).is_err()
        );
    }
}
