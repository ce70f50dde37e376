//! What a step of each kind of task does.
