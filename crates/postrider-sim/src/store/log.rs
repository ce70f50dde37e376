//! What happened inside the database and between its nodes, for whoever judges a run.

use postrider_store::{Shards, Tenure};
use tokio::time::Instant;

/// One line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub at: Instant,
    /// The world's number of the node whose process did it, or to whom it happened.
    pub node: usize,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A process began, and gave rows to so many deliveries that the last one had left without.
    Opened { recovered: u64 },
    /// A process died.
    Killed,
    /// A process ended in good order.
    Closed,
    /// It became one of the nodes, in this tenure.
    Joined { tenure: Tenure },
    /// It renewed its lease.
    Renewed { tenure: Tenure },
    /// The shards are its own, by the database. Whoever owned them before does no longer.
    Granted { tenure: Tenure, shards: Shards },
    /// It began to be handed messages of these.
    Owns { tenure: Tenure, shards: Shards },
    /// It is to give these back.
    Wanted { tenure: Tenure, shards: Shards },
    /// It gave these back.
    Freed { tenure: Tenure, shards: Shards },
    /// It wants no shards any more.
    Retiring { tenure: Tenure },
    /// Another node declared this tenure dead, and gave rows to so many deliveries that it held.
    Buried { tenure: Tenure, by: Tenure, deliveries: u64 },
    /// It found out that its tenure is over.
    Deposed { tenure: Tenure },
    /// So many settlements came in after the end of their tenure, and were refused.
    Stale { tenure: Tenure, settlements: usize },
    /// So many deliveries were to get rows after the end of their tenure, and were refused.
    StaleSpill { tenure: Tenure, deliveries: usize },
    /// A commit was refused, and so many jobs with it.
    Refused { why: Refusal, jobs: usize },
    /// A commit was carried out and its answer lost.
    AnswerLost { jobs: usize },
    /// What had become of it was found out: it was carried out, and the node was still one of the others.
    Resolved { jobs: usize },
    /// A node's call to look for news was lost.
    NewsLost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Failed,
    Busy,
    Full,
    Unreachable,
}
