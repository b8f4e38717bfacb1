//! The store against a list that keeps everything and is cut afterwards.

use orbitkv_wire::identity::ShardIndex;

use super::*;

/// Numbers in a row that anybody can make again.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn tag(core: u16, number: u64) -> Tag {
    Tag { origin: ShardIndex(core), number }
}

/// All that ever found room, in order, and where an answer's place is reserved only.
#[derive(Default)]
struct Model {
    stored: Vec<Event>,
    forgotten: usize,
    waiting: Vec<(u64, u64)>,
    lost: u64,
}

impl Model {
    fn in_use(&self) -> usize {
        self.stored.len() - self.forgotten + self.waiting.len()
    }

    fn takes(&mut self, capacity: usize) -> bool {
        let takes = self.in_use() < capacity;
        self.lost += u64::from(!takes);
        takes
    }
}

#[test]
fn it_never_holds_more_than_it_has_room_for_and_tells_the_rest() {
    for (seed, capacity) in [(1, 1), (2, 7), (3, 64), (4, 500)] {
        let (mut recorder, mut model, mut draws) = (Recorder::new(capacity), Model::default(), Draws(seed));
        let allocated = recorder.held.capacity();
        for step in 1..20_000u64 {
            let (session, request) = (1 + draws.below(3), draws.below(1_000));
            match draws.below(9) {
                0..=3 => {
                    let event =
                        Event { at_ns: step, session, request, number: 0, count: 1, what: What::Receive };
                    recorder.push(event);
                    if model.takes(capacity) {
                        model.stored.push(event);
                    }
                }
                4 | 5 => {
                    recorder.answer(session, request);
                    if model.takes(capacity) {
                        model.waiting.push((session, request));
                    }
                }
                6 => {
                    recorder.respond(session, || step);
                    let waiting = std::mem::take(&mut model.waiting);
                    let (gone, left): (Vec<_>, Vec<_>) =
                        waiting.into_iter().partition(|(of, _)| *of == session);
                    model.waiting = left;
                    let respond = |(session, request): (u64, u64)| Event {
                        at_ns: step,
                        session,
                        request,
                        number: 0,
                        count: 0,
                        what: What::Respond,
                    };
                    model.stored.extend(gone.into_iter().map(respond));
                }
                7 => {
                    let through = model.forgotten as u64 + draws.below(10);
                    recorder.forget(through);
                    model.forgotten = model.forgotten.max((through as usize).min(model.stored.len()));
                }
                _ => {
                    let after = draws.below(model.stored.len() as u64 + 5);
                    let page = recorder.page(after, 16);
                    let newest = model.stored.len() as u64;
                    let known = after.clamp(model.forgotten as u64, newest);
                    let expected: Vec<Event> =
                        model.stored[known as usize..].iter().take(16).copied().collect();
                    assert_eq!((page.first, page.events), (known + 1, expected));
                    assert_eq!((page.held, page.lost), (model.stored.len() - model.forgotten, model.lost));
                }
            }
            assert!(recorder.held.len() + recorder.answered.len() <= capacity, "step {step}");
        }
        assert!(model.lost > 0, "the bound was never met");
        assert_eq!(recorder.held.capacity(), allocated, "nothing is made after the start");
    }
}

#[test]
fn parts_too_short_to_matter_and_turns_that_found_nothing_are_left_out() {
    let mut recorder = Recorder::new(16);
    recorder.begin_turn(10_000);
    recorder.lap(What::Mail, 10_500);
    recorder.lap(What::Device, 12_500);
    recorder.end_turn(10_000, 2_600, Woken::Device);
    recorder.begin_turn(20_000);
    recorder.end_turn(20_000, 900, Woken::LeftOver);
    // Short, but somebody's request was in it.
    recorder.begin_turn(30_000);
    recorder.answer(5, 6);
    recorder.respond(5, || 30_400);
    recorder.end_turn(30_000, 900, Woken::Engine);
    let told: Vec<_> = recorder.held.iter().map(|event| (event.what, event.at_ns, event.number)).collect();
    let expected = [
        (What::Device, 10_500, 2_000),
        (What::Turn, 10_000, 2_600),
        (What::Respond, 30_400, 0),
        (What::Turn, 30_000, 900),
    ];
    assert_eq!(told, expected);
    assert_eq!(recorder.held[1].count, Woken::Device as u16);
}

#[test]
fn a_job_is_linked_to_the_request_that_was_just_started_and_to_no_other() {
    let mut trace = Trace::with_room(16);
    trace.frame(3, 7, 5, 100);
    trace.link(3, 7, (9 << 32) | 41);
    trace.frame(3, 8, 2, 100);
    trace.link(3, 7, 42);
    let question = TurnsQuestion { tag: tag(0, 1), after: 0, limit: 99, forget_through: 0 };
    let page = trace.page(&question).expect("it is on");
    let told: Vec<_> =
        page.events.iter().map(|event| (event.what, event.request, event.number, event.count)).collect();
    let expected =
        [(What::Receive, 7, 0, 5), (What::Start, 7, 41, 0), (What::Receive, 8, 0, 2), (What::Start, 8, 0, 0)];
    assert_eq!(told, expected);
    assert!(page.events[1].at_ns > 100, "it starts by the clock, and was received when the turn began");
}

#[test]
fn blocks_of_a_request_at_one_moment_are_one_event() {
    let mut recorder = Recorder::new(16);
    let note = |number, stage| StageNote { tag: tag(1, number), stage };
    let of_two = (0..3).flat_map(|_| {
        [note(5, Stage::WriteBackTaken), note(5, Stage::DeviceTaken), note(6, Stage::DeviceTaken)]
    });
    recorder.stages(of_two, || 1_000);
    recorder.stages([note(5, Stage::DeviceTaken), note(5, Stage::Unfollowed)].into_iter(), || 2_000);
    recorder.stages(std::iter::empty(), || panic!("nothing happened, so nobody looks at the clock"));
    let told: Vec<_> = recorder.held.iter().map(|event| (event.what, event.number, event.count)).collect();
    let expected = [
        (What::WriteBackDequeue, 5, 3),
        (What::SsdDequeue, 5, 3),
        (What::SsdDequeue, 6, 3),
        (What::SsdDequeue, 5, 1),
    ];
    assert_eq!((told, recorder.lost), (expected.to_vec(), 1));
    assert_eq!(recorder.held[0].session, 1 << 48, "the core that has the job");
}

#[test]
fn without_room_nothing_is_recorded_and_no_page_is_there() {
    let mut trace = Trace::default();
    trace.begin_turn(1);
    trace.frame(1, 2, 3, 4);
    trace.answer(1, 2);
    trace.respond(1);
    trace.end_turn(1, 1_000_000, Woken::Mail);
    let question = TurnsQuestion { tag: tag(0, 1), after: 0, limit: 99, forget_through: 0 };
    assert!(!trace.is_on() && trace.page(&question).is_none());
}

#[test]
fn whoever_forgets_is_told_what_was_lost_and_begins_anew() {
    let mut trace = Trace::with_room(4);
    (0..3).for_each(|request| trace.frame(1, request, 2, 5));
    let question = |after, forget_through| TurnsQuestion { tag: tag(0, 1), after, limit: 9, forget_through };
    let page = trace.page(&question(0, 0)).expect("it is on");
    assert_eq!((page.events.len(), page.first, page.lost), (4, 1, 2));
    let page = trace.page(&question(4, 4)).expect("it is on");
    assert_eq!((page.events.len(), page.held, page.lost), (0, 0, 2));
    trace.frame(1, 9, 2, 5);
    let page = trace.page(&question(4, 0)).expect("it is on");
    assert_eq!((page.first, page.events.len(), page.lost), (5, 2, 0));
}
