//! How shards come and go, news by news. What becomes of their deliveries is shown with real nodes.

use super::*;
use crate::{
    clock,
    keyring::Keyring,
    transport::{AddressGuard, Transport, TransportConfig},
    vault::Vault,
};
use postrider_engine::{MessageKey, policy::Layer};
use postrider_store::{Letter, Shard, SqliteStore};
use rand::SeedableRng;
use tempfile::TempDir;

/// A dispatcher whose loop does not run.
fn dispatcher() -> (Dispatch, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let keyring = Keyring::open_or_create(folder.path()).expect("keys");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(folder.path(), clock::now()).expect("a store"));
    let guard = AddressGuard::new(Vec::new());
    let transport = Transport::new(TransportConfig::new(guard.clone())).expect("a transport");
    let vault = Arc::new(Vault::new(keyring.encryption()));
    let directory = Directory::new(Arc::clone(&store), vault, Arc::new(guard), Arc::new(Layer::default()));
    let ids = IdCodec::new(*keyring.ids());
    let means = Means {
        store,
        directory: Arc::new(directory),
        post: Arc::new(transport),
        ids,
        tasks: Arc::new(Tasks::default()),
        clock: clock::own(),
        rng: StdRng::seed_from_u64(1),
    };
    (Dispatch::new(means), folder)
}

impl Dispatch {
    /// What the loop does beside sending, until something holds.
    async fn until(&mut self, mut holds: impl FnMut(&Self) -> bool) {
        loop {
            let now = self.look_at_the_clock();
            self.engine.let_start(false);
            while let Some(command) = self.engine.next(now) {
                self.carry_out(command, now);
            }
            self.sought_quiet_at = None;
            self.give_up_quiet();
            self.enter_offered();
            if holds(self) {
                return;
            }
            let event = self.inbox.recv().await.expect("a dispatcher holds its own end");
            self.take(event);
        }
    }
}

const APP: AppKey = AppKey::new(7);

fn shard_of(app: AppKey) -> Shards {
    [Shard::of(app)].into_iter().collect()
}

fn message(number: i64) -> Committed {
    let letter = Letter {
        message: MessageKey::new(number),
        app: APP,
        event_type: "a.b".to_owned(),
        content_type: None,
        payload: None,
        accepted_at: clock::now(),
        order: None,
        sequences: Vec::new(),
        trace: None,
        headers: Vec::new(),
    };
    Committed::Message { letter: Arc::new(letter), owed: vec![EndpointKey::new(1)] }
}

fn offered(shards: Shards) -> Committed {
    Committed::Offered { tenure: Tenure::default(), shards }
}

#[tokio::test]
async fn a_shard_is_not_given_up_a_second_time_because_a_message_came_late() {
    let (mut dispatch, _folder) = dispatcher();
    dispatch.hear(vec![offered(Shards::ALL)]);
    dispatch.until(|dispatch| dispatch.owned == Shards::ALL).await;
    dispatch.hear(vec![Committed::Wanted { shards: shard_of(APP) }]);
    dispatch.until(|dispatch| dispatch.disowning == 1 && dispatch.leaving.is_empty()).await;
    dispatch.hear(vec![message(1)]);
    assert_eq!((dispatch.leaving, dispatch.lingering), (Shards::NONE, shard_of(APP)));
    // It was free for a moment, and nobody else wanted it.
    dispatch.hear(vec![offered(shard_of(APP))]);
    dispatch.enter_offered();
    assert!(dispatch.entering.is_none(), "the old lanes first come to their end");
    let mut disowning_max = 0;
    dispatch
        .until(|dispatch| {
            disowning_max = disowning_max.max(dispatch.disowning);
            dispatch.owned == Shards::ALL
        })
        .await;
    assert_eq!((dispatch.lingering, disowning_max), (Shards::NONE, 1));
}

#[tokio::test]
async fn what_is_told_of_lanes_before_they_are_served_is_heard_when_they_are() {
    let (mut dispatch, _folder) = dispatcher();
    dispatch.hear(vec![offered(Shards::ALL), message(1), message(2)]);
    assert_eq!((dispatch.engine.held(), dispatch.early.len()), (0, 2));
    dispatch.until(|dispatch| dispatch.owned == Shards::ALL).await;
    assert_eq!((dispatch.engine.busy_apps().count(), dispatch.early.len()), (1, 0));
    assert_eq!(dispatch.ending(), Shards::NONE);
}

#[tokio::test]
async fn what_is_offered_while_lanes_are_read_is_read_after_them_and_together() {
    let (mut dispatch, _folder) = dispatcher();
    let each: Vec<Shards> = (0..3).map(|number| [Shard::new(number)].into_iter().collect()).collect();
    dispatch.hear(vec![offered(each[0])]);
    dispatch.enter_offered();
    dispatch.hear(vec![offered(each[1]), offered(each[2])]);
    dispatch.enter_offered();
    assert_eq!((dispatch.owned, dispatch.offered), (Shards::NONE, each[1].with(each[2])));
    dispatch.until(|dispatch| dispatch.owned == each[0]).await;
    assert_eq!(dispatch.arriving(), each[1].with(each[2]));
    assert!(dispatch.entering.is_some());
    dispatch.until(|dispatch| dispatch.owned == each[0].with(each[1]).with(each[2])).await;
}

#[tokio::test]
async fn shards_that_are_wanted_while_they_are_read_are_never_served() {
    let (mut dispatch, _folder) = dispatcher();
    dispatch.hear(vec![offered(Shards::ALL)]);
    dispatch.enter_offered();
    dispatch.hear(vec![message(1), Committed::Wanted { shards: shard_of(APP) }]);
    assert_eq!((dispatch.disowning, dispatch.lingering), (1, shard_of(APP)), "what came for them is given rows");
    dispatch.until(|dispatch| dispatch.entering.is_none() && dispatch.disowning == 0).await;
    assert_eq!(dispatch.owned, Shards::ALL.without(shard_of(APP)));
}

#[tokio::test]
async fn what_was_read_in_a_reign_that_is_over_counts_for_nothing() {
    for end in [Committed::Deposed, Committed::Offered { tenure: Tenure(2), shards: Shards::NONE }] {
        let (mut dispatch, _folder) = dispatcher();
        dispatch.hear(vec![offered(Shards::ALL), message(1)]);
        dispatch.enter_offered();
        let found = loop {
            match dispatch.inbox.recv().await.expect("a dispatcher holds its own end") {
                found @ Event::Found(..) => break found,
                other => dispatch.take(other),
            }
        };
        dispatch.hear(vec![end]);
        dispatch.take(found);
        assert_eq!((dispatch.owned, dispatch.arriving(), dispatch.early.len()), (Shards::NONE, Shards::NONE, 0));
    }
}
