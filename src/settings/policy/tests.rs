use orbitkv_shards::fetcher::GuardSettings;
use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn flags() -> Policy {
    let guard = GuardSettings {
        failed_percent: 33,
        window_calls: 7,
        open_for: 3 * SECOND,
        extra_permille: 440,
        extra_burst: 5,
    };
    Policy {
        audit_interval: Some(2 * SECOND),
        coalesce: Duration::from_millis(4),
        routing: Mode::Fixed,
        guard: PeerGuard { call_budget: SECOND / 2, guard },
        log: None,
    }
}

fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_setting_that_can_be_changed_has_a_flag_or_is_the_log() {
    assert!(CHANGEABLE.is_sorted());
    let names = setting_names();
    for name in CHANGEABLE {
        assert!(name == "log" || names.iter().any(|flag| flag == name), "{name}");
    }
    // All others are refused with the reason, and those beyond them by their nearest.
    for name in names.iter().filter(|name| !CHANGEABLE.contains(&name.as_str())) {
        let refusal = Overrides::of(&texts(&[(name, "1")])).expect_err("fixed").to_string();
        assert!(
            refusal.contains(&format!("{name} needs a restart")) && refusal.contains("coalesce"),
            "{refusal}"
        );
    }
}

#[test]
fn each_setting_is_laid_over_its_flag_and_no_other() {
    type Change = fn(&mut Policy);
    let table: [(&str, &str, Change); 12] = [
        ("audit", "10ms", |p| p.audit_interval = Some(Duration::from_millis(10))),
        ("audit", "0s", |p| p.audit_interval = None),
        ("breaker", "0", |p| p.guard.guard.failed_percent = 0),
        ("breaker-calls", "10000", |p| p.guard.guard.window_calls = 10_000),
        ("breaker-pause", "60s", |p| p.guard.guard.open_for = 60 * SECOND),
        ("call-budget", "10s", |p| p.guard.call_budget = 10 * SECOND),
        ("coalesce", "0s", |p| p.coalesce = Duration::ZERO),
        ("coalesce", "5ms", |p| p.coalesce = Duration::from_millis(5)),
        ("log", "trace", |p| p.log = Some(LogLevel::Trace)),
        ("retry-percent", "100", |p| p.guard.guard.extra_permille = 1_000),
        ("route-policy", "executed", |p| p.routing = Mode::Executed),
        ("route-policy", "shadow", |p| p.routing = Mode::Shadow),
    ];
    for (name, value, change) in table {
        let overrides = Overrides::of(&texts(&[(name, value)])).unwrap_or_else(|error| panic!("{error}"));
        let mut expected = flags();
        change(&mut expected);
        assert_eq!(overrides.over(&flags()), expected, "{name} {value}");
        let shown = expected.texts().into_iter().find(|(shown, _)| *shown == name).expect("it is shown");
        assert_eq!(shown.1, value);
    }
    assert_eq!(Overrides::of(&Texts::new()).map(|nothing| nothing.over(&flags())), Ok(flags()));
}

#[test]
fn a_value_out_of_its_bounds_is_refused_with_limit_and_remedy_and_all_others_with_it() {
    for (name, value, parts) in [
        ("audit", "9ms", ["must be at least 10ms, or 0s for none", "audit=1s"]),
        ("audit", "often", ["often", "duration"]),
        ("breaker", "101", ["must be 0 to 100 percent", "breaker=50"]),
        ("breaker", "-1", ["must be a whole number", "operator guide"]),
        ("breaker-calls", "0", ["must be 1 to 10000 calls", "breaker-calls=20"]),
        ("breaker-calls", "10001", ["must be 1 to 10000 calls", "breaker-calls=20"]),
        ("breaker-pause", "61s", ["must be 10ms to 60s", "breaker-pause=1s"]),
        ("call-budget", "9ms", ["must be 10ms to 10s", "call-budget=1s"]),
        ("call-budget", "11s", ["must be 10ms to 10s", "call-budget=1s"]),
        ("coalesce", "6ms", ["must be at most 5ms", "coalesce=2ms"]),
        ("log", "loud", ["must be one of off, error, warn, info, debug, trace", "operator guide"]),
        ("retry-percent", "200", ["must be 0 to 100 percent", "retry-percent=10"]),
        ("route-policy", "Fixed", ["must be one of fixed, shadow, executed", "operator guide"]),
        ("coalesce", "0.001s", ["is written in another way", "write 1ms"]),
        ("breaker", "007", ["is written in another way", "write 7"]),
    ] {
        let mut together = texts(&[("coalesce", "1ms"), ("retry-percent", "20")]);
        together.insert(name.to_owned(), value.to_owned());
        let refusal = Overrides::of(&together).expect_err(value).to_string();
        assert!(refusal.starts_with(&format!("{name} {value}: ")), "{refusal}");
        assert!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
    }
    assert_eq!(Overrides::exact("coalesce", "0.001s").as_deref(), Ok("1ms"));
    assert_eq!(Overrides::exact("audit", "0").as_deref(), Ok("0s"));
}

#[test]
fn debug_is_for_our_own_words() {
    assert_eq!(LogLevel::Warn.directives(), "warn");
    assert_eq!(LogLevel::Debug.directives(), "info,orbitkv=debug,orbitkv_native=debug");
}

fn any_texts() -> impl Strategy<Value = Texts> {
    let milliseconds =
        |range: std::ops::Range<u64>| range.prop_map(|count| Span(Duration::from_millis(count)).to_string());
    let number = |range: std::ops::Range<u32>| range.prop_map(|count| count.to_string());
    let word = |words: &'static [&'static str]| prop::sample::select(words).prop_map(str::to_owned);
    let setting = |name: &'static str, value: BoxedStrategy<String>| {
        prop::option::of(value).prop_map(move |value| value.map(|value| (name.to_owned(), value)))
    };
    let all = vec![
        setting("audit", milliseconds(10..100_000).boxed()).boxed(),
        setting("breaker", number(0..101).boxed()).boxed(),
        setting("breaker-calls", number(1..10_001).boxed()).boxed(),
        setting("breaker-pause", milliseconds(10..60_001).boxed()).boxed(),
        setting("call-budget", milliseconds(10..10_001).boxed()).boxed(),
        setting("coalesce", milliseconds(0..6).boxed()).boxed(),
        setting("log", word(&["off", "error", "warn", "info", "debug", "trace"]).boxed()).boxed(),
        setting("retry-percent", number(0..101).boxed()).boxed(),
        setting("route-policy", word(&["fixed", "shadow", "executed"]).boxed()).boxed(),
    ];
    all.prop_map(|settings| settings.into_iter().flatten().collect())
}

proptest! {
    /// Whatever is set is shown as it was set, and whatever is not is shown as the flags say it.
    #[test]
    fn what_is_set_is_shown_and_nothing_else_changes(set in any_texts()) {
        let overrides = Overrides::of(&set).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let flags = flags();
        for ((name, value), (_, flag)) in overrides.over(&flags).texts().into_iter().zip(flags.texts()) {
            prop_assert_eq!(&value, set.get(name).unwrap_or(&flag));
            if set.contains_key(name) {
                prop_assert_eq!(Overrides::exact(name, &value), Ok(value));
            }
        }
    }
}
