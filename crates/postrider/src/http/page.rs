//! Lists, a page at a time and in both directions.
//!
//! The iterator is the id of the last row shown, and `-` with the id of the first leads back. Nothing
//! about a list is kept between two requests, and rows that come meanwhile shift no page.

use super::{error::Error, extract::Query};
use crate::ids::{IdCodec, PublicKey, is_name};
use postrider_store::{Cut, Order, Page};
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListOut<T> {
    pub data: Vec<T>,
    /// Where the next page begins; null if this one is empty.
    #[schema(required)]
    pub iterator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev_iterator: Option<String>,
    /// There is nothing more in this direction.
    pub done: bool,
}

/// What rows are told apart by in a list.
pub trait ListKey: Clone {
    fn show(&self, ids: &IdCodec) -> String;
    fn read(text: &str, ids: &IdCodec) -> Option<Self>;
}

impl<K: PublicKey> ListKey for K {
    fn show(&self, ids: &IdCodec) -> String {
        ids.id_of(*self)
    }
    fn read(text: &str, ids: &IdCodec) -> Option<Self> {
        ids.key_of(text)
    }
}

/// The name of an event type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub String);

impl ListKey for Name {
    fn show(&self, _: &IdCodec) -> String {
        // A dash in front would lead back.
        if self.0.starts_with('-') { format!("{DASH_FOLLOWS}{}", self.0) } else { self.0.clone() }
    }
    fn read(text: &str, _: &IdCodec) -> Option<Self> {
        let name = text.strip_prefix(DASH_FOLLOWS).filter(|rest| rest.starts_with('-')).unwrap_or(text);
        is_name(name).then(|| Self(name.to_owned()))
    }
}

/// How many rows were asked for.
pub fn limit_of(query: &mut Query) -> Result<usize, Error> {
    match query.parsed::<i64>("limit", "a whole number")? {
        None => Ok(LIMIT_DEFAULT),
        Some(limit @ 1..=LIMIT_MAX) => Ok(limit as usize),
        Some(_) => Err(Error::invalid_query("limit", format!("must be between 1 and {LIMIT_MAX}"))),
    }
}

/// Which page was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<K> {
    from: Option<Cut<K>>,
    order: Order,
    limit: usize,
}

impl<K: ListKey> Asked<K> {
    /// Takes `limit` and `iterator` out of the query, for a list that is always in this order.
    pub fn take(query: &mut Query, ids: &IdCodec, order: Order) -> Result<Self, Error> {
        let limit = limit_of(query)?;
        let from = query.text("iterator")?.map(|text| cut(&text, ids)).transpose()?;
        Ok(Self { from, order, limit })
    }

    /// The same, for a list whose order the caller may choose.
    pub fn take_ordered(query: &mut Query, ids: &IdCodec, default: Order) -> Result<Self, Error> {
        let order = match query.text("order")?.as_deref() {
            None => default,
            Some("ascending") => Order::Ascending,
            Some("descending") => Order::Descending,
            Some(_) => return Err(Error::BadQuery("`order` must be ascending or descending".into())),
        };
        Self::take(query, ids, order)
    }

    /// What to ask of the store: one row more than is shown, to know whether there is more.
    pub fn page(&self) -> Page<K> {
        Page { from: self.from.clone(), order: self.order, limit: self.limit + 1 }
    }

    /// How many rows are shown.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Makes the answer of the rows that the store gave for `page`, which are in the list's order.
    pub fn answer<R, T>(
        self,
        mut rows: Vec<R>,
        ids: &IdCodec,
        key: impl Fn(&R) -> K,
        show: impl FnMut(R) -> T,
    ) -> ListOut<T> {
        let done = rows.len() <= self.limit;
        match self.from {
            // Paging back, the row too many is the one furthest from the cut: the first.
            Some(Cut::Before(_)) => drop(rows.drain(..rows.len().saturating_sub(self.limit))),
            Some(Cut::Past(_)) | None => rows.truncate(self.limit),
        }
        ListOut {
            iterator: rows.last().map(|row| key(row).show(ids)),
            prev_iterator: rows.first().map(|row| format!("-{}", key(row).show(ids))),
            data: rows.into_iter().map(show).collect(),
            done,
        }
    }
}

impl Asked<Name> {
    pub fn page_of_names(&self) -> Page<String> {
        let page = self.page();
        let from = page.from.map(|cut| match cut {
            Cut::Past(Name(name)) => Cut::Past(name),
            Cut::Before(Name(name)) => Cut::Before(name),
        });
        Page { from, order: page.order, limit: page.limit }
    }
}

fn cut<K: ListKey>(text: &str, ids: &IdCodec) -> Result<Cut<K>, Error> {
    let cut = match text.strip_prefix('-') {
        Some(rest) => K::read(rest, ids).map(Cut::Before),
        None => K::read(text, ids).map(Cut::Past),
    };
    cut.ok_or_else(|| Error::invalid_query("iterator", "is not an iterator of this list"))
}

/// No name has it, and no URL needs to encode it.
const DASH_FOLLOWS: char = '~';
const LIMIT_DEFAULT: usize = 50;
const LIMIT_MAX: i64 = 250;

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_engine::{EndpointKey, MessageKey};

    fn ids() -> IdCodec {
        IdCodec::new([3; 16])
    }

    fn asked(query: &str) -> Result<Asked<MessageKey>, Error> {
        Asked::take_ordered(&mut Query::read(Some(query)), &ids(), Order::Ascending)
    }

    /// What a store would give.
    fn rows(page: &Page<MessageKey>, all: std::ops::Range<i64>) -> Vec<MessageKey> {
        let mut keys: Vec<i64> = all.collect();
        if page.order == Order::Descending {
            keys.reverse();
        }
        let at = |key: &MessageKey| keys.iter().position(|k| *k == key.raw()).unwrap();
        let keys = match &page.from {
            None => &keys[..],
            Some(Cut::Past(key)) => &keys[at(key) + 1..],
            Some(Cut::Before(key)) => {
                let before = &keys[..at(key)];
                return before[before.len().saturating_sub(page.limit)..]
                    .iter()
                    .copied()
                    .map(MessageKey::new)
                    .collect();
            }
        };
        keys.iter().take(page.limit).copied().map(MessageKey::new).collect()
    }

    fn list(query: &str) -> ListOut<i64> {
        let asked = asked(query).unwrap();
        let rows = rows(&asked.page(), 0..7);
        asked.answer(rows, &ids(), |key| *key, |key| key.raw())
    }

    #[test]
    fn a_list_can_be_walked_to_its_end_and_back() {
        for (order, pages) in [
            ("ascending", [vec![0, 1, 2], vec![3, 4, 5], vec![6]]),
            ("descending", [vec![6, 5, 4], vec![3, 2, 1], vec![0]]),
        ] {
            let first = list(&format!("limit=3&order={order}"));
            let second = list(&format!("limit=3&order={order}&iterator={}", first.iterator.unwrap()));
            let third = list(&format!("limit=3&order={order}&iterator={}", second.iterator.unwrap()));
            assert_eq!([first.data, second.data, third.data], pages);
            assert_eq!((first.done, second.done, third.done), (false, false, true));
            let back = list(&format!("limit=3&order={order}&iterator={}", third.prev_iterator.unwrap()));
            assert_eq!((back.data, back.done), (pages[1].clone(), false));
            let begin = list(&format!("limit=3&order={order}&iterator={}", back.prev_iterator.unwrap()));
            assert_eq!((begin.data, begin.done), (pages[0].clone(), true));
        }
    }

    #[test]
    fn a_name_that_begins_with_a_dash_leads_on_and_back() {
        let names = ["--x", "-a", "a"].map(|name| Name(name.to_owned()));
        for name in names {
            let first = Asked::take(&mut Query::default(), &ids(), Order::Ascending).unwrap();
            let page = first.answer(vec![name.clone()], &ids(), Name::clone, |name| name.0);
            for (iterator, cut) in [(page.iterator, Cut::Past(name.clone())), (page.prev_iterator, Cut::Before(name))] {
                let query = format!("iterator={}", iterator.unwrap());
                let asked = Asked::<Name>::take(&mut Query::read(Some(&query)), &ids(), Order::Ascending).unwrap();
                assert_eq!(asked.page().from, Some(cut), "{query}");
            }
        }
    }

    #[test]
    fn an_empty_page_leads_nowhere() {
        let empty = asked("").unwrap().answer(Vec::new(), &ids(), |key: &MessageKey| *key, |key| key.raw());
        assert_eq!(serde_json::to_string(&empty).unwrap(), r#"{"data":[],"iterator":null,"done":true}"#);
    }

    #[test]
    fn wrong_limits_and_iterators_are_refused() {
        let foreign = format!("iterator={}", ids().id_of(EndpointKey::new(1)));
        for query in
            ["limit=0", "limit=-1", "limit=251", "limit=1000000000", "iterator=x", "iterator=-", "iterator=", &foreign]
        {
            assert!(matches!(asked(query), Err(Error::Invalid(_))), "{query}");
        }
        for query in ["limit=1e9", "limit=ten", "order=up"] {
            assert!(matches!(asked(query), Err(Error::BadQuery(_))), "{query}");
        }
        assert_eq!(asked("limit=250").unwrap().page().limit, 251);
    }
}
