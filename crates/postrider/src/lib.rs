//! Postrider: accepts an event once, durably, and delivers it to every subscriber.
//!
//! This crate is the shell around the engine and the store: HTTP in, HTTP out, settings and the command
//! line. What it decides itself is little; see `postrider-engine` for when and whether to try again.

pub mod alerts;
pub mod cli;
pub mod clock;
pub mod config;
pub mod confine;
pub mod credentials;
pub mod dashboard;
pub mod deployment;
pub mod directory;
pub mod dispatch;
pub mod expiry;
pub mod figures;
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
pub mod ids;
pub mod ingest;
mod kept_headers;
pub mod keyring;
pub mod oauth;
pub mod outbox;
pub mod pollers;
pub mod rotation;
pub mod rules;
pub mod serve;
pub mod sources;
pub mod standing;
pub mod statistics;
pub mod tasks;
pub mod telemetry;
pub mod tokens;
pub mod transport;
pub mod vault;
mod words;
