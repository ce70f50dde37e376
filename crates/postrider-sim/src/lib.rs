//! Runs the real engine in a simulated world, breaks whatever can break, and judges what came of it.
//!
//! One thread, one seed, simulated time: the same seed always makes the same history, byte for byte. The store is made up
//! (`store`), the receivers are (`receivers`), and so is time; `Dispatch`, `Directory`, `Ingest`, `Tasks` and the policies are
//! those that run in production.

pub mod chance;
pub mod checker;
pub mod config;
pub mod faults;
pub mod node;
pub mod people;
pub mod producers;
pub mod quick;
pub mod receivers;
pub mod settings;
pub mod shrink;
pub mod sometimes;
pub mod store;
pub mod temper;
pub mod trace;
mod witness;
pub mod world;
