//! Rows of our own tables, however damaged: they are read or refused, and what is read is written the same again.

use super::draws::Draws;
use postrider::rules::Rules;
use postrider_store::fuzzing::{codes_again, read_row, write_extra};

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let code = if draws.any() { draws.any() } else { i64::from(draws.any::<u8>()) };
    for again in codes_again(code).into_iter().flatten() {
        assert_eq!(again, code, "a code stands for one thing");
    }
    let payload = draws.maybe(|draws| draws.text().into_bytes());
    let Ok(extra) = std::str::from_utf8(draws.rest()) else { return };
    let _ = Rules::stored(Some(extra));
    let Some((content, gone)) = read_row("a.b".to_owned(), Some(extra.to_owned()), payload.clone()) else { return };
    assert_eq!(gone, payload.is_none());
    assert_eq!(content.payload, payload.clone().unwrap_or_default());
    let written = write_extra(&content);
    assert_eq!(read_row("a.b".to_owned(), Some(written), payload), Some((content, gone)));
}
