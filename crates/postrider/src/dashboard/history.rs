//! What was tried hour by hour, of an application or of an endpoint.

use super::{chart::Bars, frame::moment};
use serde::Deserialize;

#[derive(Deserialize)]
pub struct History {
    pub points: Vec<Attempts>,
    pub total: Attempts,
}

/// What was tried in an hour, or in all.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempts {
    time: String,
    pub delivered: u64,
    pub failed: u64,
    status_none: u64,
    status_1xx: u64,
    status_2xx: u64,
    status_3xx: u64,
    status_4xx: u64,
    status_5xx: u64,
}

impl Attempts {
    /// Those that there are.
    pub fn classes(&self) -> Vec<(&'static str, u64)> {
        let classes = [
            ("2xx", self.status_2xx),
            ("1xx", self.status_1xx),
            ("3xx", self.status_3xx),
            ("4xx", self.status_4xx),
            ("5xx", self.status_5xx),
            ("no answer", self.status_none),
        ];
        classes.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn told(&self) -> String {
        format!("{}: {} delivered, {} failed", moment(&self.time), self.delivered, self.failed)
    }
}

impl History {
    /// A bar for each hour.
    pub fn bars(&self) -> Bars {
        Bars::new(self.points.iter().map(|hour| (hour.delivered, hour.failed, hour.told())).collect())
    }
}
