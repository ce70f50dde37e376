//! The receiving side of webhooks: verified, recorded once, answered at once, and worked off behind.
//!
//! A sender delivers at least once, so that a receiver gets some events twice, now and then at the same instant. An inbox makes
//! that harmless in one of two ways, or both:
//!
//! - **Queued.** [`Door::take`] verifies a request, records its id and queues the event in one commit; then it is answered.
//!   A [`Worker`] calls your handler behind it, tries again what failed, and sets aside what keeps failing. Each event gets to the handler
//!   at least once: if the process dies after the handler's work and before that is written down, the handler is called again.
//! - **In your own transaction.** `Inbox::process` records the id in the same transaction as your change. The change happens
//!   once. It is there for SQLite and PostgreSQL, where your tables and the inbox's lie in one database.
//!
//! Both together, which is what to do where it is possible: queue the event, and let the handler call `process` with the event's
//! key in a transaction of its own. Sender, queue and handler may then each repeat themselves, and the effect happens once.
//!
//! ```
//! use postrider_inbox::{Event, Failure, Inbox, MemoryStore, Outcome, SystemClock, Worker, WorkerSettings};
//! use postrider_signature::{Source, SourceKey};
//! use rand::{SeedableRng, rngs::StdRng};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let inbox = Inbox::new(MemoryStore::new(), SystemClock);
//! inbox.migrate().await?;
//! let github = Source::github([SourceKey::text("It's a Secret to Everybody")]);
//! let door = inbox.door("github", github)?.keeping_headers(["x-github-event"]);
//!
//! // In an HTTP handler, with the bytes as they came. Features `axum` and `tower` do that part.
//! # let mut headers = http::HeaderMap::new();
//! # let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
//! # headers.insert("x-hub-signature-256", signature.parse()?);
//! # headers.insert("x-github-delivery", "72d3162e".parse()?);
//! # headers.insert("x-github-event", "push".parse()?);
//! let body = bytes::Bytes::from_static(b"Hello, World!");
//! assert_eq!(door.take(&headers, body.clone()).await, Outcome::Accepted { arrival: None });
//! assert_eq!(door.take(&headers, body).await, Outcome::Duplicate);
//!
//! // Somewhere else. `run` goes on until it is told to stop.
//! async fn handle(event: Event) -> Result<(), Failure> {
//!     match event.header("x-github-event") {
//!         Some("push") => Ok(()),
//!         other => Err(Failure::never(format!("unknown event {other:?}"))),
//!     }
//! }
//! let rng = StdRng::try_from_rng(&mut rand::rngs::SysRng)?;
//! let worker = Worker::new(inbox, WorkerSettings::default(), rng)?;
//! assert_eq!(worker.turn(handle).await?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Stores
//!
//! | | feature | what an answered event survives | `process` |
//! |---|---|---|---|
//! | [`MemoryStore`] | | nothing: for tests | |
//! | `SqliteStore` | `sqlite` | crashes and power cuts (WAL, `synchronous=FULL`) | yes |
//! | `PostgresStore` | `postgres` | what the server is set to survive (`synchronous_commit`) | yes |
//! | `RedisStore` | `redis` | what `appendfsync` says; read its page | no |
//!
//! # How long an event is known
//!
//! Until [`Retention`] has passed since it was done: 7 to 30 days. A redelivery that comes later is a new event. Dead events stay
//! until they are replayed or forgotten by [`Inbox::forget_dead_for`].
//!
//! # Metrics
//!
//! Through the `metrics` crate, by `source`: `postrider_inbox_accepted_total`, `_duplicates_total`, `_refused_total` (with
//! `reason`), `_processed_total`, `_failed_total`, `_dead_total`, `_leases_lost_total`, `_gaps_total`, `_skipped_total`,
//! `_out_of_order_total`, and of `process` `_effects_total` and `_effects_seen_total`. And of the whole inbox: `postrider_inbox_queued`, `_queued_bytes`, `_dead`, `_lag_seconds`.

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(any(feature = "axum", feature = "tower"))]
mod body;
mod causes;
mod effects;
mod event;
mod inbox;
mod memory;
mod meters;
mod outcome;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
mod retention;
mod retry;
mod sequence;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;
mod time;
#[cfg(feature = "tower")]
pub mod tower;
mod worker;

pub use effects::Processed;
pub use event::{Event, EventId, EventIdError, EventKey, EventKeyError, Place, SourceName, SourceNameError};
pub use inbox::{Door, Inbox, InboxSettings};
pub use memory::MemoryStore;
pub use outcome::{Answer, Fault, Outcome};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresStore, deadpool_postgres, tokio_postgres};
#[cfg(feature = "redis")]
pub use redis::RedisStore;
pub use retention::{Retention, RetentionError};
pub use retry::{Failure, Next, Retry};
pub use sequence::{Arrival, Track};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteStore, rusqlite};
pub use store::{
    Claim, DeadCursor, DeadEvent, Limits, Recorded, Replayed, Settled, Settlement, Standing, Store, StoreError, Ticket,
};
pub use time::{Clock, SystemClock, Timestamp};
pub use worker::{Worker, WorkerSettings, WorkerSettingsError};
