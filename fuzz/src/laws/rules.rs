//! Rules as JSON: they are kept as they were said, and what has no flaw can be shown and used.

use postrider::rules::{Rules, path_of, preview::PreviewOut};
use postrider_engine::policy;
use std::time::Duration;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(rules) = Rules::read(Some(text)) else { return };
    let stored = rules.to_store();
    assert_eq!(Rules::read(stored.as_deref()).ok().as_ref(), Some(&rules), "{text} is kept as {stored:?}");
    assert_eq!(Rules::stored(stored.as_deref()), rules);

    let layer = rules.layer();
    let resolved = policy::Rules::resolve([&layer]);
    let flaws: Vec<_> = layer.check().into_iter().chain(resolved.check()).collect();
    for flaw in &flaws {
        assert!(path_of(flaw.field).len() > 1 || matches!(flaw.field, "overrides" | "in_flight"), "{flaw}");
        assert!(!flaw.words.is_empty());
    }
    // Presets may be layered, and nothing is said twice.
    assert_eq!(policy::Rules::resolve([&layer, &policy::Layer::default()]), resolved);
    if let Some(policy) = &rules.retry_policy
        && let Some(delays) = policy.as_table()
        && delays.iter().try_fold(Duration::ZERO, |sum, delay| sum.checked_add(*delay)).is_some_and(|sum| sum < MONTH)
        && delays.len() <= 100
    {
        let again = policy.clone().with_table(Some(delays.clone())).expect("it says something");
        assert_eq!(again.as_table(), Some(delays), "{text}");
    }
    if !flaws.is_empty() {
        return;
    }
    let shown = PreviewOut::of(&resolved.policy);
    assert!((1..=1_000).contains(&shown.attempts.len()), "{text}");
    for width in [0, 1, 40] {
        assert!(shown.picture(width).lines().count() >= shown.attempts.len(), "{text}");
    }
    let json = serde_json::to_string(&shown).expect("text and numbers");
    assert_eq!(serde_json::from_str::<PreviewOut>(&json).ok(), Some(shown), "{json}");
}

const MONTH: Duration = Duration::from_hours(30 * 24);
