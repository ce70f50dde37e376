//! What must hold for any input at all, one law for each fuzz target.
//!
//! The tests of `postrider` include this folder by its path and play the kept corpus through the same functions, on the
//! stable compiler. So what the fuzzer has found once stays found.

pub mod address_spellings;
pub mod api_bodies;
pub mod configuration;
pub mod database_address;
pub mod ids;
pub mod iterators;
pub mod message_envelope;
pub mod outbox_row;
pub mod redirect_location;
pub mod retry_after;
pub mod rules;
pub mod schedule_algebra;
pub mod signature_header;
pub mod sources;
pub mod stored_rows;
pub mod times;
pub mod tokens;
pub mod url_and_host;
pub mod verdicts;

mod draws;

/// A law is kept as long as it does not panic.
pub type Law = fn(&[u8]);

pub const LAWS: [(&str, Law); 19] = [
    ("address_spellings", address_spellings::check),
    ("api_bodies", api_bodies::check),
    ("configuration", configuration::check),
    ("database_address", database_address::check),
    ("ids", ids::check),
    ("iterators", iterators::check),
    ("message_envelope", message_envelope::check),
    ("outbox_row", outbox_row::check),
    ("redirect_location", redirect_location::check),
    ("retry_after", retry_after::check),
    ("rules", rules::check),
    ("schedule_algebra", schedule_algebra::check),
    ("signature_header", signature_header::check),
    ("sources", sources::check),
    ("stored_rows", stored_rows::check),
    ("times", times::check),
    ("tokens", tokens::check),
    ("url_and_host", url_and_host::check),
    ("verdicts", verdicts::check),
];
