//! Runs the real dispatcher, directory, ingest and tasks of several nodes in a world that is made up: its time, its
//! disks, its network and its receivers. One seed, one history.

pub mod store;
