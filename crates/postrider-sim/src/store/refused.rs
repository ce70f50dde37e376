//! What sources did not take.

use super::{batch::Batch, settings::on_page, tables::Tables};
use postrider_engine::{AppKey, Timestamp};
use postrider_store::{Page, REFUSED_MAX, REFUSED_MEMORY, Refused, RefusedKey};

pub fn add(batch: &mut Batch<'_>, refused: Vec<Refused>) {
    for one in refused {
        let app = one.app;
        batch.tables.refused.entry(one.key).or_insert(one);
        let of_app = batch.tables.refused.values().rev().filter(|other| other.app == app);
        let old: Vec<RefusedKey> = of_app.skip(REFUSED_MAX).map(|other| other.key).collect();
        for key in old {
            batch.tables.refused.remove(&key);
        }
    }
}

pub fn list(tables: &Tables, app: AppKey, page: &Page<RefusedKey>) -> Vec<Refused> {
    let found = on_page(&tables.refused, page, |(_, refused): &(&RefusedKey, &Refused)| refused.app == app);
    found.into_iter().map(|(_, refused)| refused.clone()).collect()
}

pub fn forget(tables: &mut Tables, now: Timestamp) {
    let before = now.minus(REFUSED_MEMORY);
    tables.refused.retain(|_, refused| refused.at >= before);
}
