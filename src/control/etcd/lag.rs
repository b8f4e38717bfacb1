//! News of the watch that are taken in later than they come, for whoever measures what else a node learns from.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// News that may wait. More are not held back at all.
const HELD_MAX: usize = 4_096;

/// News in the order they came.
pub(super) struct Lag<T> {
    lag: Duration,
    held: VecDeque<(Instant, T)>,
}

impl<T> Lag<T> {
    /// Holds news back for so long; not at all if that is nothing.
    pub fn of(lag: Duration) -> Lag<T> {
        Lag { lag, held: VecDeque::new() }
    }

    /// News have come; what is to be taken in at once, in order: all there is unless they may wait.
    pub fn hold(&mut self, news: T, may_wait: impl FnOnce() -> bool) -> Vec<T> {
        if self.lag.is_zero() {
            return vec![news];
        }
        self.held.push_back((Instant::now() + self.lag, news));
        let waiting = if may_wait() { HELD_MAX } else { 0 };
        let due = self.held.len().saturating_sub(waiting);
        self.held.drain(..due).map(|(_, news)| news).collect()
    }

    /// The next news, when they are due; for ever if there are none.
    pub async fn next(&mut self) -> T {
        let Some((due, _)) = self.held.front() else { return std::future::pending().await };
        sleep_until(*due).await;
        self.held.pop_front().expect("it was just there").1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn news_come_in_their_order_and_none_before_the_lag() {
        let mut at_once = Lag::of(Duration::ZERO);
        assert_eq!(at_once.hold(1, || true), [1]);
        let lag = Duration::from_millis(20);
        let mut late = Lag::of(lag);
        let came = Instant::now();
        assert!([1, 2].into_iter().all(|news| late.hold(news, || true).is_empty()));
        assert_eq!((late.next().await, late.next().await), (1, 2));
        assert!(came.elapsed() >= lag);
        // Whoever gives up waiting loses none.
        let mut later = Lag::of(Duration::from_hours(1));
        assert!(later.hold(3, || true).is_empty());
        assert!(tokio::time::timeout(Duration::from_millis(1), later.next()).await.is_err());
        (1..HELD_MAX).for_each(|news| assert!(later.hold(news, || true).is_empty()));
        assert_eq!(later.hold(7, || true), [3], "what does not fit is not held back");
        let all = later.hold(8, || false);
        assert_eq!((all.len(), &all[..2], &all[HELD_MAX - 1..]), (HELD_MAX + 1, &[1, 2][..], &[7, 8][..]));
    }
}
