//! Where Postrider keeps what it must not lose, and the only place that speaks SQL.
//!
//! [`Store`] is a narrow trait whose verbs are those of the domain: accept, load, settle, put away. Group
//! commit lives behind it: callers just wait for their own answer, and whoever waits together is written
//! together.

mod callers;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod doctor;
#[doc(hidden)]
pub mod fuzzing;
mod intake;
mod journal;
pub mod marks;
mod moving;
pub mod outbox;
mod pollers;
pub mod postgres;
pub mod records;
mod refused;
mod rows;
pub mod shards;
pub mod sqlite;
mod store;
mod tallies;

pub use callers::*;
pub use journal::*;
pub use moving::{MoveError, Moved, Progress, Step, move_to_postgres};
pub use pollers::*;
pub use postgres::{PostgresOptions, PostgresStore};
pub use records::*;
pub use refused::*;
pub use shards::{Shard, Shards, Tenure};
pub use sqlite::{SqliteOptions, SqliteStore};
pub use store::*;
pub use tallies::*;
