//! Ids: each stands for one key of one kind in one deployment, and has one spelling.

use super::draws::Draws;
use postrider::ids::{IdCodec, Kind};
use postrider_engine::AppKey;
use postrider_store::By;

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let (one, other) = (draws.any::<i64>() & i64::MAX, draws.any::<i64>() & i64::MAX);
    let (kind, wrong) = (draws.one_of(&KINDS), draws.one_of(&KINDS));
    let (place, bit) = (draws.any::<u8>(), draws.below(7));
    let (ours, theirs) = (IdCodec::new([1; 16]), IdCodec::new([2; 16]));
    let id = ours.encode(kind, one);
    assert_eq!(ours.decode(kind, &id), Some(one));
    assert_eq!(theirs.decode(kind, &id), None);
    assert!(kind == wrong || ours.decode(wrong, &id).is_none());
    let swapped = id.replacen(kind.prefix(), wrong.prefix(), 1);
    assert!(kind == wrong || ours.decode(wrong, &swapped).is_none());
    assert_eq!(one.cmp(&other), id.cmp(&ours.encode(kind, other)), "ids sort as their keys do");
    let mut altered = id.clone().into_bytes();
    let place = usize::from(place) % altered.len();
    altered[place] ^= 1 << bit;
    let altered = String::from_utf8(altered).expect("one of the lower seven bits");
    assert_eq!(ours.decode(kind, &altered), None, "{altered}");

    let text = String::from_utf8_lossy(draws.rest()).into_owned();
    for kind in KINDS {
        if let Some(key) = ours.decode(kind, &text) {
            assert_eq!(ours.encode(kind, key), text, "an id has one spelling");
        }
        // Digits of the fuzzer's own under a prefix of ours.
        assert_eq!(theirs.decode(kind, &format!("{}{text}", kind.prefix())), None);
    }
    match ours.by::<AppKey>(&text) {
        Some(By::Uid(uid)) => assert!(uid == text && !uid.starts_with("app_")),
        Some(By::Key(key)) => assert_eq!(ours.id_of(key), text),
        None => {}
    }
}

const KINDS: [Kind; 7] =
    [Kind::Application, Kind::Endpoint, Kind::Message, Kind::Attempt, Kind::Task, Kind::ApiKey, Kind::AuditEntry];
