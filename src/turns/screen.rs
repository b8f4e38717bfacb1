//! What slow requests waited for, told to a person: one timeline a request, and what their cores did in all of them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;

use super::What;
use super::timeline::{Doing, Request, Shares, Slice, Timeline};

/// Turns and parts of turns told of one request at most; the longest ones.
const SLICES_MAX: usize = 24;

/// A moment or a span, in microseconds.
fn us(ns: u64) -> String {
    format!("{:.1} us", ns as f64 / 1e3)
}

/// What took how much of a whole, the most first.
#[must_use]
pub fn shares_text(shares: &Shares) -> String {
    let all: u64 = shares.values().sum();
    let mut sorted: Vec<(&Doing, &u64)> = shares.iter().collect();
    sorted.sort_by_key(|&(_, ns)| std::cmp::Reverse(*ns));
    let told = sorted.into_iter().map(|(doing, &ns)| {
        let percent = ns as f64 * 100.0 / all.max(1) as f64;
        format!("{} {percent:.0} % ({})", doing.name(), us(ns))
    });
    told.collect::<Vec<_>>().join(", ")
}

/// Lines of a request's timeline, each with the moment that orders it.
type Lines = Vec<(u64, String)>;

fn slice_line(slice: &Slice, indent: &str) -> (u64, String) {
    let name = match (slice.what, slice.woken) {
        (What::Turn, Some(woken)) => format!("turn, woken by {}", woken.name()),
        (what, _) => what.name().to_owned(),
    };
    (slice.at_ns, format!("{indent}{name}: {}", us(slice.until_ns - slice.at_ns)))
}

/// Turns and their parts in a stretch; of too many the longest.
fn slices(timeline: &Timeline, core: u16, span: &Range<u64>) -> Lines {
    let turns = timeline.turns(core, span).map(|turn| (turn, "  "));
    let parts = timeline.parts(core, span).map(|part| (part, "    "));
    let mut all: Vec<(&Slice, &str)> = turns.chain(parts).collect();
    all.sort_by_key(|(slice, _)| std::cmp::Reverse(slice.until_ns - slice.at_ns));
    let left_out = all.len().saturating_sub(SLICES_MAX);
    all.truncate(SLICES_MAX);
    let mut lines: Lines = all.into_iter().map(|(slice, indent)| slice_line(slice, indent)).collect();
    if left_out > 0 {
        lines.push((span.end, format!("  (and {left_out} shorter ones)")));
    }
    lines
}

/// The timeline of one request: moments are since it was received.
#[must_use]
pub fn request_text(timeline: &Timeline, number: usize, request: &Request) -> String {
    let Some(at_node) = request.at_node() else { return format!("{number}. {}: unanswered", request.name()) };
    let length = at_node.end.saturating_sub(at_node.start);
    let mut text = format!(
        "{number}. {} of session {:x}, core {}: {} from receive to respond",
        request.name(),
        request.session,
        request.core,
        us(length)
    );
    if let Some(engine) = &request.engine {
        let _ = write!(text, ", {} to its engine", us(engine.end.saturating_sub(engine.start)));
    }
    let mut lines = Lines::new();
    let before = timeline.before(request);
    if let Some(before) = &before {
        let shares = shares_text(&timeline.shares(request.core, before));
        let _ = write!(text, "\n   before ({}): {shares}", us(before.end - before.start));
    }
    let _ = write!(text, "\n   meanwhile: {}", shares_text(&timeline.shares(request.core, &at_node)));
    let cores: BTreeSet<u16> = request.stages.iter().map(|stage| stage.core).collect();
    for core in cores.into_iter().filter(|core| *core != request.core) {
        let shares = shares_text(&timeline.shares(core, &at_node));
        let _ = write!(text, "\n   meanwhile on core {core}: {shares}");
    }
    let whole = before.map_or(at_node.start, |before| before.start)..at_node.end;
    lines.extend(slices(timeline, request.core, &whole));
    lines.extend(request.engine.iter().flat_map(|engine| {
        [(engine.start, "submitted by its engine".to_owned()), (engine.end, "back at its engine".to_owned())]
    }));
    lines.extend(request.stages.iter().map(|stage| {
        let blocks = if stage.count > 1 { format!(" x{}", stage.count) } else { String::new() };
        let elsewhere =
            if stage.core == request.core { String::new() } else { format!(" on core {}", stage.core) };
        (stage.at_ns, format!("{}{blocks}{elsewhere}", stage.what.name()))
    }));
    lines.sort_by_key(|(at_ns, _)| *at_ns);
    for (at_ns, line) in lines {
        let moment = (i128::from(at_ns) - i128::from(at_node.start)) as f64 / 1e3;
        let _ = write!(text, "\n   {moment:>+10.1} us  {line}");
    }
    text
}

/// The slowest requests, and what all of them waited for.
#[must_use]
pub fn screen(timeline: &Timeline, slowest: usize) -> String {
    let requests = timeline.slowest(slowest);
    let answered = timeline.requests().iter().filter(|request| request.at_node().is_some()).count();
    let mut text = format!("{answered} requests answered");
    if timeline.lost > 0 {
        let _ = write!(
            text,
            "\nNOT VALID: {} events found no room; record for a shorter time, and begin with `orbitkv turns --forget`",
            timeline.lost
        );
    }
    if requests.is_empty() {
        return text;
    }
    for (number, request) in (1..).zip(&requests) {
        let _ = write!(text, "\n\n{}", request_text(timeline, number, request));
    }
    let _ = write!(
        text,
        "\n\nthe {} slowest waited for: {}",
        requests.len(),
        shares_text(&timeline.waited_for(&requests))
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::recorder::Event;
    use crate::turns::timeline::CoreEvents;

    #[test]
    fn a_slow_request_is_told_with_what_its_core_did() {
        let event = |what, at_us: u64, number, count| Event {
            at_ns: at_us * 1_000,
            session: 0x1f,
            request: 7,
            number,
            count,
            what,
        };
        let events = vec![
            event(What::Subscriber, 850, 140_000, 0),
            event(What::Turn, 845, 150_000, 3),
            event(What::Receive, 1_000, 0, 7),
            event(What::Respond, 1_200, 0, 0),
            event(What::Rounds, 1_010, 100_000, 0),
            event(What::Turn, 1_000, 205_000, 8),
        ];
        let timeline = Timeline::of(&[CoreEvents { core: 0, lost: 3, events }]);
        let expected = "\
1 requests answered
NOT VALID: 3 events found no room; record for a shorter time, and begin with `orbitkv turns --forget`

1. query 7 of session 1f, core 0: 200.0 us from receive to respond
   before (155.0 us): subscriber apply 90 % (140.0 us), short parts of turns 6 % (10.0 us), no turn 3 % (5.0 us)
   meanwhile: commands 50 % (100.0 us), short parts of turns 50 % (100.0 us)
       -155.0 us    turn, woken by datagrams: 150.0 us
       -150.0 us      subscriber apply: 140.0 us
         +0.0 us    turn, woken by an engine: 205.0 us
         +0.0 us  receive
        +10.0 us      commands: 100.0 us
       +200.0 us  respond

the 1 slowest waited for: subscriber apply 39 % (140.0 us), short parts of turns 31 % (110.0 us), commands 28 % (100.0 us), no turn 1 % (5.0 us)";
        assert_eq!(screen(&timeline, 5), expected);
    }

    #[test]
    fn what_another_core_did_is_told_if_the_request_waited_for_it() {
        let event = |what, session, at_us: u64, number, count| Event {
            at_ns: at_us * 1_000,
            session,
            request: 7,
            number,
            count,
            what,
        };
        let own = vec![
            event(What::Receive, 5, 100, 0, 8),
            event(What::Start, 5, 101, 41, 0),
            event(What::Turn, 0, 100, 10_000, 8),
            event(What::Respond, 5, 200, 0, 0),
        ];
        let other = vec![event(What::Execute, 0, 180, 41, 1), event(What::Turn, 0, 120, 80_000, 0)];
        let uninvolved = vec![event(What::Turn, 0, 100, 100_000, 0)];
        let cores: Vec<CoreEvents> = (0..)
            .zip([own, other, uninvolved])
            .map(|(core, events)| CoreEvents { core, lost: 0, events })
            .collect();
        let text = screen(&Timeline::of(&cores), 1);
        let meanwhile = "
   meanwhile: no turn 90 % (90.0 us), short parts of turns 10 % (10.0 us)
   meanwhile on core 1: short parts of turns 80 % (80.0 us), no turn 20 % (20.0 us)
      ";
        assert!(text.contains(meanwhile) && !text.contains("core 2"), "{text}");
    }

    #[test]
    fn of_too_many_slices_the_longest_are_told() {
        let slice = |at_us: u64, ns| Event {
            at_ns: at_us * 1_000,
            session: 0,
            request: 0,
            number: ns,
            count: 8,
            what: What::Turn,
        };
        let of = |what, at_us: u64| Event {
            at_ns: at_us * 1_000,
            session: 1,
            request: 1,
            number: 0,
            count: 2,
            what,
        };
        let mut events: Vec<Event> =
            (0..40).map(|at| slice(100 + 10 * at, 1_000 + 100 * at as u32)).collect();
        events.extend([of(What::Receive, 100), of(What::Respond, 600)]);
        let timeline = Timeline::of(&[CoreEvents { core: 0, lost: 0, events }]);
        let text = screen(&timeline, 1);
        assert_eq!(text.matches("turn, woken").count(), SLICES_MAX, "{text}");
        assert!(text.contains("(and 16 shorter ones)") && text.contains("4.9 us"), "{text}");
    }
}
