//! A store that is made up: the verbs and the promises of the real ones, on tables in memory, in simulated time.
//!
//! `Database` is what survives a process: its tables and, where nodes share it, their leases, shards and news. `SimStore`
//! is one process's hold on it: what is queued, what is handed over without a row, the lease as the node itself counts it.
//! A process is killed by `SimStore::kill`; what it had committed stays, answered or not.
//!
//! `writer` commits in groups, `keeper` keeps the lease; `accept`, `settle`, `settings` and the cold rooms are what is
//! written and read. Whatever takes time is drawn from `Weather`.

mod accept;
mod api;
mod batch;
mod callers;
mod cancel;
mod cluster;
mod database;
mod history;
mod jobs;
mod journal;
mod keeper;
mod leases;
mod load;
mod log;
mod memory;
mod node;
mod pollers;
mod refused;
mod settings;
mod settle;
mod steps;
pub mod tables;
mod tallies;
mod tasks;
mod tidy;
mod weather;
mod witness;
mod writer;

pub use cluster::{Cluster, NodeRow};
pub use database::{Database, Grain, Sharing, WeatherGuard};
pub use log::{Entry, What};
pub use node::SimStore;
pub use weather::Weather;
pub use witness::{Seen, Witness};
