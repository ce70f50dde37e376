//! The real binary, as a person runs it: what it prints, and how it ends.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

pub fn postrider(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(arguments).current_dir(folder).env_clear().stdin(Stdio::null());
    command
}

pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    postrider(folder, arguments).output().expect("the binary runs")
}

pub fn ended(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}
