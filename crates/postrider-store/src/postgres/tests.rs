//! The conformance suite, on a real PostgreSQL.
