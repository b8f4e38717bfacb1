//! `orbitkv failback`: ask the nodes of a node's own zone first again, after it had left that zone for another.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{NodeAddress, fail, fail_client, say};
use crate::control::zones::FailbackAnswer;
use crate::exit::Exit;
use crate::settings::Token;

/// Arguments of `orbitkv failback`.
#[derive(Clone, Debug, Args)]
pub struct FailbackArgs {
    #[command(flatten)]
    node: NodeAddress,
    /// File (mode 0600) with the node's token, if it wants one
    #[arg(long, value_name = "FILE", env = "ORBITKV_HTTP_TOKEN_FILE")]
    http_token_file: Option<PathBuf>,
}

/// In words, whether all cores prefer the node's own zone.
fn verdict(FailbackAnswer { own, preferred }: &FailbackAnswer) -> Result<String, String> {
    if own.is_empty() {
        return Err("the node names no zone, so none is asked first; start it with --zone ZONE".to_owned());
    }
    match preferred.iter().all(|zone| zone.as_ref() == Some(own)) {
        true => Ok(format!("the nodes of zone {own} are asked first")),
        false => Err(format!(
            "no other member stands in the node's own zone {own}, so none of it can be asked first; see `orbitkv status`"
        )),
    }
}

/// Runs the command. Exit code 4 if the node's own zone is not preferred afterwards.
#[must_use]
pub fn run(args: &FailbackArgs) -> ExitCode {
    let token = match args.http_token_file.as_deref().map(Token::read).transpose() {
        Ok(token) => token,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let client = args.node.client().map(|client| client.with_token(token));
    let answer = match client.and_then(|client| client.post("/zones/failback", &json!({}))) {
        Ok(answer) => answer,
        Err(error) => return fail_client(&error),
    };
    if args.node.json {
        say(&answer.to_string());
    }
    match verdict(&serde_json::from_value(answer).unwrap_or_default()) {
        Ok(_) if args.node.json => Exit::Done.into(),
        Ok(text) => {
            say(&text);
            Exit::Done.into()
        }
        Err(text) => fail(Exit::Unmet, &text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_met_if_every_core_prefers_its_own_zone() {
        let of = |own: &str, preferred: &[Option<&str>]| {
            let preferred = preferred.iter().map(|zone| zone.map(str::to_owned)).collect();
            verdict(&FailbackAnswer { own: own.to_owned(), preferred })
        };
        assert_eq!(
            of("east", &[Some("east"), Some("east")]),
            Ok("the nodes of zone east are asked first".to_owned())
        );
        for preferred in [&[None][..], &[Some("east"), Some("west")]] {
            let text = of("east", preferred).expect_err("unmet");
            assert!(text.starts_with("no other member stands in the node's own zone east"), "{text}");
        }
        assert!(of("", &[None]).expect_err("unmet").contains("start it with --zone"));
    }
}
