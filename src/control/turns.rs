//! `/cache/turns`: what a core recorded of its requests and turns, for whoever looks for what a slow request waited for
//! (chapter 6.7). Only a node that was started with `--trace-turns` has the page.
//!
//! A core holds a bounded number of events and stores none that finds it full, which shows. So whoever records for long
//! reads page by page and lets the core forget what he has.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};

use super::http::{Answer, Failure, NodePort, Shared, failure, object_of, soon};
use super::visibility::ClockPlace;
use crate::turns::recorder::{Event, TurnsAnswer};
use crate::turns::{PAGE_EVENTS_MAX, What, Woken};

const NOTHING_RECORDED: Failure = failure(
    StatusCode::NOT_FOUND,
    "no-turns",
    "this node records no turns; start it with --trace-turns, at the cost of a few percent",
);
const BAD_WINDOW: Failure = failure(
    StatusCode::BAD_REQUEST,
    "bad-query",
    "core is one of the node's, after is a number, and limit is a number from 1 to 2048",
);
const BAD_FORGET: Failure = failure(
    StatusCode::BAD_REQUEST,
    "body",
    "the body is {\"core\": CORE, \"through\": NUMBER}, with one of the node's cores",
);

const _: () = assert!(PAGE_EVENTS_MAX == 2_048, "the refusal names it");

/// What the numbers of an event are.
pub const COLUMNS: [&str; 6] = ["at_ns", "what", "session", "request", "number", "count"];

/// An event as told: its columns in order.
pub type Row = (u64, u16, u64, u64, u32, u16);

/// The page of a core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnsPage {
    /// Whose clock all moments are of.
    pub clock: ClockPlace,
    /// Name of the node.
    pub node_id: String,
    /// Cores of the node.
    pub cores: u16,
    /// The core.
    pub core: u16,
    /// Events that it holds at most.
    pub capacity: usize,
    /// Events that it holds.
    pub held: usize,
    /// Events that found no room since the core forgot last. With any, what was measured meanwhile does not count.
    pub lost: u64,
    /// Number of the first event below.
    pub first: u64,
    /// What to name as `after` for the next page; none after the last.
    pub next: Option<u64>,
    /// What the numbers of an event are.
    pub columns: Vec<String>,
    /// Names of the values of `what`.
    pub what: Vec<String>,
    /// Names of the values of `count` of a turn.
    pub woken: Vec<String>,
    /// The events, in the order in which they were recorded.
    pub events: Vec<Row>,
}

impl TurnsPage {
    fn of(answer: &TurnsAnswer, limit: usize) -> TurnsPage {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect();
        let row = |event: &Event| {
            let Event { at_ns, session, request, number, count, what } = *event;
            (at_ns, what as u16, session, request, number, count)
        };
        let events: Vec<Row> = answer.events.iter().map(row).collect();
        let through = answer.first + events.len() as u64 - 1;
        TurnsPage {
            capacity: answer.capacity,
            held: answer.held,
            lost: answer.lost,
            first: answer.first,
            next: (events.len() == limit).then_some(through),
            columns: names(&COLUMNS),
            what: What::ALL.iter().map(|what| what.name().to_owned()).collect(),
            woken: Woken::ALL.iter().map(|woken| woken.name().to_owned()).collect(),
            events,
            ..TurnsPage::default()
        }
    }

    /// Its events; those that this version does not know are left out.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.events.iter().filter_map(|&(at_ns, code, session, request, number, count)| {
            let named = self.what.get(usize::from(code))?;
            let what = What::ALL.iter().copied().find(|what| what.name() == named)?;
            Some(Event { at_ns, session, request, number, count, what })
        })
    }

    /// Number of the last event of the page, or of the one before its first.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.first.saturating_sub(1) + self.events.len() as u64
    }
}

/// Events after `after` that these pages of a core, read one after another, do not have because somebody else let the
/// node forget them meanwhile; `after` is 0 if nothing was read before.
#[must_use]
pub fn forgotten_between(after: u64, pages: &[TurnsPage]) -> u64 {
    let (mut through, mut missing) = (after, 0);
    for page in pages {
        if through > 0 {
            missing += page.first.saturating_sub(through).saturating_sub(1);
        }
        through = page.through();
    }
    missing
}

/// `?core=&after=&limit=` of the page.
#[derive(Deserialize)]
pub(super) struct Window {
    #[serde(default)]
    core: u16,
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

/// `GET /cache/turns`.
pub(super) async fn page<P: NodePort>(
    State(api): Shared<P>,
    window: Result<Query<Window>, QueryRejection>,
) -> Answer {
    let Query(Window { core, after, limit }) = window.map_err(|_| BAD_WINDOW)?;
    let identity = api.port.identity();
    let limit = limit.unwrap_or(PAGE_EVENTS_MAX);
    if core >= identity.shards || !(1..=PAGE_EVENTS_MAX).contains(&limit) {
        return Err(BAD_WINDOW);
    }
    let answer = soon(api.port.turns(core, after, limit, 0)).await?.ok_or(NOTHING_RECORDED)?;
    let page = TurnsPage {
        clock: ClockPlace::here(),
        node_id: identity.node_id.clone(),
        cores: identity.shards,
        core,
        ..TurnsPage::of(&answer, limit)
    };
    Ok(Json(page).into_response())
}

/// The body of a forgetting.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Forget {
    core: u16,
    through: u64,
}

/// `POST /cache/turns/forget`: events of a core up to a number may go, and those without room are counted anew.
pub(super) async fn forget<P: NodePort>(
    State(api): Shared<P>,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let Forget { core, through } = serde_json::from_value(object_of(body)?).map_err(|_| BAD_FORGET)?;
    if core >= api.port.identity().shards {
        return Err(BAD_FORGET);
    }
    let answer = soon(api.port.turns(core, through, 0, through)).await?.ok_or(NOTHING_RECORDED)?;
    let told = serde_json::json!({"core": core, "held": answer.held, "lost": answer.lost});
    Ok(Json(told).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_by_the_names_it_carries() {
        let event = |at_ns, what| Event { at_ns, session: 1, request: 2, number: 3, count: 4, what };
        let events = vec![event(5, What::Receive), event(6, What::Publisher)];
        let answer = TurnsAnswer { capacity: 9, held: 4, lost: 1, first: 3, events: events.clone() };
        let page = TurnsPage::of(&answer, 2);
        assert_eq!((page.next, page.through(), page.lost), (Some(4), 4, 1));
        assert_eq!(page.events().collect::<Vec<_>>(), events);
        assert_eq!(TurnsPage::of(&answer, 3).next, None, "a page that is not full is the last");
        // Another version has another order, and something that we do not know.
        let mut other = page.clone();
        other.what.insert(0, "something new".to_owned());
        other.events = vec![(5, 1, 1, 2, 3, 4), (7, 0, 0, 0, 0, 0)];
        assert_eq!(other.events().collect::<Vec<_>>(), events[..1]);
        let empty = TurnsPage::of(&TurnsAnswer { first: 8, events: Vec::new(), ..answer }, 2);
        assert_eq!((empty.next, empty.through()), (None, 7));
    }

    #[test]
    fn what_another_reader_let_go_is_missing_and_what_was_gone_before_is_not() {
        let page = |first, events: usize| TurnsPage {
            first,
            events: vec![(0, 0, 0, 0, 0, 0); events],
            ..TurnsPage::default()
        };
        let (whole, cut) = ([page(8, 2), page(10, 3), page(13, 0)], [page(8, 2), page(14, 3), page(20, 1)]);
        assert_eq!((forgotten_between(0, &whole), forgotten_between(7, &whole)), (0, 0));
        assert_eq!((forgotten_between(0, &cut), forgotten_between(5, &cut)), (4 + 3, 2 + 4 + 3));
        assert_eq!(forgotten_between(3, &[]), 0);
    }
}
