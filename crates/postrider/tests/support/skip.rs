//! What cannot be tried on this machine.

use std::{env, fs, io::Write};

/// Panics unless skipping is allowed: nobody reads the words of a test that passes, and what was never tried would be
/// taken for sound.
pub fn skip(why: &str) {
    let may_skip = env::var("MAY_SKIP").is_ok_and(|value| value == "1");
    assert!(may_skip, "{why}. With MAY_SKIP=1 in the environment what cannot be tried is skipped.");
    println!("SKIPPED: {why}");
    // Where the tests run unseen, what passes says nothing.
    if let Some(list) = env::var_os("SKIPPED_TO") {
        let list = fs::OpenOptions::new().create(true).append(true).open(list);
        writeln!(list.expect("a list that can be written"), "{why}").expect("a list that can be written");
    }
}
