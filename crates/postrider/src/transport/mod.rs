//! The way out: one POST to one endpoint, and what the wire did with it.

pub mod egress;
pub mod url;
