//! The iterators of lists: what a page hands out leads on from there, in both directions, and nothing else leads
//! anywhere.

use super::draws::Draws;
use postrider::{
    http::{
        extract::Query,
        filter::message_filter,
        page::{Asked, ListKey, Name},
    },
    ids::{IdCodec, is_name},
};
use postrider_engine::{AppKey, EndpointKey, MessageKey, Timestamp};
use postrider_store::{Cut, Order};
use std::fmt::Debug;
use url::form_urlencoded::Serializer;

pub fn check(data: &[u8]) {
    let mut draws = Draws::of(data);
    let (ours, theirs) = (IdCodec::new([1; 16]), IdCodec::new([2; 16]));
    let keys = draws.several(5, |draws| MessageKey::new(draws.any::<i64>() & i64::MAX));
    leads_on(&keys, &ours);
    let names: Vec<Name> = draws.several(4, Draws::text).into_iter().filter(|name| is_name(name)).map(Name).collect();
    leads_on(&names, &ours);
    for key in &keys {
        let foreign = key.show(&theirs);
        assert!(asked::<MessageKey>(&foreign, &ours).is_err(), "another deployment's");
        assert!(asked::<MessageKey>(&format!("-{foreign}"), &ours).is_err(), "another deployment's");
        assert!(asked::<EndpointKey>(&key.show(&ours), &ours).is_err(), "another list's");
        assert!(asked::<AppKey>(&format!("-{}", key.show(&ours)), &ours).is_err(), "another list's");
    }

    let text = String::from_utf8_lossy(draws.rest()).into_owned();
    if let Ok(asked) = asked::<MessageKey>(&text, &ours) {
        let page = asked.page();
        let shown = match page.from.expect("an iterator was given") {
            Cut::Past(key) => key.show(&ours),
            Cut::Before(key) => format!("-{}", key.show(&ours)),
        };
        assert_eq!(shown, text, "an iterator has one spelling");
    }
    if let Ok(asked) = asked::<Name>(&text, &ours) {
        let Some(Cut::Past(name) | Cut::Before(name)) = asked.page_of_names().from else { panic!("{text:?}") };
        assert!(is_name(&name), "{text:?}");
    }
    let mut query = Query::read(Some(&text));
    if let Ok(asked) = Asked::<MessageKey>::take_ordered(&mut query, &ours, Order::Descending) {
        let page = asked.page();
        assert!((2..=251).contains(&page.limit), "{text:?}");
        let now = Timestamp::from_millis(1_700_000_000_000);
        if let Ok(filter) = message_filter(&mut query, page.from, now) {
            assert!(filter.after.is_some() && filter.event_types.iter().all(|name| is_name(name)), "{text:?}");
            let _ = query.finish();
        }
    }
}

fn leads_on<K: ListKey + PartialEq + Debug>(keys: &[K], ids: &IdCodec) {
    let [first, .., last] = keys else { return };
    let start = Asked::<K>::take(&mut Query::default(), ids, Order::Ascending).expect("the first page");
    let page = start.answer(keys.to_vec(), ids, K::clone, |key| key);
    assert!(page.done && page.data == keys);
    let (on, back) = (page.iterator.expect("a row"), page.prev_iterator.expect("a row"));
    assert_eq!(asked(&on, ids).map(|asked: Asked<K>| asked.page().from), Ok(Some(Cut::Past(last.clone()))), "{on}");
    assert_eq!(
        asked(&back, ids).map(|asked: Asked<K>| asked.page().from),
        Ok(Some(Cut::Before(first.clone()))),
        "{back}"
    );
}

fn asked<K: ListKey>(iterator: &str, ids: &IdCodec) -> Result<Asked<K>, postrider::http::error::Error> {
    let text = Serializer::new(String::new()).append_pair("iterator", iterator).finish();
    Asked::take(&mut Query::read(Some(&text)), ids, Order::Ascending)
}
