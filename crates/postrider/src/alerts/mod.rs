//! What operators are told without having asked.

pub mod desk;
pub mod events;
