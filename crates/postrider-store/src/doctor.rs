//! What a look at a store finds, in words for the person who runs it.

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub what: &'static str,
    pub verdict: Verdict,
    /// How it is and, where that is not well, what to do about it.
    pub words: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fine,
    /// It works, and may not for long or not well.
    Warning,
    /// It does not work, or what was promised is not kept.
    Problem,
}

impl Finding {
    pub fn fine(what: &'static str, words: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Fine, words: words.into() }
    }

    pub fn warning(what: &'static str, words: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Warning, words: words.into() }
    }

    pub fn problem(what: &'static str, words: impl Into<String>) -> Self {
        Self { what, verdict: Verdict::Problem, words: words.into() }
    }
}

/// How late the delivery is that should have gone out first, of those that nothing holds back. A busy server is a little
/// late; an endpoint that gets more than its rate allows makes its own deliveries late.
pub(crate) fn lateness(late_millis: Option<i64>) -> Finding {
    match late_millis.map(|late| late / 1_000) {
        None | Some(i64::MIN..=0) => Finding::fine(LATENESS, "nothing is due"),
        Some(seconds @ 1..=LATE_SECONDS) => Finding::fine(LATENESS, format!("the oldest due one is {seconds} s late")),
        Some(seconds) => Finding::warning(
            LATENESS,
            format!(
                "the oldest due one is {seconds} s late; see whether a server is running, and with `postrider endpoints \
                 health` which endpoint has a backlog"
            ),
        ),
    }
}

/// Where there is not even a file yet, which only a start makes.
pub(crate) fn no_database() -> Finding {
    Finding::warning(TABLES, "there is no database yet; the first start makes it")
}

/// The version of the tables, against the one that this binary wants.
pub(crate) fn tables(found: i64, known: i64) -> Finding {
    if found == 0 {
        Finding::warning(TABLES, "there are none yet; the first start makes them, or `postrider migrate`")
    } else if found < known {
        Finding::warning(
            TABLES,
            format!(
                "in version {found}, and this Postrider wants {known}; the next start changes them, or `postrider migrate`"
            ),
        )
    } else if found > known {
        Finding::problem(
            TABLES,
            format!("in version {found}, and this Postrider knows {known} at most; use the newer one"),
        )
    } else {
        Finding::fine(TABLES, format!("in version {found}"))
    }
}

const LATENESS: &str = "deliveries";
const TABLES: &str = "tables";
const LATE_SECONDS: i64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_by_more_than_a_minute_is_worth_a_warning() {
        for (late, verdict) in [
            (None, Verdict::Fine),
            (Some(-5_000), Verdict::Fine),
            (Some(60_999), Verdict::Fine),
            (Some(61_000), Verdict::Warning),
        ] {
            assert_eq!(lateness(late).verdict, verdict, "{late:?}");
        }
    }

    #[test]
    fn only_tables_of_the_future_are_a_problem() {
        for (found, verdict) in
            [(0, Verdict::Warning), (1, Verdict::Warning), (2, Verdict::Fine), (3, Verdict::Problem)]
        {
            assert_eq!(tables(found, 2).verdict, verdict, "{found}");
        }
    }
}
