//! What the parts of the store know together: how this node stands among the others, and what it holds in memory.

use super::outstanding::Outstanding;
use crate::{
    Committed, Letter, StoreError,
    intake::{Intake, Room},
    rows::minter::Minter,
    shards::{Shard, Shards, Tenure},
};
use postrider_engine::EndpointKey;
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::sync::{Notify, mpsc, watch};

/// A message that another node passed on, as it was read.
pub struct PassedOn {
    /// Of the news.
    pub id: i64,
    pub letter: Letter,
    /// Whose deliveries have no rows.
    pub owed: Vec<EndpointKey>,
}

/// What the parts of the store know together.
pub struct Shared {
    state: Mutex<Standing>,
    outstanding: Mutex<Outstanding>,
    pub intake: Intake,
    committed: mpsc::UnboundedSender<Vec<Committed>>,
    /// How many transactions the writer has begun, and how many of them it has told of or given up.
    begun: watch::Sender<u64>,
    concluded: watch::Sender<u64>,
    /// News that came while the writer had not told of a transaction of its own.
    kept: Mutex<Vec<Committed>>,
    /// The keeper of the lease has something to look at.
    pub wake_keeper: Notify,
}

/// How this node stands among the others.
struct Standing {
    tenure: Tenure,
    minter: Arc<Minter>,
    /// The shards whose messages are handed over.
    owned: Shards,
    /// Those that are to be given back: they were asked for since they were offered.
    leaving: Shards,
    /// Until then nobody else can have taken the lanes.
    lease_until: Option<Instant>,
    /// News of messages that are handed over, which are to be taken away with the next commit.
    heard: BTreeSet<i64>,
    /// How often deliveries were called off.
    cancels: u64,
}

impl Shared {
    pub fn new(committed: mpsc::UnboundedSender<Vec<Committed>>) -> Self {
        let standing = Standing {
            tenure: Tenure::default(),
            minter: Arc::new(Minter::of_node(0, 0)),
            owned: Shards::NONE,
            leaving: Shards::NONE,
            lease_until: None,
            heard: BTreeSet::new(),
            cancels: 0,
        };
        Self {
            state: Mutex::new(standing),
            outstanding: Mutex::default(),
            intake: Intake::default(),
            committed,
            begun: watch::Sender::new(0),
            concluded: watch::Sender::new(0),
            kept: Mutex::default(),
            wake_keeper: Notify::new(),
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outstanding(&self) -> MutexGuard<'_, Outstanding> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tenure(&self) -> Tenure {
        self.standing().tenure
    }

    pub fn owned(&self) -> Shards {
        self.standing().owned
    }

    pub fn may_send(&self, tenure: Tenure) -> bool {
        let standing = self.standing();
        standing.tenure == tenure && standing.lease_until.is_some_and(|until| Instant::now() < until)
    }

    pub fn leads(&self) -> bool {
        self.standing().owned.contains(Shard::new(0))
    }

    pub fn minter(&self) -> Arc<Minter> {
        Arc::clone(&self.standing().minter)
    }

    /// The lease of this tenure is sure to last until then.
    pub fn renewed(&self, tenure: Tenure, until: Instant) {
        let mut standing = self.standing();
        if standing.tenure == tenure {
            standing.lease_until = Some(until);
        }
    }

    pub fn begin(&self, tenure: Tenure, used: i64, lease_until: Instant) {
        let used = used.max(self.minter().last());
        let mut standing = self.standing();
        standing.tenure = tenure;
        standing.minter = Arc::new(Minter::of_node(tenure.0, used));
        standing.owned = Shards::NONE;
        standing.leaving = Shards::NONE;
        standing.lease_until = Some(lease_until);
    }

    pub fn end(&self) {
        let mut standing = self.standing();
        // No node has this number, so that nothing which was begun before is taken for what is begun after.
        standing.tenure = Tenure::default();
        standing.owned = Shards::NONE;
        standing.lease_until = None;
        standing.heard.clear();
        drop(standing);
        *self.outstanding() = Outstanding::default();
        // They were for lanes that are someone else's now.
        self.kept().clear();
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Committed>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer begins a transaction.
    ///
    /// Its commit is known to the database before it is known here. What another node wrote in between can be read already,
    /// and may belong behind what this transaction hands over: so whatever is read meanwhile is told after it.
    pub fn begin_commit(&self) {
        self.begun.send_modify(|begun| *begun += 1);
    }

    /// The transaction was told of, or there was nothing to tell.
    pub fn end_commit(&self) {
        let mut kept = self.kept();
        self.concluded.send_modify(|concluded| *concluded += 1);
        // Under the lock, so that nothing which is read later is told before.
        self.tell(std::mem::take(&mut kept));
    }

    /// Tells what was read, once all is told that the writer had begun by then.
    pub fn tell_in_order(&self, news: Vec<Committed>) {
        let mut kept = self.kept();
        if *self.begun.borrow() == *self.concluded.borrow() && kept.is_empty() {
            self.tell(news);
        } else {
            kept.extend(news);
        }
    }

    /// Waits until all is told that the writer has begun by now.
    pub async fn told_of_commits(&self) {
        let begun = *self.begun.borrow();
        let _ = self.concluded.subscribe().wait_for(|concluded| *concluded >= begun).await;
    }

    pub fn own(&self, tenure: Tenure, shards: Shards) -> Result<(), StoreError> {
        let mut standing = self.standing();
        if standing.tenure != tenure {
            return Err(StoreError::Deposed);
        }
        standing.owned = standing.owned.with(shards.without(standing.leaving));
        drop(standing);
        // There may be news that was kept for this.
        self.wake_keeper.notify_one();
        Ok(())
    }

    pub fn leave(&self, shards: Shards) {
        let mut standing = self.standing();
        standing.owned = standing.owned.without(shards);
        standing.leaving = standing.leaving.with(shards);
    }

    /// Changes whenever deliveries are called off.
    pub fn cancels(&self) -> u64 {
        self.standing().cancels
    }

    /// Hands over messages that other nodes passed on, and returns which it took. `cancels`: as of before they were read. If
    /// deliveries were called off since, they may be among these, and none is taken.
    pub fn take_in(&self, tenure: Tenure, cancels: u64, messages: Vec<PassedOn>) -> Option<Vec<Committed>> {
        let mut standing = self.standing();
        if standing.cancels != cancels || standing.tenure != tenure {
            return None;
        }
        let mut outstanding = self.outstanding();
        let mut taken = Vec::with_capacity(messages.len());
        for PassedOn { id, letter, owed } in messages {
            // A shard that is being given up is given up with what was passed on for it.
            if standing.owned.has_lanes_of(letter.app) {
                standing.heard.insert(id);
                let bytes = letter.payload.as_ref().map_or(0, bytes::Bytes::len);
                outstanding.take_in(letter.message.raw(), owed.clone(), bytes);
                taken.push(Committed::Message { letter: Arc::new(letter), owed });
            }
        }
        Some(taken)
    }

    /// News of messages that have been handed over.
    pub fn heard(&self) -> Vec<i64> {
        self.standing().heard.iter().copied().collect()
    }

    pub fn took_away(&self, heard: &[i64]) {
        let mut standing = self.standing();
        for id in heard {
            standing.heard.remove(id);
        }
    }

    /// Tells the dispatcher, and keeps the books on what it will not come back for.
    pub fn tell(&self, news: Vec<Committed>) {
        for committed in &news {
            match committed {
                Committed::Cancelled { endpoint, which } => {
                    self.standing().cancels += 1;
                    self.outstanding().let_go(*endpoint, *which);
                }
                Committed::Offered { shards, .. } => {
                    let mut standing = self.standing();
                    standing.leaving = standing.leaving.without(*shards);
                }
                Committed::Message { .. }
                | Committed::Waiting { .. }
                | Committed::Settings { .. }
                | Committed::EventTypes
                | Committed::Health { .. }
                | Committed::Work
                | Committed::Wanted { .. }
                | Committed::Deposed => {}
            }
        }
        if !news.is_empty() {
            // Nobody listens during a clean stop; the next start finds the same in the database.
            let _ = self.committed.send(news);
        }
    }

    /// Whether more of what other nodes pass on can be taken in.
    pub fn has_room(&self) -> bool {
        self.outstanding().has_room()
    }

    /// `rooms`: what the messages of the transaction have taken, by their keys.
    pub fn note_outstanding(
        &self,
        handed: Vec<(i64, Vec<EndpointKey>)>,
        mut rooms: HashMap<i64, Room>,
        landed: Vec<(i64, EndpointKey)>,
    ) {
        let mut outstanding = self.outstanding();
        let had_room = outstanding.has_room();
        for (message, owed) in handed {
            outstanding.accept(message, owed, rooms.remove(&message));
        }
        for (message, endpoint) in landed {
            outstanding.land(message, endpoint);
        }
        if !had_room && outstanding.has_room() {
            self.wake_keeper.notify_one();
        }
    }

    /// Every message up to this key that the node holds has a row for each of its deliveries, also once those from `first` on
    /// have been accepted.
    pub fn settled_through(&self, first: Option<i64>) -> i64 {
        self.outstanding().oldest().into_iter().chain(first).min().map_or(i64::MAX, |oldest| oldest - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use postrider_engine::{AppKey, Timestamp};

    const DUE: Timestamp = Timestamp::from_millis(0);

    fn waiting(endpoint: i64) -> Vec<Committed> {
        vec![Committed::Waiting { endpoint: EndpointKey::new(endpoint), due: DUE }]
    }

    fn heard(told: &mut mpsc::UnboundedReceiver<Vec<Committed>>) -> Vec<i64> {
        std::iter::from_fn(|| told.try_recv().ok())
            .flatten()
            .map(|committed| match committed {
                Committed::Waiting { endpoint, .. } => endpoint.raw(),
                other => panic!("unexpected {other:?}"),
            })
            .collect()
    }

    /// A message of another node may stand behind one that this node's commit hands over. The database knows of both before
    /// the answer to that commit is here.
    #[tokio::test]
    async fn what_is_read_during_a_commit_is_told_after_it() {
        let (sender, mut told) = mpsc::unbounded_channel();
        let shared = Shared::new(sender);
        shared.tell_in_order(waiting(1));
        assert_eq!(heard(&mut told), [1], "nothing is under way");
        shared.begin_commit();
        shared.tell_in_order(waiting(3));
        shared.tell_in_order(waiting(4));
        assert!(heard(&mut told).is_empty());
        assert!(shared.told_of_commits().now_or_never().is_none(), "what was loaded meanwhile waits as well");
        shared.tell(waiting(2));
        shared.end_commit();
        assert_eq!(heard(&mut told), [2, 3, 4]);
        assert!(shared.told_of_commits().now_or_never().is_some());
    }

    #[tokio::test]
    async fn what_is_loaded_does_not_wait_for_commits_that_are_begun_later() {
        let (sender, _told) = mpsc::unbounded_channel();
        let shared = Shared::new(sender);
        shared.begin_commit();
        let mut loaded = std::pin::pin!(shared.told_of_commits());
        assert!((&mut loaded).now_or_never().is_none());
        shared.end_commit();
        shared.begin_commit();
        assert!(loaded.now_or_never().is_some());
    }

    #[tokio::test]
    async fn what_was_kept_is_not_told_by_one_who_has_lost_the_lanes() {
        let (sender, mut told) = mpsc::unbounded_channel();
        let shared = Shared::new(sender);
        shared.begin_commit();
        shared.tell_in_order(vec![Committed::Settings { app: AppKey::new(1) }]);
        shared.end();
        shared.end_commit();
        assert!(told.try_recv().is_err());
    }
}
