//! Accepting messages, many in one statement.
