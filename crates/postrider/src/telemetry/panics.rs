//! A panic says where it happened, and repeats only text that stands in our source.
//!
//! A formatted message may carry a value, as `unwrap` on an error does, and the value may be a payload or
//! a secret. A literal cannot.

use std::{any::Any, io::Write, panic};

pub fn hide_values_in_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        let text = literal(info.payload());
        let _ = writeln!(std::io::stderr(), "postrider: thread {thread} panicked at {place}: {text}");
        tracing::error!(thread, place, text, "panic");
    }));
}

fn literal(payload: &(dyn Any + Send)) -> &'static str {
    payload.downcast_ref::<&'static str>().copied().unwrap_or("(message withheld, it may hold a value)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literals_are_repeated() {
        let caught = panic::catch_unwind(|| panic!("a literal")).expect_err("panics");
        assert_eq!(literal(&*caught), "a literal");
        let secret = String::from("hunter2");
        let caught = panic::catch_unwind(move || panic!("got {secret}")).expect_err("panics");
        assert!(literal(&*caught).contains("withheld"));
    }
}
