//! What there is to know about lanes before they are served.

use super::insist;
use crate::directory::Directory;
use postrider_engine::{EndpointKey, lanes::LaneSettings, policy::Health};
use postrider_store::{LaneFound, Shards, Store};
use std::sync::Arc;
use tokio::task::JoinSet;

/// How the lanes of some shards stood when they were taken over.
pub struct Found {
    pub healths: Vec<(EndpointKey, LaneSettings, Health)>,
    pub lanes: Vec<LaneFound>,
}

impl Found {
    pub async fn read(store: &Arc<dyn Store>, directory: &Arc<Directory>, shards: Shards) -> Self {
        let healths = insist(|| store.healths(shards)).await;
        let healths = some_at_once(healths, |(endpoint, health)| {
            let directory = Arc::clone(directory);
            async move {
                let entry = insist(|| directory.endpoint(endpoint)).await;
                entry.map(|entry| (endpoint, entry.lane, health))
            }
        });
        Self { healths: healths.await.into_iter().flatten().collect(), lanes: insist(|| store.lanes(shards)).await }
    }
}

/// Not one after the other, because there may be many and each waits for the store; and not all of them together.
pub async fn some_at_once<T, R, F>(items: Vec<T>, mut how: impl FnMut(T) -> F) -> Vec<R>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let (mut under_way, mut done) = (JoinSet::new(), Vec::with_capacity(items.len()));
    for item in items {
        if under_way.len() >= READS_AT_ONCE {
            done.extend(under_way.join_next().await.and_then(Result::ok));
        }
        under_way.spawn(how(item));
    }
    while let Some(ended) = under_way.join_next().await {
        done.extend(ended.ok());
    }
    done
}

/// Settings of lanes that are read at the same time.
const READS_AT_ONCE: usize = 8;
