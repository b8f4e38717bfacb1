//! The design that streams replace, for comparison alone: a source writes a record of each residence to etcd, and all
//! others watch. Nothing outside this benchmark ever writes a block to etcd.
//!
//! One thread has the publisher and all observers, so each of them costs less than a process of its own would; an observer
//! has a connection, a watch and a table. Requests of the plain form are in flight together, as far as they are of
//! different blocks; the coalescing form has one transaction after the other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use etcd_client::{Client, EventType, Txn, TxnOp, WatchOptions};
use orbitkv_native::clock::monotonic_ns;
use tokio::sync::{Semaphore, mpsc};

use super::record::{Change, Key, PREFIX, key_of};
use crate::Failure;
use crate::ablation::plan::{ETCD_WINDOW, PLAIN_IN_FLIGHT, TRANSACTION_CHANGES};

/// How changes get to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A request for each.
    Plain,
    /// A transaction of those that came within a window.
    Coalesced,
}

/// Changes that were made together.
pub struct Batch {
    /// In order.
    pub changes: Vec<Change>,
    /// When the last of them was made, on the monotonic clock; none if nobody waits for that.
    pub made_ns: Option<u64>,
}

/// What observers have seen.
#[derive(Default)]
pub struct Seen {
    /// For a batch that somebody waits for, by its last change: when it was made.
    made_ns: HashMap<Key, u64>,
    /// From when a batch was made until an observer had its last change.
    pub latencies_ns: Vec<u64>,
    /// What each observer believes to be there.
    pub tables: Vec<HashSet<Key>>,
    /// When anything was seen last.
    pub last_ns: u64,
}

#[derive(Default)]
struct Board {
    seen: Mutex<Seen>,
    applied: AtomicU64,
    watching: AtomicU64,
}

impl Board {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("whoever panics here ends the process")
    }
}

/// A running publisher with its observers.
pub struct Publisher {
    told: mpsc::Sender<Batch>,
    board: Arc<Board>,
    thread: JoinHandle<Result<(), String>>,
}

impl Publisher {
    /// Starts it, for at most so many batches.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn start(url: &str, form: Form, observers: u16, batches: usize) -> Result<Publisher, Failure> {
        let (told, batches) = mpsc::channel(batches.max(1));
        let board = Arc::new(Board::default());
        board.seen().tables = vec![HashSet::new(); usize::from(observers)];
        let (url, shared) = (url.to_owned(), Arc::clone(&board));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let work = move || {
            let worked = runtime.block_on(work(&url, form, observers, batches, shared));
            worked.map_err(|error| format!("etcd: {error}"))
        };
        let thread = std::thread::Builder::new().name("etcd-publisher".to_owned()).spawn(work)?;
        Ok(Publisher { told, board, thread })
    }

    /// Tells it what has changed; it never waits.
    ///
    /// # Errors
    /// If it has ended.
    pub fn tell(&self, batch: Batch) -> Result<(), Failure> {
        self.told.try_send(batch).map_err(|_| "the publisher takes no more changes".into())
    }

    /// Observers that watch by now.
    pub fn watching(&self) -> u64 {
        self.board.watching.load(Ordering::Relaxed)
    }

    /// Changes that observers have applied, all together.
    pub fn applied(&self) -> u64 {
        self.board.applied.load(Ordering::Relaxed)
    }

    /// Whether it has ended before it was asked to.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it; what was seen.
    ///
    /// # Errors
    /// What etcd said, if that ended it.
    pub fn end(self) -> Result<Seen, Failure> {
        drop(self.told);
        self.thread.join().expect("the publisher says its errors")?;
        Ok(std::mem::take(&mut *self.board.seen()))
    }
}

async fn work(
    url: &str,
    form: Form,
    observers: u16,
    batches: mpsc::Receiver<Batch>,
    board: Arc<Board>,
) -> Result<(), etcd_client::Error> {
    let mut watches = tokio::task::JoinSet::new();
    for observer in 0..usize::from(observers) {
        let client = Client::connect([url], None).await?;
        watches.spawn(observe(client, observer, Arc::clone(&board)));
    }
    let client = Client::connect([url], None).await?;
    let publishing = async {
        match form {
            Form::Plain => plain(client, batches, &board).await,
            Form::Coalesced => coalesced(client, batches, &board).await,
        }
    };
    tokio::select! {
        published = publishing => published,
        Some(ended) = watches.join_next() => ended.expect("an observer does not panic"),
    }
}

/// Follows all records until it is not wanted any more.
async fn observe(mut client: Client, observer: usize, board: Arc<Board>) -> Result<(), etcd_client::Error> {
    let options = WatchOptions::new().with_prefix();
    let mut watch = client.watch(PREFIX, Some(options)).await?;
    while let Some(response) = watch.message().await? {
        if response.canceled() {
            return Err(etcd_client::Error::WatchError(response.cancel_reason().to_owned()));
        }
        if response.created() {
            board.watching.fetch_add(1, Ordering::Relaxed);
        }
        let at_ns = monotonic_ns();
        let mut seen = board.seen();
        let changed = response.events().iter().filter_map(|event| Some((event.event_type(), event.kv()?)));
        let mut applied = 0;
        for (kind, pair) in changed {
            let Some(key) = key_of(pair.key()) else { continue };
            match kind {
                EventType::Put => _ = seen.tables[observer].insert(key),
                EventType::Delete => _ = seen.tables[observer].remove(&key),
            }
            // A batch ends with a delete, and a block ends once.
            if kind == EventType::Delete
                && let Some(made_ns) = seen.made_ns.get(&key).copied()
            {
                seen.latencies_ns.push(at_ns.saturating_sub(made_ns));
            }
            applied += 1;
        }
        seen.last_ns = at_ns;
        board.applied.fetch_add(applied, Ordering::Relaxed);
    }
    Err(etcd_client::Error::WatchError("the watch has ended".to_owned()))
}

impl Batch {
    fn note(&self, board: &Board) {
        if let (Some(made_ns), Some(last)) = (self.made_ns, self.changes.last()) {
            board.seen().made_ns.insert(last.key, made_ns);
        }
    }
}

async fn plain(
    client: Client,
    mut batches: mpsc::Receiver<Batch>,
    board: &Board,
) -> Result<(), etcd_client::Error> {
    let seats = Arc::new(Semaphore::new(PLAIN_IN_FLIGHT));
    let mut requests = tokio::task::JoinSet::new();
    while let Some(batch) = batches.recv().await {
        batch.note(board);
        for change in batch.changes {
            let seat = Arc::clone(&seats).acquire_owned().await.expect("it is never closed");
            let mut client = client.clone();
            requests.spawn(async move {
                let _seat = seat;
                match change.is_put {
                    true => client.put(change.name(), change.value(), None).await.map(|_| ()),
                    false => client.delete(change.name(), None).await.map(|_| ()),
                }
            });
            while let Some(done) = requests.try_join_next() {
                done.expect("a request does not panic")?;
            }
        }
    }
    while let Some(done) = requests.join_next().await {
        done.expect("a request does not panic")?;
    }
    Ok(())
}

async fn coalesced(
    mut client: Client,
    mut batches: mpsc::Receiver<Batch>,
    board: &Board,
) -> Result<(), etcd_client::Error> {
    let mut pending: VecDeque<Change> = VecDeque::new();
    loop {
        let Some(first) = batches.recv().await else { return Ok(()) };
        first.note(board);
        pending.extend(first.changes);
        tokio::time::sleep(ETCD_WINDOW).await;
        while !pending.is_empty() {
            while let Ok(batch) = batches.try_recv() {
                batch.note(board);
                pending.extend(batch.changes);
            }
            let together = pending.len().min(TRANSACTION_CHANGES);
            let operations: Vec<TxnOp> = pending.drain(..together).map(|change| operation(&change)).collect();
            client.txn(Txn::new().and_then(operations)).await?;
        }
    }
}

fn operation(change: &Change) -> TxnOp {
    match change.is_put {
        true => TxnOp::put(change.name(), change.value(), None),
        false => TxnOp::delete(change.name(), None),
    }
}

/// Longest time that is waited for observers to have everything, for so long a time of changes.
pub fn patience(changing: Duration) -> Duration {
    Duration::from_secs(60) + 20 * changing
}
