//! `orbitkv turns`: what the cores of a node did while its slowest requests waited (chapter 6.7).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::http_client::{ClientError, HttpClient};
use super::{NodeAddress, fail, fail_client, say};
use crate::control::turns::{TurnsPage, forgotten_between};
use crate::exit::Exit;
use crate::settings::Token;
use crate::turns::screen::screen;
use crate::turns::timeline::{CoreEvents, Timeline};

const PATH: &str = "/cache/turns";

/// Arguments of `orbitkv turns`.
#[derive(Clone, Debug, Args)]
pub struct TurnsArgs {
    #[command(flatten)]
    node: NodeAddress,
    /// Requests to show, the slowest first
    #[arg(long, value_name = "N", default_value_t = 5)]
    slowest: usize,
    /// Let the node forget what was read, to make room for what comes
    #[arg(long)]
    forget: bool,
    /// File (mode 0600) with the node's token, if it wants one for --forget
    #[arg(long, value_name = "FILE", env = "ORBITKV_HTTP_TOKEN_FILE")]
    http_token_file: Option<PathBuf>,
}

/// All pages of a core, those before `after` left out.
///
/// # Errors
/// As the client says; the node refuses if it records nothing.
pub fn read_core(client: &HttpClient, core: u16, after: u64) -> Result<Vec<TurnsPage>, ClientError> {
    let mut pages: Vec<TurnsPage> = Vec::new();
    let mut after = after;
    loop {
        let page: TurnsPage = client.get_as(&format!("{PATH}?core={core}&after={after}"))?.0;
        let next = page.next;
        pages.push(page);
        match next {
            // Reading makes events, too: what comes after a whole store is for the next reading.
            Some(through)
                if pages.len() * crate::turns::PAGE_EVENTS_MAX < crate::turns::EVENTS_MAX as usize =>
            {
                after = through;
            }
            _ => return Ok(pages),
        }
    }
}

/// Lets a node forget the events of a core up to a number; how many had found no room since it forgot before.
///
/// # Errors
/// As the client says.
pub fn forget(client: &HttpClient, core: u16, through: u64) -> Result<u64, ClientError> {
    let answer = client.post(&format!("{PATH}/forget"), &json!({"core": core, "through": through}))?;
    Ok(answer["lost"].as_u64().unwrap_or(0))
}

/// What pages of a core say that were read without forgetting in between; what somebody else let it forget meanwhile is
/// lost.
#[must_use]
pub fn events_of(core: u16, pages: &[TurnsPage]) -> CoreEvents {
    let lost = pages.last().map_or(0, |page| page.lost) + forgotten_between(0, pages);
    CoreEvents { core, lost, events: pages.iter().flat_map(TurnsPage::events).collect() }
}

/// Runs the command.
#[must_use]
pub fn run(args: &TurnsArgs) -> ExitCode {
    let token = match args.http_token_file.as_deref().map(Token::read).transpose() {
        Ok(token) => token,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let read = args.node.client().and_then(|client| {
        let client = client.with_token(token);
        let mut cores = vec![read_core(&client, 0, 0)?];
        for core in 1..cores[0][0].cores {
            cores.push(read_core(&client, core, 0)?);
        }
        if args.forget {
            for (core, pages) in (0..).zip(&mut cores) {
                let Some(last) = pages.last_mut() else { continue };
                // More may have found no room since that page was read, and is never told again.
                last.lost = last.lost.max(forget(&client, core, last.through())?);
            }
        }
        Ok(cores)
    });
    let cores = match read {
        Ok(cores) => cores,
        Err(error) => return fail_client(&error),
    };
    if args.node.json {
        say(&json!(cores).to_string());
    } else {
        let events: Vec<CoreEvents> = (0..).zip(&cores).map(|(core, pages)| events_of(core, pages)).collect();
        say(&screen(&Timeline::of(&events), args.slowest));
    }
    Exit::Done.into()
}
