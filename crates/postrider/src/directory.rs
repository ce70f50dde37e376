//! Placeholder until the directory is merged: reads the store each time.

use postrider_engine::AppKey;
use postrider_store::{Application, By, Store, StoreError};
use std::sync::Arc;

pub struct Directory {
    store: Arc<dyn Store>,
}

pub struct AppEntry {
    pub application: Application,
}

impl Directory {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    pub async fn application(&self, by: &By<AppKey>) -> Result<Option<Arc<AppEntry>>, StoreError> {
        Ok(self.store.application(by.clone()).await?.map(|application| Arc::new(AppEntry { application })))
    }

    pub fn changed(&self, _app: AppKey) {}
}
