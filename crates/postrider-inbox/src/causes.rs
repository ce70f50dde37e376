//! What an error says together with what it came from, as one line that has an end.

use std::{error::Error, fmt::Write};

/// The error and all that it came from, outermost first. Many an error alone says as much as "db error".
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    // Nothing keeps an error from being its own source.
    for _ in 0..CAUSES_MAX {
        let Some(error) = cause else { break };
        let said = error.to_string();
        // Some say what they came from by themselves.
        if !text.ends_with(&said) {
            write!(text, ": {said}").expect("a string takes what it is given");
        }
        cause = error.source();
    }
    bounded(text)
}

/// It is kept with the event and goes to the log: what a peer or a database says may have any length.
pub(crate) fn bounded(mut text: String) -> String {
    if text.len() > BYTES_MAX {
        text.truncate(text.floor_char_boundary(BYTES_MAX - ELLIPSIS.len()));
        text.push_str(ELLIPSIS);
    }
    text
}

const CAUSES_MAX: usize = 16;
const BYTES_MAX: usize = 2_048;
const ELLIPSIS: &str = "…";

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    fn layers(said: &[&'static str]) -> Layer {
        let (first, rest) = said.split_first().unwrap();
        Layer(first, (!rest.is_empty()).then(|| Box::new(layers(rest))))
    }

    #[test]
    fn an_error_is_told_with_all_that_it_came_from() {
        for (said, expected) in [
            (&["alone"][..], "alone"),
            (&["not entered", "db error", "no such table"], "not entered: db error: no such table"),
            (&["not entered: refused", "refused", "by peer"], "not entered: refused: by peer"),
        ] {
            assert_eq!(chain(&layers(said)), expected);
        }
    }

    #[test]
    fn a_chain_has_an_end() {
        #[derive(Debug)]
        struct Endless;

        impl fmt::Display for Endless {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("again, ")
            }
        }

        impl Error for Endless {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&Self)
            }
        }

        assert_eq!(chain(&Endless), "again, ");
        let long = "é".repeat(2_000);
        let told = bounded(long.clone());
        assert!(told.len() <= BYTES_MAX && told.ends_with("é…"), "{} bytes", told.len());
        assert_eq!(bounded(long[..BYTES_MAX].to_owned()), long[..BYTES_MAX]);
    }
}
