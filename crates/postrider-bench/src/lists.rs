//! How long lists and searches of the API take, one at a time while nothing else happens.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::api::Api;

/// Milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct ListTimes {
    pub list: &'static str,
    pub rows: usize,
    pub median_ms: f64,
    pub greatest_ms: f64,
}

/// Names of lists, and where they are.
pub type Lists = Vec<(&'static str, String)>;

/// Of an application with much in it: one of its endpoints, and one where dead letters may lie.
pub fn of_history(full: &(String, String), dead: &(String, String)) -> Lists {
    let ((app, endpoint), (app_dead, _)) = (full, dead);
    vec![
        ("50 messages of an application", format!("/api/v1/app/{app}/msg?limit=50&with_content=false")),
        ("50 attempts of an endpoint", format!("/api/v1/app/{app}/attempt/endpoint/{endpoint}?limit=50")),
        ("50 messages of a type", format!("/api/v1/app/{app}/msg?limit=50&with_content=false&event_types=bench.event")),
        (SEARCHED_IN_VAIN, format!("/api/v1/app/{app}/msg?limit=50&with_content=false&event_types=no.such")),
        ("50 dead letters", format!("/api/v1/app/{app_dead}/dead-letter?limit=50")),
        ("an endpoint's counts", format!("/api/v1/app/{app}/endpoint/{endpoint}/stats")),
        ("50 applications", "/api/v1/app?limit=50".to_owned()),
    ]
}

/// Some times over, and one after the other.
pub async fn measure(api: &Api, lists: &Lists) -> Result<Vec<ListTimes>> {
    let mut measured = Vec::with_capacity(lists.len());
    for (list, path) in lists {
        let (mut times, mut rows) = (Vec::with_capacity(TIMES), 0);
        for _ in 0..TIMES {
            let (took, found) = api.timed(path).await?;
            times.push(took);
            rows = found;
        }
        times.sort();
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        measured.push(ListTimes { list, rows, median_ms: ms(times[TIMES / 2]), greatest_ms: ms(times[TIMES - 1]) });
    }
    Ok(measured)
}

pub const SEARCHED_IN_VAIN: &str = "messages of a type that none has";
const TIMES: usize = 11;
